"""Holdfast inside a training script.

```python
import holdfast

job = holdfast.init()
for step in range(start, steps):
    loss = train_step()
    action = job.step(step + 1, samples=batch, loss=loss)
    if action is not holdfast.CONTINUE:  # SAVE or SAVE_AND_STOP
        save(step + 1)
    if action is holdfast.SAVE_AND_STOP:
        break
```

Everything above works without an agent, where it does nothing. No torch is imported, and nothing
calls the network: a script and its agent share one page of memory (`holdfast.page`).
`holdfast.Checkpointer` saves and restores a training state; it does import torch. Its errors are
`CheckpointError` (a save was not made or kept), `RestoreError` (a checkpoint does not fit) and
`StateError` (a state cannot be saved exactly).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.job import CONTINUE, SAVE, SAVE_AND_STOP, Action, Job, init
from holdfast.page_sample import Section

__all__ = [
    "CONTINUE",
    "SAVE",
    "SAVE_AND_STOP",
    "Action",
    "CheckpointError",
    "Checkpointer",
    "Job",
    "RestoreError",
    "Schedule",
    "Section",
    "StateError",
    "init",
]

if TYPE_CHECKING:
    from holdfast.flash.checkpointer import Checkpointer
    from holdfast.flash.schedule import Schedule
    from holdfast.flash.trainer.client import CheckpointError
    from holdfast.flash.trainer.leaves import StateError
    from holdfast.flash.trainer.restore import RestoreError


_FLASH = {
    "Checkpointer": "holdfast.flash.checkpointer",
    "CheckpointError": "holdfast.flash.trainer.client",
    "RestoreError": "holdfast.flash.trainer.restore",
    "Schedule": "holdfast.flash.schedule",
    "StateError": "holdfast.flash.trainer.leaves",
}


def __getattr__(name: str) -> Any:
    """Import the flash checkpoint on first use: a script without it never pays for torch."""
    if name not in _FLASH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FLASH[name]), name)
