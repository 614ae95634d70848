"""Reports of shard readers that are not in the journal yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from holdfast_master.policies.data.ledger import Group, Reader
from holdfast_wire import messages as wire


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A reader that waits for shards."""

    node_rank: int
    agent_id: str
    request: int
    wanted: int


@dataclasses.dataclass(slots=True)
class Progress:
    """Committed progress of a reader since the newest record."""

    step: int = 0
    positions: dict[int, int] = dataclasses.field(default_factory=dict)
    done: dict[int, None] = dataclasses.field(default_factory=dict)
    """In the order in which they were read."""

    def add(self, message: wire.ReaderReport) -> None:
        """Add a report."""
        self.step = max(self.step, message.step)
        self.done |= dict.fromkeys(message.done)
        self.positions.update({one.ordinal: one.position for one in message.positions})
        for ordinal in message.done:
            self.positions.pop(ordinal, None)


@dataclasses.dataclass(slots=True)
class DataRequests:
    """Readers that wait, and their progress."""

    openings: dict[tuple[str, Group], dict[int, wire.ReaderOpened]] = dataclasses.field(
        default_factory=dict
    )
    """By dataset and group, and in it by rank, those of groups that are not complete."""
    nodes: dict[str, dict[Reader, int]] = dataclasses.field(default_factory=dict)
    """By dataset, the node rank of each reader that has opened it."""
    asked: dict[str, dict[Reader, Asked]] = dataclasses.field(default_factory=dict)
    """By dataset."""
    progress: dict[str, dict[Reader, Progress]] = dataclasses.field(default_factory=dict)
    """By dataset."""
    floors: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """By dataset, the first ordinal that was not done by the newest step, and that step."""

    told: dict[str, dict[Reader, wire.LostReader]] = dataclasses.field(default_factory=dict)
    """By dataset, what others have told of readers of lost replicas. The word may come before the
    world is decided that leaves them out, and is void for one that is in a roster again."""

    def keep_only(self, groups: Collection[Group], lost: Collection[Group] = ()) -> None:
        """Forget the readers of all other groups: they have ended.

        lost: Groups of which others are still to tell what they had read.
        """
        for name in self.told:
            _drop_others(self.told[name], {*groups, *lost})
        for key in [one for one in self.openings if one[1] not in groups]:
            del self.openings[key]
        for asked in self.asked.values():
            _drop_others(asked, groups)
        for nodes in self.nodes.values():
            _drop_others(nodes, groups)

    members: dict[int, int] = dataclasses.field(default_factory=dict)
    """Epoch of the newest roster of each replica since this master began."""

    def forget_told(self, roster: wire.OuterRoster) -> None:
        """Forget what was told of replicas that train with the others again."""
        self.members |= dict.fromkeys(roster.replicas, roster.epoch)
        for told in self.told.values():
            for reader in [one for one in told if one.group.replica in roster.replicas]:
                del told[reader]


def _drop_others(readers: dict[Reader, Any], groups: Collection[Group]) -> None:
    for reader in [one for one in readers if one.group not in groups]:
        del readers[reader]
