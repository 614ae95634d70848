"""Megatron-LM: its optimizers' shards in place, and its own functions to save and load.

```python
from holdfast.integrations.megatron import load_checkpoint, save_checkpoint
```

These two take the place of those in `megatron.training.checkpointing`, with the same arguments.
A script with a loop of its own passes `MegatronShards(model, optimizer)` to
`holdfast.Checkpointer(path, shards=...)`. Megatron is imported on first use.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["MegatronShards", "load_checkpoint", "save_checkpoint"]

if TYPE_CHECKING:
    from holdfast.integrations.megatron.checkpointing import load_checkpoint, save_checkpoint
    from holdfast.integrations.megatron.shards import MegatronShards


def __getattr__(name: str) -> Any:
    if name == "MegatronShards":
        from holdfast.integrations.megatron.shards import MegatronShards

        return MegatronShards
    if name in __all__:
        from holdfast.integrations.megatron import checkpointing

        return getattr(checkpointing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
