"""Readers of shards in a job: how they begin, what they are leased, what the journal has of it."""

from __future__ import annotations

from holdfast_master.instructions import Record
from holdfast_master.job.data.shards import COMMIT_SECONDS, LEAVE_SECONDS
from holdfast_master.policies.data.ledger import Group, Reader
from holdfast_wire.messages import (
    DrainNodeRequest,
    Leave,
    ReaderClaim,
    ReaderReport,
    ShardLedger,
    ShardPosition,
    ShardRange,
    ShardsCommitted,
    ShardsGiven,
    ShardsLeased,
)
from holdfast_wire.reasons import EventReason
from simulation.steered.job import SteeredJob, training
from simulation.steered.readers import ask, ledger, open_reader, ordinals, progress, tell
from simulation.steered.replicas import replicated, rounds_of


def refusals(job: SteeredJob) -> list[tuple[int, str]]:
    """The nodes whose readers were refused, and why."""
    return [
        (node, one.refused)
        for node, one in job.sent
        if isinstance(one, ShardsLeased) and one.refused
    ]


def test_nobody_is_leased_a_shard_before_all_have_claimed() -> None:
    """The last one may hold what the first would be given."""
    job = training(2)
    open_reader(job, 0)
    tell(job, 0, ReaderReport(dataset="d", rank=0, request=1, wanted=2))
    assert not [one for _, one in job.sent if isinstance(one, ShardsLeased)]
    held = ReaderClaim(step=3, held=(ShardPosition(ordinal=0, position=7),))
    open_reader(job, 1, claim=held)
    assert ordinals(ask(job, 0)) == [1, 2]
    assert ask(job, 1).held[0] == ShardPosition(ordinal=0, position=7)
    assert "2 readers" in job.texts(EventReason.READERS_BEGAN)[0]


def test_a_request_that_comes_again_is_answered_alike() -> None:
    """Its answer was lost with the stream: it leases nothing twice."""
    job = training(2)
    for rank in range(2):
        open_reader(job, rank)
    first, again = ask(job, 0), ask(job, 0)
    assert ordinals(first) == ordinals(again) == [0, 1]
    assert ordinals(ask(job, 0, request=2)) == [0, 1, 2, 3]
    assert ordinals(ask(job, 1)) == [4, 5]


def test_leases_are_on_disk_before_a_reader_hears_of_them() -> None:
    """The next master leases them to nobody else."""
    job = training(2)
    for rank in range(2):
        open_reader(job, rank)
    ask(job, 0)
    (given,) = [
        one
        for one in job.instructions
        if isinstance(one, Record) and isinstance(one.fact, ShardsGiven)
    ]
    assert given.durable
    job.restart_master()
    job.run(3.0)
    assert ordinals(ask(job, 0)) == [0, 1]
    assert ordinals(ask(job, 1)) == [2, 3]


def test_a_dataset_that_is_not_the_others_is_refused() -> None:
    """Ordinals would mean other shards."""
    job = training(2)
    open_reader(job, 0)
    open_reader(job, 1, digest="y")
    (refusal,) = [one for _, one in job.sent if isinstance(one, ShardsLeased)]
    assert "another list" in refusal.refused
    assert "rank 1" in job.texts(EventReason.READER_REFUSED)[0]


def test_another_list_is_refused_also_once_the_readers_have_begun() -> None:
    """A second reader of that name would read the first one's ordinals in its own list."""
    job = training(2)
    for rank in range(2):
        open_reader(job, rank)
    ask(job, 0)
    open_reader(job, 0, digest="y")
    ((node, why),) = refusals(job)
    assert node == 0
    assert "another list" in why


def test_readers_that_count_each_other_differently_are_refused() -> None:
    """The group would begin without some of them, or never."""
    job = training(2)
    open_reader(job, 0)
    open_reader(job, 1, readers=3)
    ((node, why),) = refusals(job)
    assert node == 1
    assert "2 read it, this one 3" in why
    open_reader(job, 1)
    open_reader(job, 1, readers=3)
    assert [node for node, _ in refusals(job)] == [1, 1]


def test_two_nodes_with_one_number_are_refused() -> None:
    """They would share leases, and the last reader would wait for ever."""
    job = training(2)
    open_reader(job, 0)
    open_reader(job, 1, reader=0)
    ((node, why),) = refusals(job)
    assert node == 1
    assert "node 0 has reader 0" in why


