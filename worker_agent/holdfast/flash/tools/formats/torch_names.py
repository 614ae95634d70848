"""A nested training state of torch as the names that a Checkpointer gives its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import OWN_BUFFERS

PART: Final = re.compile(rf"model|optimizer|extra|{OWN_BUFFERS}|rank_\d+")
"""First keys of a training state."""
FRAMEWORK: Final = re.compile(r"deepspeed|megatron")
"""First keys of what one framework alone knows."""
_DEEP: Final = len(("state", "parameter", "entry"))


def walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each tensor or value as a Checkpointer would save it, with its keys."""
    if is_leaf(path) or not isinstance(value, Mapping | list):
        yield path, value
        return
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, below in pairs:
        yield from walk((*path, key), below)


def is_leaf(path: Path) -> bool:
    """Tell whether a path is saved as one: an extra, an optimizer's entry, a module's own state."""
    match path:
        case ():
            return False
        case ("model", *names):
            return bool(names) and str(names[-1]).endswith("_extra_state")
        case ("buffers", *_):
            return False
        case ("optimizer", *keys):
            # One optimizer: ("state", parameter, entry). Several: their name stands before.
            return len(keys) >= _DEEP and keys[-_DEEP] in ("state", "param_groups")
        case _:
            return len(path) == len(("extra", "name"))


def is_tensor_place(path: Path) -> bool:
    """Tell whether a tensor at a path is stored as a tensor; elsewhere it is part of a value."""
    return path[0] in ("model", "optimizer", OWN_BUFFERS)
