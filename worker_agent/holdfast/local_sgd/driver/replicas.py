"""Replicas of a driver that neither come nor go.

Belongs here: what a driver asks of its replicas, where nothing changes. Does not belong here: those
that come and go, which answer otherwise (`changing`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from holdfast.flash.trainer.leaves import Stateful
    from holdfast.local_sgd.sync.regroup import Regrouped

T = TypeVar("T")


class FixedMembers:
    """Replicas of a process group, which neither come nor go."""

    changes = meets = False
    voters: Group | None = None
    store: dist.Store | None = None

    def __init__(self, group: Group, own: Group, *, averages: bool = False) -> None:
        """Take the groups.

        Args:
            group: The ranks that hold this rank's shards, one of each replica.
            own: The ranks of this replica.
            averages: The framework can average gradients over these replicas in each step.
        """
        self.group, self.own, self.averages = group, own, averages

    def attach(self, driver: Any) -> None:
        """Ask it for nothing: nothing changes."""

    def has_changed(self) -> bool:
        """Tell that they have not."""
        return False

    def refresh(self) -> None:
        """Find no change."""

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Make a call; where it fails nobody else is there to go on with."""
        return call()

    def take_position(self, found: Regrouped) -> None:
        """Take nothing: nobody is ahead."""

    def average(self, gradient: torch.Tensor) -> None:
        """Average a gradient over the replicas."""
        import torch.distributed as dist

        dist.all_reduce(gradient, group=self.group.ranks)
        gradient.div_(self.group.size)

    def carry(self, name: str, one: Stateful) -> bool:
        """Give it to nobody: nobody joins."""
        del name, one
        return False
