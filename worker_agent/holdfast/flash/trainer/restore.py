"""Fills a training state from images, whatever world saved them.

The order is: compare everything, read everything that can be refused, and only then change the
state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial as bind
from operator import setitem
from time import monotonic
from typing import Any, Final

from holdfast.flash.trainer.collectives import all_or_none
from holdfast.flash.trainer.holders import Holders
from holdfast.flash.trainer.leaves import Leaves, Stateful
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import BytesRead, Filling, Stored
from holdfast.flash.trainer.rng import Rng
from holdfast.flash.trainer.state_dict import Parts

_SHOWN: Final = 10
_MOST_THREADS: Final = 4
"""Threads of one rank's restore: more threads do not read memory faster."""
_COMPARED: Final = ("extra", "model")
"""First keys of values that must be alike in checkpoint and state. An optimizer's are compared by
its framework, and what a framework keeps besides may be lacking: another one saved."""
_LOST: Final = "random generators of rank {} are reseeded from what others had: its own are lost"
_RESEEDED: Final = (
    "the random generators of all ranks are reseeded from those of rank 0: a world of %d saved "
    "them, this one has %d"
)
_READ: Final = "step %d is loaded on rank %d: %s, in %.3f s"
log: Final = logging.getLogger("holdfast")


Fetch = Callable[[Mapping[tuple[int, int], int]], None]
"""Fetches items from other nodes' memory: (rank, index) → bytes; raises if one is missing."""


class RestoreError(Exception):
    """A checkpoint does not fit the state; no tensor was changed."""


def restore(
    parts: Parts,
    place: RankPosition,
    holders: Holders,
    source: Callable[[], tuple[Leaves, Stored]],
    fetch: Fetch,
    *,
    partial: bool,
    threads: int,
) -> tuple[list[str], BytesRead]:
    """Restore a state; return notes for the user, and the bytes that were read for tensors.

    holders: of each name in this world, if the ranks differ. source: lists the present state, and
    reads the stored one. partial: load the parts that fit, and leave the rest as it is.
    Raises `RestoreError` with the first differences.
    """
    import torch

    begun = monotonic()
    # Not in the caller's inference mode: optimizers cannot step with tensors made in it.
    with torch.inference_mode(mode=False), torch.no_grad():
        with all_or_none(place.world, RestoreError):
            filling = Filling(place, *source(), holders)
            filling.decode()
            parts.shards.accept(filling)
            _compare_values(filling, parts)
            if filling.wrong and not partial:
                raise RestoreError(
                    f"{len(filling.wrong)} differences between checkpoint and state, the first: "
                    f"{'; '.join(filling.wrong[:_SHOWN])}. load(partial=True) takes what fits"
                )
        with all_or_none(place.world, RestoreError):
            if filling.wanted:
                fetch(dict(sorted(filling.wanted.items())))
            _give(_gifts(filling, parts))
        filling.copy(threads)
        parts.shards.finish(partial=partial)
    log.info(_READ, filling.step, place.rank, filling.read, monotonic() - begun)
    return filling.notes, filling.read


def _compare_values(filling: Filling, parts: Parts) -> None:
    """Note the values that only one of checkpoint and state has."""
    known = {leaf.name: leaf.path for leaf in filling.leaves.values}
    filling.wrong += [
        f"{name} is not in the checkpoint"
        for name, path in known.items()
        if path[0] in _COMPARED and name not in filling.values
    ]
    there = {name for name in filling.values if filling.paths[name][0] in _COMPARED}
    filling.wrong += filling.unless_of_others(there - known.keys())
    own = {str(path[1]) for path in filling.paths.values() if str(path[0]).startswith("rank_")}
    left = sorted(own - parts.per_rank.keys())
    filling.wrong += [f"{key} of each rank (per_rank) is not in the state" for key in left]


_Gift = tuple[str, Any, Callable[[], Any]]
"""Name of a value, its owner, and the call that gives it to the owner."""


def _gifts(filling: Filling, parts: Parts) -> Iterator[_Gift]:
    """Yield everything but tensors."""
    values = filling.values
    for key, value in parts.extra.items():
        if (name := f"extra.{key}") in values:
            yield name, value, _giving(parts.extra, key, values[name])
    for leaf in filling.leaves.values:
        module = getattr(leaf.read, "__self__", None)
        if leaf.path[0] == "model" and leaf.name in values and module is not None:
            yield leaf.name, module, bind(module.set_extra_state, values[leaf.name])
    for key, value in parts.per_rank.items():
        name = f"rank_{filling.place.rank}.{key}"
        if (state := _of_rank(filling, name, key, value)) is not None:
            yield name, value, _giving(parts.per_rank, key, state[0])


def _giving(holder: Any, key: str, state: Any) -> Callable[[], Any]:
    """Return the call that loads the state of an owner, or puts plain data in its place."""
    owner = holder[key]
    if isinstance(owner, Stateful):
        return bind(owner.load_state_dict, state)
    return bind(setitem, holder, key, state)


def _of_rank(filling: Filling, name: str, key: str, owner: Any) -> tuple[Any] | None:
    """Return this rank's state of an owner; None: it begins anew, as a note says."""
    place, values, world = filling.place, filling.values, filling.world
    fits = getattr(owner, "fits_state", None)  # of an owner that not all ranks need have
    if world == place.world and name in values and (fits is None or fits(values[name])):
        return (values[name],)
    states = [values[one] for rank in range(world) if (one := f"rank_{rank}.{key}") in values]
    reshard = getattr(owner, "reshard", None)
    if states and isinstance(owner, Rng):
        if world == place.world:
            filling.notes.append(_LOST.format(place.rank))
        elif place.rank == 0:  # as intended: a script has nothing to change
            log.info(_RESEEDED, world, place.world)
        return (owner.reshard(states, place.rank, place.world),)
    if reshard is not None and (len(states) == world or (states and fits is not None)):
        try:
            return (reshard(states, place.rank, place.world),)
        except Exception as error:  # any error of the owner's own code
            raise RestoreError(
                f"{name}: its reshard failed: {error!r}; no tensor was changed"
            ) from error
    saved = f"it was saved by a world of {world}, this one has {place.world}"
    why = saved if states else "the checkpoint has none"
    filling.notes.append(f"{key} of rank {place.rank} begins anew: {why}")
    return None


def _give(gifts: Iterable[_Gift]) -> None:
    """Load all gifts; raises `RestoreError` naming the owner that refused, and those before it.

    An owner is the user's code, and may refuse: so this comes before any tensor is changed. The
    owners' previous states are not kept for a rollback: one may be as large as a model.
    """
    given: list[str] = []
    for name, owner, give in tuple(gifts):  # all are found before the first is given
        try:
            give()
        except Exception as error:  # any error of the owner's own code
            before = f"; {', '.join(given)} are restored already" if given else ""
            raise RestoreError(
                f"{name}: {type(owner).__name__} refused what was saved of it: "
                f"{error!r}; no tensor was changed{before}"
            ) from error
        given.append(name)


def idle_cores(place: RankPosition) -> int:
    """Return the number of threads for one rank's restore: no rank trains meanwhile."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)) // place.local_world)