def test_a_senseless_claim_is_refused_and_the_others_wait_for_a_better_one() -> None:
    """Each successor of a master hears it again: it must take none of them down."""
    job = training(2)
    open_reader(job, 0)
    endless = ReaderClaim(done=(ShardRange(first=0, count=2, stride=0),))
    open_reader(job, 1, claim=endless)
    ((node, why),) = refusals(job)
    assert node == 1
    assert "stride=0" in why
    open_reader(job, 1)
    assert ordinals(ask(job, 0)) == [0, 1]


def test_replicas_say_that_a_checkpoint_of_another_job_has_only_what_one_had_read() -> None:
    """The ledger of that job had the others' progress: reading it again is no quiet loss."""
    job = replicated(2)
    claim = ReaderClaim(step=5, held=(ShardPosition(ordinal=1, position=3),))
    open_reader(job, 0, readers=1, reader=0, claim=claim)
    (text,) = job.texts(EventReason.SHARDS_NOT_RESTORED)
    assert "step 5" in text
    assert "what one replica had read" in text


def test_a_world_that_follows_begins_from_its_checkpoint() -> None:
    """What was leased and read after the step is leased anew, at once."""
    job = training(2)
    for rank in range(2):
        open_reader(job, rank)
    ask(job, 0)
    progress(job, 0, 8, {1: 3}, 0)
    job.agents[1].crash_worker()
    job.run(3.0)
    claim = ReaderClaim(step=4, held=(ShardPosition(ordinal=0, position=5),))
    open_reader(job, 0, claim=claim)
    open_reader(job, 1)
    assert ledger(job).held(Reader(Group(0, rounds_of(job)[0]), 0)) == {0: 5}
    assert ledger(job).fresh == 1


def test_progress_is_written_once_a_minute() -> None:
    """A record for each report would cost a sync each."""
    job = training(2)
    for rank in range(2):
        open_reader(job, rank)
    ask(job, 0)
    before = len(job.records)
    for step in range(1, 20):
        progress(job, 0, step, {0: step})
    written = [one for one in job.records[before:] if isinstance(one.fact, ShardsCommitted)]
    assert not written
    job.run(COMMIT_SECONDS)
    reader = Reader(Group(0, rounds_of(job)[0]), 0)
    assert ledger(job).held(reader)[0] == 19


def test_what_a_replica_commits_after_it_was_told_to_end_counts() -> None:
    """Its ranks train on until they are stopped: others get the rest once its node is gone."""
    job = replicated(3)
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0, shards=6)
    assert ordinals(ask(job, 2, reader=0)) == [0]
    progress(job, 2, 6, {0: 4})
    assert ordinals(ask(job, 1, reader=0)) == [1]
    number = _told_to_end(job, 2)
    report = ReaderReport(
        dataset="d", step=8, positions=(ShardPosition(ordinal=0, position=9),), request=2, wanted=1
    )
    job.agents[2].report(report, number)
    while job.state.ledgers["d"].leaving:
        assert ledger(job).returned == {}, "nobody else is leased what it has"
        job.run(0.1)
    assert 2 not in job.state.nodes
    assert ledger(job).returned == {0: 9}
    assert (0, 9) in [(one.ordinal, one.position) for one in ask(job, 0, reader=0).held]


def _told_to_end(job: SteeredJob, rank: int) -> int:
    """Have a job of three replicas want two, until another world is decided; the round of one."""
    number = job.agents[rank].round
    job.operator.change(replicas=2)
    for _ in range(4000):
        job.run(0.001)
        if job.state.ledgers["d"].leaving:
            break
    assert job.state.ledgers["d"].leaving, job.tale()
    assert rank in job.state.nodes
    return number


def test_a_replica_that_leaves_keeps_its_shards_through_another_world() -> None:
    """Two replicas are taken away, one after the other; the first one's last report counts."""
    job = replicated(4)
    for rank in range(4):
        open_reader(job, rank, readers=1, reader=0)
    for rank in (2, 3):
        ask(job, rank, reader=0)
        job.agents[rank].ignores = (Leave,)
    number = job.agents[2].round
    for rank in (2, 3):
        job.ask(DrainNodeRequest(node_rank=rank))
        job.run(0.5)
    assert {one.replica for one in ledger(job).leaving} == {3, 4}
    held = ledger(job).held(Reader(Group(3, number), 0))
    report = ReaderReport(
        dataset="d", step=8, positions=(ShardPosition(ordinal=min(held), position=9),)
    )
    job.agents[2].report(report, number)
    job.run(LEAVE_SECONDS + 60.0)
    assert ledger(job).leaving == {}
    assert ledger(job).returned[min(held)] == 9


