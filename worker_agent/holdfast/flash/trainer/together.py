"""Several `Shards` as one: each lists and fills its own part of the state.

Belongs here: their order. Does not belong here: what a part is. The parts have names of their own;
two that list one name are refused, as every state with a name twice.
"""

from __future__ import annotations

from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.shards import Shards


class Together:
    """Parts of a training state, in the order in which they are listed and filled."""

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
