"""Hashes of states: tensors by their bits, everything else by its text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def digest(*parts: Any) -> str:
    """Return a hash of tensors in lists and dicts, and of all other values by their text."""
    import torch

    found = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            found.update(
                one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        elif isinstance(one, Mapping):
            for key, value in one.items():
                found.update(str(key).encode())
                add(value)
        elif isinstance(one, list | tuple):
            for value in one:
                add(value)
        else:
            found.update(repr(one).encode())

    add(parts)
    return found.hexdigest()