def test_a_replica_that_was_told_to_end_and_stays_keeps_no_shard_for_ever() -> None:
    """Also under the next master others read them, after the time to stop and some more."""
    job = replicated(3)
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0, shards=6)
    assert ordinals(ask(job, 2, reader=0)) == [0]
    job.agents[2].ignores = (Leave,)
    _told_to_end(job, 2)
    job.restart_master()
    begun = job.time.now
    while job.state.ledgers["d"].leaving:
        job.run(0.5)
    assert 2 in job.state.nodes
    assert job.time.now - begun < LEAVE_SECONDS + 5.0
    assert ledger(job).returned == {0: 0}


def test_the_end_is_not_told_while_a_replica_that_leaves_may_have_shards_left() -> None:
    """Who was told so would end, and nobody would read them."""
    job = replicated(3)
    for rank in range(3):
        open_reader(job, rank, readers=1, reader=0, shards=2)
    assert ordinals(ask(job, 2, wanted=1, reader=0)) == [0]
    assert ordinals(ask(job, 0, wanted=1, reader=0)) == [1]
    _told_to_end(job, 2)
    progress(job, 0, 6, {}, 1)
    job.agents[0].report(ReaderReport(dataset="d", request=2, wanted=1), job.agents[0].round)
    job.run(20.0)
    answers = [one for node, one in job.sent if node == 0 and isinstance(one, ShardsLeased)]
    assert ordinals(answers[-1]) == [0]
    assert not any(one.ended for one in answers)


def test_a_replica_that_joins_costs_no_record_of_the_whole_ledger() -> None:
    """Its claims are void: it is given the state of those that train."""
    job = replicated(2)
    open_reader(job, 0, readers=1, reader=0)
    assert ordinals(ask(job, 0, reader=0)) == [0, 1]
    old = ReaderClaim(step=3, held=(ShardPosition(ordinal=0, position=7),))
    open_reader(job, 1, readers=1, reader=0, claim=old)
    assert ordinals(ask(job, 1, reader=0)) == [2, 3]
    assert len([one for one in job.records if isinstance(one.fact, ShardLedger)]) == 1
    assert len(ledger(job).groups) == 2


def test_the_end_is_told_when_nothing_is_left() -> None:
    """Also to one that asks much later."""
    job = training(2)
    for rank in range(2):
        open_reader(job, rank, shards=2)
    assert not ask(job, 0, wanted=1).ended
    assert not ask(job, 1, wanted=1).ended
    assert ask(job, 0, request=2).ended
    assert ask(job, 1, request=2).ended


def test_a_job_that_succeeds_without_some_shards_says_so() -> None:
    """A replica was told of the end, ended, and the one with the last shard is lost after it."""
    job = replicated(2)
    for rank in range(2):
        open_reader(job, rank, readers=1, reader=0, shards=2)
        assert ordinals(ask(job, rank, wanted=1, reader=0)) == [rank]
    progress(job, 0, 6, {}, 0)
    assert ask(job, 0, request=2, reader=0).ended
    progress(job, 1, 6, {1: 4})
    for rank in range(2):
        job.agents[rank].workers.exit(0, 0)
    job.run(60.0)
    assert job.is_in("SUCCEEDED"), job.tale()
    (text,) = job.texts(EventReason.SHARDS_NOT_READ)
    assert "1 shard of dataset d" in text


def test_a_job_that_has_read_all_shards_says_nothing() -> None:
    """Also where the last of them were not written down yet."""
    job = replicated(2)
    for rank in range(2):
        open_reader(job, rank, readers=1, reader=0, shards=2)
        assert ordinals(ask(job, rank, wanted=1, reader=0)) == [rank]
        progress(job, rank, 6, {}, rank)
    for rank in range(2):
        job.agents[rank].workers.exit(0, 0)
    job.run(60.0)
    assert job.is_in("SUCCEEDED"), job.tale()
    assert not job.texts(EventReason.SHARDS_NOT_READ)
