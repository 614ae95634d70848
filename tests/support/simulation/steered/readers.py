"""Readers of shards in steered jobs: what their agents say, and what tests ask about them."""

from __future__ import annotations

from holdfast_master.policies.data.ledger import Ledger
from holdfast_wire.messages import (
    ReaderClaim,
    ReaderOpened,
    ReaderReport,
    ShardPosition,
    ShardsLeased,
)
from simulation.steered.job import SteeredJob

NEW = ReaderClaim()


def open_reader(  # noqa: PLR0913 - each is a field of the message
    job: SteeredJob,
    rank: int,
    *,
    readers: int = 2,
    claim: ReaderClaim | None = NEW,
    shards: int = 40,
    digest: str = "x",
    reader: int | None = None,
    placed: bool = False,
) -> None:
    """A rank of a node is about to read; nodes have one rank each."""
    message = ReaderOpened(
        dataset="d",
        shards=shards,
        epochs=1,
        digest=digest,
        rank=rank if reader is None else reader,
        readers=readers,
        claim=claim,
        placed=placed,
    )
    tell(job, rank, message)


def tell(job: SteeredJob, rank: int, message: object) -> None:
    """An agent says something about the round of its processes."""
    job.agents[rank].report(message, job.agents[rank].round)
    job.run(0.3)


def ask(
    job: SteeredJob, rank: int, *, request: int = 1, wanted: int = 2, reader: int | None = None
) -> ShardsLeased:
    """A rank asks for shards; return the answer."""
    own = rank if reader is None else reader
    tell(job, rank, ReaderReport(dataset="d", rank=own, request=request, wanted=wanted))
    answers = [
        message
        for node, message in job.sent
        if node == rank and isinstance(message, ShardsLeased) and message.request == request
    ]
    assert answers, job.tale()
    return answers[-1]


def progress(
    job: SteeredJob, rank: int, step: int, positions: dict[int, int], *done: int, reader: int = 0
) -> None:
    """A rank reports progress."""
    places = tuple(ShardPosition(ordinal=o, position=p) for o, p in positions.items())
    report = ReaderReport(dataset="d", rank=reader, step=step, positions=places, done=done)
    tell(job, rank, report)


def ordinals(answer: ShardsLeased) -> list[int]:
    """The shards that a reader holds."""
    return [one.ordinal for one in answer.held]


def ledger(job: SteeredJob) -> Ledger:
    """The ledger as the master has it; the same comes from the journal."""
    found = job.state.ledgers["d"]
    assert job.refold().ledgers["d"] == found
    return found
