"""Holdfast inside a training script.

```python
import holdfast

job = holdfast.init()
for step in range(start, steps):
    loss = train_step()
    if job.step(step + 1, samples=batch, loss=loss) is holdfast.SAVE_AND_STOP:
        save(step + 1)
        break
```

Everything above works without an agent, where it does nothing. No torch is imported, and nothing
calls the network: a script and its agent share one page of memory (`holdfast.page`).
`holdfast.Checkpointer` saves and restores a training state; it does import torch.
"""

from typing import TYPE_CHECKING, Any

from holdfast.job import CONTINUE, SAVE, SAVE_AND_STOP, Action, Job, init
from holdfast.page import Section

__all__ = [
    "CONTINUE",
    "SAVE",
    "SAVE_AND_STOP",
    "Action",
    "Checkpointer",
    "Job",
    "Schedule",
    "Section",
    "init",
]

if TYPE_CHECKING:
    from holdfast.flash.checkpointer import Checkpointer
    from holdfast.flash.decide.schedule import Schedule


def __getattr__(name: str) -> Any:
    """Import the flash checkpoint when it is asked for: a script without it pays nothing."""
    if name == "Checkpointer":
        from holdfast.flash.checkpointer import Checkpointer

        return Checkpointer
    if name == "Schedule":
        from holdfast.flash.decide.schedule import Schedule

        return Schedule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
