"""Sync groups of the replicas that are in one round without a barrier.

Belongs here: when a group is made, used again and given up. Does not belong here: who is in a round
(`holdfast.local_sgd.policies.meeting`), and how torch makes a group (`fresh_group`).

Replicas that meet again in the same company use the group that they have. All members of a group
were in each of its rounds, so all of them know when it was used last, and give it up alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.local_sgd.sync.fresh_group import ChangingGroup, watched_store
from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch.distributed as dist

KEPT: Final = 64
"""Meetings for which a group is kept without use. A connection costs memory and a descriptor, and
with many replicas each round may have a company of its own."""


class Subsets:
    """Groups of some replicas, for one shard."""

    def __init__(
        self,
        whole: Group,
        store: dist.Store,
        name: str,
        *,
        has_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take the group of all replicas.

        Args:
            whole: Its backend and deadline are those of all others.
            store: Where members of a group meet.
            name: Prefix of the groups' names, the same for one shard on all replicas and no other
                shard's.
            has_changed: Tells of a newer roster, where members come and go: then a group that is
                forming is given up.
        """
        self._whole, self._store, self._name = whole, store, name
        self._has_changed = has_changed
        self._made: dict[tuple[int, ...], tuple[Group, ChangingGroup, int]] = {}
        """Groups, what ends them, and the meeting that used each last."""

    def of(self, replicas: tuple[int, ...], meeting: int) -> Group:
        """Return the group of these replicas; each of them calls this after the same meeting.

        Raises:
            SyncError: one of them did not come.
        """
        whole = self._whole
        if len(replicas) == whole.size:
            return whole
        for old in [one for one, (*_, used) in self._made.items() if meeting - used > KEPT]:
            self._end(old)
        group, ending = (
            self._made[replicas][:2] if replicas in self._made else self._make(replicas, meeting)
        )
        self._made[replicas] = (group, ending, meeting)
        return group

    def end(self) -> None:
        """Give all groups up; ranks that wait in one of them fail."""
        for replicas in list(self._made):
            self._end(replicas)

    def _end(self, replicas: tuple[int, ...]) -> None:
        group, ending, _ = self._made.pop(replicas)
        group.give_up()
        ending.leave()

    def _make(self, replicas: tuple[int, ...], meeting: int) -> tuple[Group, ChangingGroup]:
        import torch.distributed as dist

        whole = self._whole
        ending = ChangingGroup(dist.get_backend(whole.ranks))
        if len(replicas) == 1:
            group = Group.of_one()
        else:
            name = f"{self._name}_{meeting}"
            ranks = ending.form(
                watched_store(dist.PrefixStore(name, self._store), self._has_changed),
                name=name,
                rank=replicas.index(whole.rank),
                size=len(replicas),
                timeout=whole.timeout,
            )
            group = Group(ranks, timeout=whole.timeout)
            group.interrupted = whole.interrupted
        group.numbers = replicas
        return group, ending
