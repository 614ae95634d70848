"""What a rank tells of readers that are lost, on its way through its agent."""

from __future__ import annotations

from holdfast_agent.workers.shard_relay import TOLD_SECONDS, RelayedReader
from holdfast_wire.messages import (
    LostReader,
    ReaderOpened,
    ReaderReport,
    ShardPosition,
    ShardsLeased,
)

LOST = LostReader(replica=3, step=9, newest=ShardPosition(ordinal=4, position=7))
POSITIONS = (ShardPosition(ordinal=1, position=5),)


def reader() -> RelayedReader:
    """Return one that holds a shard, and has committed five records of it."""
    made = RelayedReader(ReaderOpened(dataset="d", rank=2))
    made.leased(ShardsLeased(dataset="d", rank=2, request=1, held=(ShardPosition(ordinal=1),)))
    made.reported(ReaderReport(dataset="d", rank=2, step=8, positions=POSITIONS), 0.0)
    return made


def test_a_word_about_a_lost_reader_is_passed_on_at_once() -> None:
    """Others wait for its shards; what the teller has committed comes along."""
    told = reader().reported(ReaderReport(dataset="d", rank=2, step=8, lost=(LOST,)), 1.0)
    assert told == ReaderReport(dataset="d", rank=2, step=8, positions=POSITIONS, lost=(LOST,))


def test_the_next_master_is_told_of_lost_readers_again() -> None:
    """The one before may have ended before it wrote that down; after a while it has."""
    made = reader()
    made.reported(ReaderReport(dataset="d", rank=2, step=8, lost=(LOST,)), 1.0)
    _, progress = made.again(2.0)
    assert isinstance(progress, ReaderReport)
    assert progress.lost == (LOST,)
    _, later = made.again(2.0 + TOLD_SECONDS)
    assert isinstance(later, ReaderReport)
    assert later.lost == ()
