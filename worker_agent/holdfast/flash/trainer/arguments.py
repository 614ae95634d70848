"""Checks the arguments of a `Checkpointer`: an error names argument, value, remedy."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Final, SupportsIndex, cast

from holdfast.flash.memory import hashes
from holdfast.flash.schedule import Schedule
from holdfast.flash.trainer.rng import Rng
from holdfast.flash.trainer.shards import Shards
from holdfast.flash.trainer.state_dict import Parts
from holdfast.flash.trainer.torch_shards import TorchShards

_SHARDS_METHODS: Final = ("collect", "accept", "finish")
_MOST_STEPS: Final = 2**63 - 1
_MOST_THREADS: Final = 1024


def parts(model: Any, optimizer: Any, shards: Any, extra: Any, per_rank: Any) -> Parts:
    """Return the arguments by kind; raises TypeError or ValueError naming the wrong one.

    Raises ImportError too, since a save ends elsewhere and later, where a package is missing.
    """
    hashes.require()
    own = _named(per_rank, "per_rank")
    if "rng" in own:
        raise ValueError(
            'per_rank has "rng", which is saved by itself (the random generators): '
            "give it another name"
        )
    return Parts(
        shards=_shards(model, optimizer, shards),
        extra=_named(extra, "extra"),
        # The caller's own mapping: later changes to it are saved, and a load writes into it.
        per_rank=ChainMap(cast("dict[str, Any]", own), {"rng": Rng()}),
    )


def _shards(model: Any, optimizer: Any, shards: Any) -> Shards:
    """Return the framework's state; by default that of torch's own modules and optimizers."""
    import torch
    from torch import nn

    if shards is None:
        return TorchShards(
            models=_numbered(model, nn.Module, "model"),
            optimizers=_numbered(optimizer, torch.optim.Optimizer, "optimizer"),
        )
    for name, given in (("model", model), ("optimizer", optimizer)):
        if given is not None:
            raise ValueError(
                f"{name} and shards are given: shards has the framework's whole state, so leave "
                f"out {name}"
            )
    lacking = [one for one in _SHARDS_METHODS if not callable(getattr(shards, one, None))]
    if lacking:
        raise TypeError(
            f"shards={shards!r} has no {lacking[0]}(): expected an object with "
            f"{', '.join(_SHARDS_METHODS)}, as holdfast.integrations makes them"
        )
    found: Shards = shards
    return found


def _numbered(things: Any, kind: type, name: str) -> dict[str, Any]:
    """Return one object or a list of them, by prefix."""
    if things is None:
        return {}
    many = list(things) if isinstance(things, Sequence) else [things]
    for thing in many:
        if not isinstance(thing, kind):
            raise TypeError(f"{name}={thing!r}: expected {kind.__name__} or a list of them")
    return {"": many[0]} if len(many) == 1 else {f"{i}": thing for i, thing in enumerate(many)}


def _named(things: Any, name: str) -> Mapping[str, Any]:
    if things is None:
        return {}
    if not isinstance(things, Mapping):
        raise TypeError(
            f"{name} is a {type(things).__name__}: expected a mapping of names to what is saved"
        )
    for key in things:
        if not isinstance(key, str) or not key:
            raise TypeError(f"{name} has the name {key!r}: expected text")
    return things


def directory(path: str | os.PathLike[str] | None) -> str:
    """Return the absolute path; "" for none. Raises NotADirectoryError, ValueError or TypeError."""
    if not path:
        return ""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path={text!r}: expected text or a pathlib.Path")
    if "://" in text:
        raise ValueError(
            f"path={text!r} is a URL: give a directory of a file system that all nodes mount"
        )
    found = Path(text).absolute()
    if os.path.lexists(found) and not found.is_dir():
        what = "a file" if found.exists() else "a link to nothing"
        raise NotADirectoryError(f"path={text!r} is {what}: give a directory for checkpoints")
    return str(found)


def schedule_of(schedule: Any) -> Schedule:
    """Return the schedule; by default all of it is the job's. Raises TypeError."""
    if schedule is None:
        return Schedule()
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule={schedule!r}: expected holdfast.Schedule(memory_every=…, storage_every=…), "
            'or holdfast.Schedule(every={"memory": …, "storage": …})'
        )
    return schedule


def threads_of(threads: Any) -> int:
    """Return the number of copying threads; raises ValueError."""
    return _whole(threads, "threads", _MOST_THREADS)


def step_of(step: Any) -> int:
    """Return a step's number; raises ValueError if it is no valid one."""
    return _whole(step, "step", _MOST_STEPS)


def _whole(value: Any, name: str, most: int) -> int:
    is_whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    if not is_whole or not 1 <= index(value) <= most:
        raise ValueError(f"{name}={value!r}: expected a whole number from 1 to {most}")
    return index(value)
