"""Changes: the reasons for another look at the decisions."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final


class Change(enum.StrEnum):
    """A change that decisions depend on, in words for the log."""

    SPEC_ARRIVED = "a spec arrived"
    OPERATOR_CONNECTED = "the operator connected for the first time"
    END_REQUESTED = "the end of the job was requested"
    END_STARTED = "agents were told to leave"
    RESUMED = "the job was resumed"
    RELEASE_DUE = "the time promised to surplus nodes is over"
    JOURNAL_READ = "the journal was read"
    WORLD_CLAIMED = "a node claims a world that the journal does not name"
    WORLD_ADOPTED = "a running world was adopted"
    WORLD_NOT_ADOPTED = "no running world is adopted"
    NODE_JOINED = "a node joined"
    NODE_RETURNED = "a node came back"
    NODE_RECEIVED = "a silent node was heard again"
    NODE_DISCONNECTED = "the stream of a node ended"
    NODE_GONE = "a node is gone"
    NODE_DRAINING = "a node is to leave"
    NODE_FINISHED = "all ranks of a node finished"
    CANDIDATES_CHANGED = "other nodes are eligible for a world"
    POD_SEEN = "a pod was observed"
    PODS_LISTED = "the list of pods is complete"
    REJOIN_DUE = "the time for a restarted container to rejoin is over"
    CHECK_WANTED = "a node is to be checked before it joins"
    PREFLIGHT_GATHERED = "nodes have waited long enough for others to be checked with"
    PREFLIGHT_OVER = "a check of nodes is over"
    INCIDENT_JUDGED = "an incident was judged"
    WORLD_BROKEN = "the newest world cannot go on"
    WORLD_DECIDED = "a world was decided"
    WORLD_ASSIGNED = "a world was assigned"
    WORLD_TRAINS = "a world trains"
    STEPS_REPORTED = "steps of a world are reported after all"
    STORE_REPORTED = "a node reported on its store"
    MEMORY_REPORTED = "a node reported what it holds in memory"
    SHARDS_REPORTED = "a node reported shards on storage"
    COMMIT_ENDED = "a commit ended"
    RESTORE_REQUESTED = "a node asks for a checkpoint to start from"
    RESTORE_REFUSED = "a node found its share of a checkpoint damaged"
    FLUSH_GIVEN_UP = "memory is not flushed any more"
    STORE_RETRY_DUE = "a store may be requested again"
    BACKOFF_DUE = "the pause after failures is over"
    JOIN_WINDOW_DUE = "the join window is over"
    GROWTH_DUE = "the time to weigh a larger world has come"
    COMMIT_DUE = "the time for a commit is over"
    REPLICA_READY = "other replicas can be in a roster"
    ROSTER_FAILED = "replicas of a roster could not meet"
    ROSTER_DUE = "the time for another roster has come"
    FLUSH_DUE = "the time for a flush is over"


NOT_OF_MEMBERS: Final = frozenset(
    {
        Change.NODE_RECEIVED,
        Change.STORE_REPORTED,
        Change.STORE_RETRY_DUE,
        Change.MEMORY_REPORTED,
        Change.SHARDS_REPORTED,
        Change.COMMIT_ENDED,
        Change.COMMIT_DUE,
        Change.FLUSH_DUE,
        Change.FLUSH_GIVEN_UP,
    }
)
"""Changes after which the same nodes are in a world, fit for one and ready as before."""


@dataclasses.dataclass(slots=True)
class PendingChanges:
    """Reasons for a look, each once and in the order of their first occurrence.

    The number of reasons bounds both lists.
    """

    waiting: list[Change] = dataclasses.field(default_factory=list)
    """Reasons since the last look."""
    batch: list[Change] = dataclasses.field(default_factory=list)
    """Reasons of all looks of the newest batch."""

    def add(self, why: Change) -> None:
        """Note a reason."""
        if why not in self.waiting:
            self.waiting.append(why)

    def begin(self) -> None:
        """Begin a batch: the reasons of the one before are forgotten."""
        if self.batch:
            self.batch.clear()

    def take(self) -> list[Change]:
        """Begin a look, and return its reasons: they move to the batch."""
        taken, self.waiting = self.waiting, []
        self.batch += [why for why in taken if why not in self.batch]
        return taken
