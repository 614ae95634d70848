"""Readers of replicas that are lost: others tell how far they had read."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_master.job.data.shards import LOST_AWAITED_SECONDS, LOST_SECONDS
from holdfast_master.policies.data.ledger import Group, Reader
from holdfast_wire.messages import (
    Leave,
    LostReader,
    ReaderReport,
    ShardPosition,
    ShardsLeased,
)
from simulation.steered.job import SteeredJob
from simulation.steered.readers import ask, ledger, open_reader, ordinals, progress, tell
from simulation.steered.replicas import replicated, roster, rounds_of, seats


def _lost_replica(job: SteeredJob, shards: int = 40) -> int:
    """Have the third of three replicas be lost with its agent in its first shard; its number."""
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0, shards=shards, placed=True)
    assert ordinals(ask(job, 2, reader=0)) == [0, 1]
    progress(job, 2, 6, {0: 9})
    before = seats(job)
    job.agents[2].crash()
    while job.state.ledgers["d"].lost == set():
        job.run(0.05)
    assert before != seats(job)
    (group,) = ledger(job).lost
    assert ledger(job).returned == {}, "nobody else is leased what it has"
    return group.replica


def _reading() -> tuple[SteeredJob, int]:
    """Three replicas that read, and the number of the third, which has two shards."""
    job = replicated(3)
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0, placed=True)
    assert ordinals(ask(job, 2, reader=0)) == [0, 1]
    return job, _replica_of(job, 2)


def _replica_of(job: SteeredJob, rank: int) -> int:
    """The replica of a node in the newest world; 0: it is in none."""
    world = job.core.job.worlds.newest
    assert world is not None
    return world.places[rank].replica.number if rank in world.places else 0


def _tell_lost(
    job: SteeredJob, rank: int, replica: int, place: tuple[int, int], **more: Any
) -> None:
    newest = ShardPosition(ordinal=place[0], position=place[1])
    lost = LostReader(replica=replica, step=8, newest=newest, **({"epoch": 99} | more))
    tell(job, rank, ReaderReport(dataset="d", lost=(lost,)))


def test_a_lost_replica_of_which_nobody_tells_gives_its_shards_back() -> None:
    """From what it had committed, after a while."""
    job = replicated(3)
    _lost_replica(job)
    begun = job.time.now
    while job.state.ledgers["d"].lost:
        job.run(0.5)
    assert LOST_SECONDS - 5.0 < job.time.now - begun < LOST_SECONDS + 1.0
    assert ledger(job).returned == {0: 9, 1: 0}
    assert len(ledger(job).groups) == 2


def test_a_reader_that_nothing_else_is_left_for_waits_for_no_word_for_long() -> None:
    """It may be the one that those wait for who would tell."""
    job = replicated(3)
    _lost_replica(job)
    for request in range(1, 99):
        if not ledger(job).left:
            break
        ask(job, 1, request=request, wanted=40, reader=0)
    job.agents[0].report(ReaderReport(dataset="d", request=1, wanted=1), job.agents[0].round)
    begun = job.time.now
    while job.state.ledgers["d"].lost:
        job.run(0.5)
    assert LOST_AWAITED_SECONDS - 1.0 < job.time.now - begun < LOST_AWAITED_SECONDS + 2.0
    job.run(1.0)
    answers = [one for node, one in job.sent if node == 0 and isinstance(one, ShardsLeased)]
    assert [(one.ordinal, one.position) for one in answers[-1].held] == [(0, 9)]


def test_a_lost_replica_of_which_nobody_would_tell_gives_its_shards_back_at_once() -> None:
    """Of local SGD, where no place travels; its late report changes nothing."""
    job = replicated(3)
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0)
    assert ordinals(ask(job, 2, reader=0)) == [0, 1]
    progress(job, 2, 6, {0: 9})
    job.agents[2].crash()
    job.run(8.0)
    found = ledger(job)
    assert found.returned == {0: 9, 1: 0}
    answer = ask(job, 0, reader=0)
    assert [(one.ordinal, one.position) for one in answer.held] == [(0, 9), (1, 0)]
    assert len(found.groups) == 2


@pytest.mark.parametrize(
    ("place", "done", "returned"),
    [((0, 14), False, {0: 14, 1: 0}), ((1, 3), False, {1: 3}), ((0, 0), True, {1: 0})],
    ids=["in its first shard", "in its second one", "between both"],
)
def test_what_others_tell_of_a_lost_replica_counts(
    place: tuple[int, int], returned: dict[int, int], *, done: bool
) -> None:
    """Their sums have it, and nobody else knows; so nobody reads it again."""
    job = replicated(3)
    number = _lost_replica(job)
    begun = job.time.now
    _tell_lost(job, 0, number, place, done=done)
    assert job.time.now - begun < 1.0
    assert ledger(job).lost == set()
    assert ledger(job).returned == returned
    _tell_lost(job, 1, number, (0, 1))
    assert ledger(job).returned == returned, "the same is told by several"


def test_what_a_lost_replica_had_applied_alone_is_undone() -> None:
    """Its sum was whole and theirs was torn: no weights that are left have it."""
    job, number = _reading()
    progress(job, 2, 8, {0: 14})
    progress(job, 2, 9, {1: 3}, 0)
    progress(job, 0, 9, {})
    job.agents[2].crash()
    job.run(1.5)
    _tell_lost(job, 0, number, (0, 14))
    job.run(8.0)
    assert ledger(job).lost == set()
    assert ledger(job).returned == {0: 14, 1: 0}
    assert {one.replica for one in ledger(job).changes} == {number}


def test_the_word_of_a_lost_replica_may_come_before_the_world_without_it() -> None:
    """Those that are left meet by a roster, which may be sooner; then its shards do not wait."""
    job, number = _reading()
    job.agents[2].crash()
    while number in roster(job).replicas:
        job.run(0.01)
    _tell_lost(job, 1, number, (0, 14))
    job.run(8.0)
    assert ledger(job).lost == set()
    assert ledger(job).returned == {0: 14, 1: 0}


def test_a_successor_waits_for_the_word_of_a_lost_replica() -> None:
    """The master died in between: agents tell the next one again, and it has the lost group."""
    job = replicated(3)
    number = _lost_replica(job)
    job.restart_master()
    job.run(2.0)
    assert ledger(job).returned == {}
    _tell_lost(job, 0, number, (0, 14))
    assert ledger(job).returned == {0: 14, 1: 0}


def test_a_dead_process_is_a_lost_one_where_another_starts() -> None:
    """Its agent lives, so it is told to end first, and may have committed more than was heard."""
    job, number = _reading()
    job.agents[2].crash_worker()
    while _replica_of(job, 2) in {0, number}:
        job.run(0.05)
    assert {one.replica for one in ledger(job).lost} == {number}, job.tale()
    _tell_lost(job, 0, number, (0, 14))
    assert ledger(job).returned == {0: 14, 1: 0}


def test_what_was_told_of_a_replica_that_is_back_is_void() -> None:
    """It stood still and was put out; what it does with the others after that counts."""
    job, number = _reading()
    _tell_lost(job, 0, number, (0, 5))
    assert job.core.job.data.told == {"d": {}}, "it is in the roster"
    reader = Reader(Group(number, rounds_of(job)[2]), 0)
    job.core.job.data.told["d"][reader] = LostReader(replica=number, step=3)
    job.core.job.data.forget_told(roster(job))
    assert job.core.job.data.told == {"d": {}}
    newest = roster(job).epoch
    job.agents[2].crash()
    while number in roster(job).replicas:
        job.run(0.01)
    _tell_lost(job, 0, number, (0, 5), epoch=newest - 1)
    assert job.core.job.data.told == {"d": {}}, "an agent has said it again"
    _tell_lost(job, 0, number, (0, 5), epoch=newest + 1)
    job.run(8.0)
    assert ledger(job).returned == {0: 5, 1: 0}


def test_what_was_told_counts_of_one_that_stays_too() -> None:
    """It was told to end and does not: after a while its shards are returned, by that word."""
    job, number = _reading()
    progress(job, 2, 8, {0: 9})
    job.agents[2].ignores = (Leave,)
    job.operator.change(replicas=2)
    while number in roster(job).replicas or not job.state.ledgers["d"].leaving:
        job.run(0.05)
    _tell_lost(job, 0, number, (0, 14))
    while job.state.ledgers["d"].leaving:
        job.run(0.5)
    assert 2 in job.state.nodes
    assert ledger(job).returned == {0: 14, 1: 0}


def test_a_lost_replica_that_had_read_all_it_was_leased_is_corrected_too() -> None:
    """Its last shard ended in the step that it applied alone."""
    job = replicated(3)
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0, shards=6, placed=True)
    assert ordinals(ask(job, 2, wanted=1, reader=0)) == [0]
    number = _replica_of(job, 2)
    progress(job, 2, 8, {0: 14})
    progress(job, 2, 9, {}, 0)
    job.agents[2].crash()
    while number in roster(job).replicas:
        job.run(0.01)
    job.run(1.0)
    _tell_lost(job, 0, number, (0, 14))
    job.run(8.0)
    assert ledger(job).returned == {0: 14}
