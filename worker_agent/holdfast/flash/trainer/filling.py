"""What a checkpoint has for one rank's state, and the copies that fill it.

Belongs here: the comparison by name, the differences that are found, the copies that are planned.
Does not belong here: the copies themselves (`reshard`), what a framework does with them (`shards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.holders import Holders
from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.planner import Local, RankPosition
from holdfast.flash.trainer.reshard import Filler, Stored
from holdfast.flash.trainer.values import decode_value

if TYPE_CHECKING:
    import torch


class Filling:
    """One start of one rank from one checkpoint, while nothing is changed yet."""

    def __init__(
        self, leaves: Leaves, place: RankPosition, found: Stored, holders: Holders
    ) -> None:
        """Take the present state, the rank's position, and the stored state.

        holders: holders of each name in this world, if the ranks differ.
        """
        self.leaves, self.place, self.found = leaves, place, found
        self._holders = holders
        self.filler = Filler(found)
        self.wrong = self.filler.wrong
        """Differences between checkpoint and state, in words: with any of them nothing is loaded,
        unless the script takes what fits (`partial`)."""
        self.values: dict[str, Any] = {}
        """Name of each stored value that is no tensor → the value."""
        self.notes: list[str] = []
        """What the user should know of the start, in words."""

    @property
    def step(self) -> int:
        """The checkpoint's step."""
        return self.found.step

    @property
    def world(self) -> int:
        """Number of ranks of the world that saved."""
        return self.found.world

    @property
    def paths(self) -> Mapping[str, Path]:
        """Name of each stored tensor and value → its keys in the nested state."""
        return self.found.paths

    def decode(self) -> None:
        """Read the values; raises `ValueError` for one that cannot be."""
        for name in self.found.values:
            self.values[name] = decode_value(name, self.found.value(name))

    def form(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return dtype and shape of a stored tensor, ("float32", (4, 2)); None: there is none."""
        parts = self.found.tensors.get(name)
        return None if parts is None else (parts[0].item.dtype, parts[0].item.shape)

    def fill_box(
        self, name: str, values: torch.Tensor, shape: Sequence[int], offsets: Sequence[int]
    ) -> bool:
        """Plan the copies into a box of a global tensor.

        Only the bytes of this box are read, from whatever boxes are stored. If that is impossible,
        the difference is noted.

        Args:
            name: The global tensor's name; see `Leaves.add_box`.
            values: The box's elements, which are overwritten once all ranks have agreed.
            shape: Shape of the global tensor.
            offsets: First element of the box in each dimension.

        Returns:
            True if the box can be filled.
        """
        local = Local(
            shape=tuple(shape), offsets=tuple(offsets), values=values.detach(), copy=0, copies=1
        )
        return self.filler.fill(name, local)

    def group_members(self, name: str, own: Sequence[str]) -> Sequence[str]:
        """Return the parameters of a group on all ranks together."""
        return self._holders.groups.get(name, tuple(own))

    def missing_or_new(self, names: set[str], part: str) -> None:
        """Note stored tensors of a part of the state ("model") that this rank lacks."""
        there = {name for name in self.found.tensors if self.found.paths[name][0] == part}
        self.wrong += self.unless_of_others(there - names)

    def unless_of_others(self, names: Iterable[str]) -> list[str]:
        """Return errors for stored names that this rank lacks; none for names of other ranks."""
        left = [name for name in sorted(names) if not self.is_of_others(name)]
        return [f"{name} is not in the state" for name in left]

    def is_of_others(self, name: str) -> bool:
        """Tell whether other ranks take this name, and this rank has no place for it."""
        path = self.found.paths.get(name, ())
        return self._holders.is_of_others(name, path, self.place.rank)

    def below(self, begin: Path) -> dict[tuple[Any, Any], str]:
        """Return the stored names two keys below a path, by these keys."""
        size = len(begin)
        return {
            (path[size], path[size + 1]): name
            for name, path in self.found.paths.items()
            if path[:size] == begin and len(path) == size + 2 and self._is_stored(name)
        }

    def _is_stored(self, name: str) -> bool:
        return name in self.values or name in self.found.tensors
