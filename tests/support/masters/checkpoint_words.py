"""Messages about checkpoints of a simulated master and its nodes, whose part a test plays."""

from __future__ import annotations

from typing import Any

from holdfast_master.inputs import Received
from holdfast_wire.messages import (
    CheckpointVersion,
    CommitGrant,
    CommitResult,
    Fence,
    FlushToStorage,
    MemoryCheckpoints,
    ShardsPersisted,
)
from simulation.steered.job import SteeredJob


class Words:
    """Words of the master to each node, and words of the nodes about checkpoints."""

    def __init__(self, job: SteeredJob) -> None:
        self.job = job
        job.sent.clear()

    def say(self, rank: int, message: Any, number: int = 1) -> None:
        """A node says something about a round."""
        session = self.job.agents[rank].session
        assert session is not None
        epoch = self.job.epoch
        fence = Fence(epoch=epoch, incarnation=f"m{epoch}", round=number)
        self.job.take(Received(session, fence, message))

    def hold(self, *versions: CheckpointVersion, memory_only: bool = False) -> None:
        """Every node has these in memory; memory_only: its ranks named no directory."""
        for rank in sorted(self.job.agents):
            self.say(rank, MemoryCheckpoints(versions=versions, memory_only=memory_only))

    def told(self, kind: type, rank: int | None = None) -> list[Any]:
        """Return what of a kind was said, to a node or to any."""
        return [
            message
            for to, message in self.job.sent
            if isinstance(message, kind) and rank in (None, to)
        ]

    def write(self, rank: int, order: FlushToStorage, error: str = "") -> None:
        """A node has carried the order out, or could not."""
        size = len(self.job.agents)
        ranks = () if error else (rank,)
        part = ShardsPersisted(
            version=order.version, world_size=size, ranks=ranks, root="/r",
            attempt=order.attempt, error=error,
        )  # fmt: skip
        self.say(rank, part)

    def commit(self, rank: int = 0, error: str = "") -> None:
        """A node does what it was granted last."""
        grant = self.told(CommitGrant, rank)[-1]
        self.say(rank, CommitResult(version=grant.version, own=grant.own, error=error))

    def events(self, reason: str) -> list[str]:
        """Return the texts of events."""
        job = self.job
        return [one.text for one in job.core.events_after(0, 9999) if one.reason == reason]
