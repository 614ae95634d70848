"""The border between the flash checkpoint and frameworks: boxes of named tensors, and values.

Whoever implements `Shards` gets saves without a gather, restores from memory, and resharding to any
other world and layout. docs/contributing/a-framework.md shows how, with an example.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.flash.trainer.leaves import Leaves
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
        """Take the parts; one that completes what others have filled comes after them."""
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
