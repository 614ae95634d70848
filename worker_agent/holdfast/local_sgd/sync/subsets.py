"""Sync groups of the replicas that are in one round without a barrier.

Belongs here: when a group is made, used again and given up. Does not belong here: who is in a round
(`holdfast.local_sgd.policies.meeting`), and how torch makes a group (`fresh_group`).

Replicas that meet again in the same company use the group that they have. All members of a group
were in each of its rounds, so all of them know when it was used last, and give it up alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.local_sgd.sync.fresh_group import fresh_group
from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch.distributed as dist

KEPT: Final = 64
"""Meetings for which a group is kept without use. A connection costs memory and a descriptor, and
with many replicas each round may have a company of its own."""


class Subsets:
    """Groups of some replicas, for one shard."""

    def __init__(self, whole: Group, store: dist.Store, name: str) -> None:
        """Take the group of all replicas.

        Args:
            whole: Its backend and deadline are those of all others.
            store: Where members of a group meet.
            name: Prefix of the groups' names, the same for one shard on all replicas and no other
                shard's.
        """
        self._whole, self._store, self._name = whole, store, name
        self._made: dict[tuple[int, ...], tuple[Group, int]] = {}
        """Groups, and the meeting that used each last."""

    def of(self, replicas: tuple[int, ...], meeting: int) -> Group:
        """Return the group of these replicas; each of them calls this after the same meeting.

        Raises:
            SyncError: one of them did not come.
        """
        whole = self._whole
        if len(replicas) == whole.size:
            return whole
        for old in [one for one, (_, used) in self._made.items() if meeting - used > KEPT]:
            self._made.pop(old)[0].close()
        group = self._made[replicas][0] if replicas in self._made else self._make(replicas, meeting)
        self._made[replicas] = (group, meeting)
        return group

    def _make(self, replicas: tuple[int, ...], meeting: int) -> Group:
        import torch.distributed as dist

        if len(replicas) == 1:
            group = Group.of_one()
        else:
            name = f"{self._name}_{meeting}"
            ranks = fresh_group(
                dist.PrefixStore(name, self._store),
                name=name,
                rank=replicas.index(self._whole.rank),
                size=len(replicas),
                backend=dist.get_backend(self._whole.ranks),
                timeout=self._whole.timeout,
            )
            group = Group(ranks, timeout=self._whole.timeout)
        group.numbers = replicas
        return group
