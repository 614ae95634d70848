"""Fills a training state from images, whatever world saved them.

The order is: compare everything, read everything that can be refused, and only then change the
state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


class Restorer:
    """One restore of one state."""

    def __init__(
        self,
        parts: Parts,
        place: RankPosition,
        source: Callable[[], tuple[Leaves, Stored]],
        fetch: Fetch,
        holders: Holders = Holders(),  # noqa: B008 - frozen
    ) -> None:
        """Take the state, and where it comes from; nothing is read yet.

        source: lists the present state, and reads the stored one. fetch: fetches other nodes'
        items. holders: of each name in this world, if the ranks differ.
        """
        self._parts, self._place, self._source = parts, place, source
        self._fetch, self._holders = fetch, holders
        self.read = BytesRead()
        """Bytes that `run` has read for tensors."""

    def run(self, *, partial: bool, threads: int) -> list[str]:
        """Restore; return notes for the user.

        partial: load the parts that fit, and leave the rest as it is.
        Raises `RestoreError` with the first differences.
        """
        import torch

        begun = monotonic()
        # Not in the caller's inference mode: optimizers cannot step with tensors made in it.
        with torch.inference_mode(mode=False), torch.no_grad():
            with all_or_none(self._place.world, RestoreError):
                leaves, found = self._source()
                filling = Filling(leaves, self._place, found, self._holders)
                filling.decode()
                self._parts.shards.accept(filling)
                self._extras(filling)
                if filling.wrong and not partial:
                    raise RestoreError(
                        f"{len(filling.wrong)} differences between checkpoint and state, the "
                        f"first: {'; '.join(filling.wrong[:_SHOWN])}. load(partial=True) takes "
                        "what fits"
                    )
            with all_or_none(self._place.world, RestoreError):
                if filling.wanted:
                    self._fetch(dict(sorted(filling.wanted.items())))
                self._give(filling)
            filling.copy(threads)
            self._parts.shards.finish(partial=partial)
        self.read = filling.read
        log.info(_READ, filling.step, self._place.rank, self.read, monotonic() - begun)
        return filling.notes

    def _extras(self, filling: Filling) -> None:
        for leaf in filling.leaves.values:
            if leaf.name not in filling.values and leaf.path[0] in _COMPARED:
                filling.wrong.append(f"{leaf.name} is not in the checkpoint")
        known = {leaf.name for leaf in filling.leaves.values}
        for name in filling.values:
            taken = name in known or filling.is_of_others(name)
            if filling.paths[name][0] in _COMPARED and not taken:
                filling.wrong.append(f"{name} is not in the state")
        own = {str(path[1]) for path in filling.paths.values() if str(path[0]).startswith("rank_")}
        left = sorted(own - self._parts.per_rank.keys())
        filling.wrong += [f"{key} of each rank (per_rank) is not in the state" for key in left]

    def _give(self, filling: Filling) -> None:
        """Load everything but tensors; this comes before the tensors, as an owner may refuse."""
        values = filling.values
        gifts = [
            _Gift(f"extra.{key}", value, values[f"extra.{key}"], self._parts.extra, key)
            for key, value in self._parts.extra.items()
            if f"extra.{key}" in values
        ]
        for leaf in filling.leaves.values:
            if leaf.path[0] == "model" and leaf.name in values:
                module = getattr(leaf.read, "__self__", None)
                if module is not None:
                    gifts.append(_Gift(leaf.name, module, values[leaf.name]))
        _give([*gifts, *self._per_rank(filling)])

    def _per_rank(self, filling: Filling) -> list[_Gift]:
        rank, gifts, values = self._place.rank, list[_Gift](), filling.values
        notes, world = filling.notes, filling.world
        same = world == self._place.world
        for key, value in self._parts.per_rank.items():
            states = [
                values[f"rank_{number}.{key}"]
                for number in range(world)
                if f"rank_{number}.{key}" in values
            ]
            name, reshard = f"rank_{rank}.{key}", getattr(value, "reshard", None)
            if same and name in values:
                gifts.append(_Gift(name, value, values[name], self._parts.per_rank, key))
            elif states and isinstance(value, Rng):
                fresh = value.reshard(states, rank, self._place.world)
                gifts.append(_Gift(name, value, fresh, self._parts.per_rank, key))
                if same:
                    notes.append(_LOST.format(rank))
                elif rank == 0:  # as intended: a script has nothing to change
                    log.info(_RESEEDED, world, self._place.world)
            elif reshard is not None and len(states) == world:
                whole = _resharded(name, reshard, states, rank, self._place.world)
                gifts.append(_Gift(name, value, whole, self._parts.per_rank, key))
            else:
                saved = f"by a world of {world}, this one has {self._place.world}"
                why = f"it was saved {saved}" if states else "the checkpoint has none"
                notes.append(f"{key} of rank {rank} begins anew: {why}")
        return gifts


def _resharded(name: str, reshard: Any, states: list[Any], rank: int, world: int) -> Any:
    try:
        return reshard(states, rank, world)
    except Exception as error:  # any error of the owner's own code
        raise RestoreError(
            f"{name}: its reshard failed: {error!r}; no tensor was changed"
        ) from error


@dataclass(frozen=True, slots=True)
class _Gift:
    """A value and its owner."""

    name: str
    owner: Any
    """A module with an extra state, an object with `load_state_dict`, or plain data."""
    state: Any
    holder: Any = None
    """Container of plain data; None: the owner is a module."""
    key: str = ""


def _give(gifts: Sequence[_Gift]) -> None:
    """Load all gifts; raises `RestoreError` naming the owner that refused, and those before it.

    An owner is the user's code, and may refuse: so this comes before any tensor is changed. The
    owners' previous states are not kept for a rollback: one may be as large as a model.
    """
    given: list[str] = []
    for gift in gifts:
        try:
            if gift.holder is None:
                gift.owner.set_extra_state(gift.state)
            elif isinstance(gift.owner, Stateful):
                gift.owner.load_state_dict(gift.state)
            else:
                gift.holder[gift.key] = gift.state
        except Exception as error:  # any error of the owner's own code
            before = f"; {', '.join(given)} are restored already" if given else ""
            raise RestoreError(
                f"{gift.name}: {type(gift.owner).__name__} refused what was saved of it: "
                f"{error!r}; no tensor was changed{before}"
            ) from error
        given.append(gift.name)


def idle_cores(place: RankPosition) -> int:
    """Return the number of threads for one rank's restore: no rank trains meanwhile."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)) // place.local_world)
