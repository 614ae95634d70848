"""The border between the flash checkpoint and frameworks: boxes of named tensors, and values.

A class that implements `Shards` gets saves without a gather, restores from memory, and resharding
to any other world and layout. docs/contributing/a-framework.md shows how, with an example.

Belongs here too: the state of one replica of several that differ. Replica 0 has torch's plain
names, so that a reader that knows nothing of replicas finds its weights. Those of replica 2 are
`replicas.2.model.<parameter>`. Buffers and a module's own state are of the ranks, as everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import (
    REPLICAS,
    GlobalBox,
    Leaves,
    TensorLeaf,
    ValueLeaf,
    in_replica,
)
from holdfast.flash.trainer.reshard import Filling


class Shards(Protocol):
    """A framework's training state on one rank.

    A load calls `collect`, `accept` and `finish`, in this order, and nothing trains between them.
    """

    def collect(self, leaves: Leaves) -> None:
        """List all boxes and values that this rank has; change nothing, call no collective.

        It is called for a new plan: before the first save, and after a change that the list names
        (`Leaves.watch`, `counts`, `links`). State that does not exist yet is left out: it is
        planned anew once it is there.

        Raises:
            StateError: something cannot be saved exactly.
        """

    def accept(self, filling: Filling) -> None:
        """Compare the checkpoint with the state, and plan what fills it (`Filling.fill_box`).

        Differences go to `Filling.wrong`. Nothing may change but state that does not exist yet, and
        that a later save would list: it may be allocated. No collective: a rank may be the only one
        that calls it.

        Raises:
            StateError: the state has a part that cannot be filled.
        """

    def finish(self, *, partial: bool) -> None:
        """Complete the start: every planned box has its values, on all ranks.

        Collectives are allowed; all ranks call it.

        Args:
            partial: Differences were accepted; what was not filled stays as it is.
        """


class Together:
    """Several `Shards` as one: parts of a state, in the order in which they are listed and filled.

    Two parts that list one name are refused, as every state with a name twice.
    """

    def __init__(self, *parts: Shards) -> None:
        """One that completes what others have filled comes after them."""
        self._parts = parts

    def collect(self, leaves: Leaves) -> None:
        """List all parts; see `Shards.collect`."""
        for part in self._parts:
            part.collect(leaves)

    def accept(self, filling: Filling) -> None:
        """Compare and plan all parts; see `Shards.accept`."""
        for part in self._parts:
            part.accept(filling)

    def finish(self, *, partial: bool) -> None:
        """Complete the start, part by part; see `Shards.finish`."""
        for part in self._parts:
            part.finish(partial=partial)


_OF_REPLICAS: Final[tuple[Path, ...]] = (("model",), ("optimizer",))
"""First keys of what a replica has for itself."""


class ReplicaShards:
    """The `Shards` of one replica, by whatever framework keeps it."""

    def __init__(
        self, shards: Shards, replica: int, *, shard: int, more: tuple[Path, ...] = ()
    ) -> None:
        """Take the replica's state.

        shards: its sharded tensors are of this replica's ranks alone. replica, shard: numbers of
        the replica and of this rank in it, from 0. more: first keys of what a replica has for
        itself beside weights and optimizer.
        """
        self._shards, self._replica, self._shard = shards, replica, shard
        self._own = (*_OF_REPLICAS, *more)
        self.found = True
        """The checkpoint that was accepted last has this replica; else it gave replica 0's."""

    def collect(self, leaves: Leaves) -> None:
        """List the replica's state under its names; see `Shards.collect`."""
        own = replace(leaves, tensors=[], values=[])  # the signs of a change are the same lists
        self._shards.collect(own)
        leaves.tensors += map(self._tensor, own.tensors)
        leaves.values += map(self._value, own.values)

    def accept(self, filling: Filling) -> None:
        """Plan the copies from this replica's stored state, or replica 0's; see `Shards.accept`."""
        begin = (REPLICAS, str(self._replica))
        own = {
            name: in_replica(path)
            for name, path in filling.paths.items()
            if path[:2] == begin and self._is_own(path[2:])
        }
        self.found = self._replica == 0 or bool(own)
        filling.rename(own)
        every, filling.leaves = filling.leaves, Leaves()
        try:
            self._shards.collect(filling.leaves)
            self._shards.accept(filling)
        finally:
            filling.leaves = every

    def finish(self, *, partial: bool) -> None:
        """Complete the start; see `Shards.finish`."""
        self._shards.finish(partial=partial)

    def _tensor(self, leaf: TensorLeaf) -> TensorLeaf:
        """Return a leaf under this replica's name; the first of its ranks stores what all have."""
        from torch.distributed.tensor import DTensor

        if leaf.buffer or not self._is_own(leaf.path):
            return leaf
        if leaf.path[0] == "model":  # a sync writes weights outside `optimizer.step()`
            leaf = replace(leaf, trained=False)
        if leaf.box is None and not isinstance(leaf.tensor, DTensor):
            shape = tuple(leaf.tensor.shape)
            box = GlobalBox(shape, (0,) * len(shape))
            leaf = replace(leaf, box=box, stored=self._shard == 0)
        return replace(leaf, path=self._path(leaf.path))

    def _value(self, leaf: ValueLeaf) -> ValueLeaf:
        if leaf.path[0] == "model" or not self._is_own(leaf.path):
            return leaf
        return replace(leaf, path=self._path(leaf.path))

    def _is_own(self, path: Path) -> bool:
        return any(path[: len(one)] == one for one in self._own)

    def _path(self, path: Path) -> Path:
        return path if self._replica == 0 else (REPLICAS, str(self._replica), *path)
