"""The master's part in checkpoints: grants, announcements, and what a world starts from."""

from __future__ import annotations

import dataclasses

from holdfast_master.instructions import Record, Send
from holdfast_wire import messages as wire
from messages.restores import restore_request
from simulation.steered.job import SteeredJob, training


def v(step: int, lineage: int = 1) -> wire.CheckpointVersion:
    """A version."""
    return wire.CheckpointVersion(lineage=lineage, step=step)


def say(job: SteeredJob, rank: int, message: object, number: int = 0) -> list[tuple[int, object]]:
    """An agent says something about a round (0: the newest); return (node, what it is sent)."""
    return [
        (job.rank_of(item.session), item.response.message)
        for item in job.say(rank, message, number or None)
        if isinstance(item, Send)
    ]


def shard(step: int, rank: int, world: int = 2) -> wire.ShardsPersisted:
    """A node of one rank has its part of a step on storage."""
    return wire.ShardsPersisted(
        version=v(step), world_size=world, ranks=(rank,), root="/r", attempt="a", bytes=10
    )


def grants(sent: list[tuple[int, object]]) -> list[tuple[int, wire.CommitGrant]]:
    """The grants among what was sent."""
    return [(rank, message) for rank, message in sent if isinstance(message, wire.CommitGrant)]


def announced(sent: list[tuple[int, object]]) -> dict[int, wire.CommitAnnounced]:
    """The announcements among what was sent."""
    return {rank: message for rank, message in sent if isinstance(message, wire.CommitAnnounced)}


def granted(job: SteeredJob, step: int = 10) -> tuple[int, wire.CommitGrant]:
    """Have a step's parts reported; return who was granted the commit."""
    assert say(job, 0, shard(step, 0)) == []
    ((rank, grant),) = grants(say(job, 1, shard(step, 1)))
    return rank, grant


def done(grant: wire.CommitGrant, error: str = "") -> wire.CommitResult:
    """The answer to a grant."""
    return wire.CommitResult(version=grant.version, own=grant.own, error=error)


def test_a_step_is_announced_once_every_part_is_there_and_one_agent_has_committed_it() -> None:
    """The journal says so before any agent hears of it."""
    job = training(2)
    rank, grant = granted(job)
    assert (grant.root, grant.attempt, grant.world_size) == ("/r", "a", 2)
    before = len(job.records)
    sent = say(job, rank, done(grant))
    assert announced(sent) == {
        0: wire.CommitAnnounced(version=v(10)),
        1: wire.CommitAnnounced(version=v(10)),
    }
    facts = [record.fact for record in job.records[before:]]
    assert facts[0] == wire.CheckpointCommitted(version=v(10), world_size=2, root="/r")
    assert job.status.stored_step == 10
    assert job.refold() == job.state


def test_the_record_of_a_commit_is_durable() -> None:
    """A master that dies after the first announcement leaves a successor that knows."""
    job = training(2)
    rank, grant = granted(job)
    batch = job.say(rank, done(grant))
    kept = [item for item in batch if isinstance(item, Record)]
    assert [item.durable for item in kept if isinstance(item.fact, wire.CheckpointCommitted)] == [
        True
    ]


def test_parts_that_are_told_twice_are_one_part() -> None:
    """And a node that did not hear of its grant, or of the end, is told again."""
    job = training(2)
    assert say(job, 0, shard(10, 0)) == []
    assert say(job, 0, shard(10, 0)) == []
    ((rank, grant),) = grants(say(job, 1, shard(10, 1)))
    assert grants(say(job, 1 - rank, shard(10, 1 - rank))) == []
    assert grants(say(job, rank, shard(10, rank))) == [(rank, grant)]
    say(job, rank, done(grant))
    assert announced(say(job, 1, shard(10, 1))) == {1: wire.CommitAnnounced(version=v(10))}


def test_a_lost_coordinator_is_followed_by_another_with_a_name_of_its_own() -> None:
    """So the first one, should it live, finds nothing to commit, and its answer counts no more."""
    job = training(3)
    for rank in (0, 1):
        assert say(job, rank, shard(10, rank, world=3)) == []
    ((first, grant),) = grants(say(job, 2, shard(10, 2, world=3)))
    job.sent.clear()
    job.agents[first].crash()
    job.run(1.0)
    ((second, anew),) = grants(job.sent)
    assert second != first
    assert anew.own != grant.own
    assert anew.own.startswith(grant.attempt)
    assert announced(say(job, second, done(grant))) == {}, "the old name"
    assert second in announced(say(job, second, done(anew)))


def test_a_step_that_cannot_be_written_or_committed_is_told_with_the_reason() -> None:
    """Its ranks stop waiting; what was committed before is as it was."""
    job = training(2)
    rank, grant = granted(job)
    sent = announced(say(job, rank, done(grant, error="the disk is full")))
    assert {node: "the disk is full" in word.error for node, word in sent.items()} == {
        0: True,
        1: True,
    }
    assert job.status.stored_step == 0
    say(job, 0, shard(20, 0))
    failed = wire.ShardsPersisted(version=v(20), world_size=2, root="/r", attempt="a", error="EIO")
    sent = announced(say(job, 1, failed))
    assert {node: word.version for node, word in sent.items()} == {0: v(20), 1: v(20)}
    assert job.reasons().count("CheckpointFailed") == 2


def test_a_new_master_grants_what_its_predecessor_did_not_see_committed() -> None:
    """The agents say again what lies on storage, and one of them gets the grant."""
    job = training(2)
    _, grant = granted(job)
    job.restart_master(0.5)
    job.run(3.0)
    _, anew = granted(job)
    assert anew.own != grant.own


def test_what_was_saved_while_no_master_was_there_ends_and_the_newest_is_not_lost() -> None:
    """Eight commits at a time; of more than 64 steps the oldest are told to be given up."""
    job = training(2)
    steps = range(5, 505, 5)
    told, open_grants = dict[int, str](), list[tuple[int, wire.CommitGrant]]()

    def hear(sent: list[tuple[int, object]]) -> None:
        open_grants.extend(grants(sent))
        for word in announced(sent).values():
            assert word.version is not None
            told[word.version.step] = word.error

    for step in steps:
        hear(say(job, 0, shard(step, 0)))
        hear(say(job, 1, shard(step, 1)))
    assert len(open_grants) == 8
    while open_grants:
        rank, grant = open_grants.pop(0)
        hear(say(job, rank, done(grant)))
        assert len(open_grants) <= 8
    assert sorted(told) == list(steps), "each step has an end"
    kept = [step for step, error in told.items() if not error]
    assert sorted(kept) == [*steps[:8], *steps[-56:]]
    assert job.status.stored_step == steps[-1]


def test_nobody_starts_before_everybody_has_asked_and_looked() -> None:
    """Then all start from the same version: the newest that all have."""
    job = training(2)
    assert say(job, 0, restore_request(memory=(v(9), v(8)), storage=(v(5),))) == []
    sent = say(job, 1, restore_request(memory=(v(8),), storage=(v(5),)))
    asked = {rank: word for rank, word in sent if isinstance(word, wire.RestorePlan)}
    assert {rank: (o.version, o.tier, o.go, o.share, o.shares) for rank, o in asked.items()} == {
        0: (v(8), wire.Tier.MEMORY, False, 0, 2),
        1: (v(8), wire.Tier.MEMORY, False, 1, 2),
    }
    number = asked[0].plan_id
    assert say(job, 0, wire.RestorePlanVerified(plan_id=number)) == []
    assert say(job, 1, wire.RestorePlanVerified(plan_id=number + 7)) == [], "another one's"
    sent = say(job, 1, wire.RestorePlanVerified(plan_id=number))
    assert {rank: (o.version, o.go) for rank, o in sent if isinstance(o, wire.RestorePlan)} == {
        0: (v(8), True),
        1: (v(8), True),
    }
    assert "CheckpointRestored" in job.reasons()


def test_a_world_that_starts_from_a_checkpoint_has_reached_its_step() -> None:
    """Its ranks have completed none themselves yet; the step shown does not fall to 0."""
    job = training(2)
    before = job.status.step
    assert before > 9
    job.agents[0].crash_worker()
    job.run_until("STARTING")
    for rank in (0, 1):
        say(job, rank, wire.Heartbeat(ranks=(wire.RankProgress(round=2, has_sdk=True),)))
    assert job.status.step > 9, "not decided yet: the best that was known"
    say(job, 0, restore_request(memory=(v(9),)))
    sent = say(job, 1, restore_request(memory=(v(9),)))
    number = next(word for _, word in sent if isinstance(word, wire.RestorePlan)).plan_id
    for rank in (0, 1):
        say(job, rank, wire.RestorePlanVerified(plan_id=number))
    status = job.status
    assert (status.phase.name, status.step) == ("STARTING", 9)


def _part(step: int, ranks: tuple[int, ...], *, whole: bool = False) -> wire.HeldPart:
    return wire.HeldPart(version=v(step), world_size=2, ranks=ranks, whole=whole, world="w1")


def test_nodes_are_told_whose_memory_has_what_they_lack() -> None:
    """Each the address of the others' agents, to look and to go; who has all, nobody."""
    job = training(3)
    say(job, 0, restore_request(parts=(_part(9, (0,)),), storage=(v(5),)))
    say(job, 1, restore_request(parts=(_part(9, (1,)),), storage=(v(5),)))
    sent = say(job, 2, restore_request(storage=(v(5),)))
    lent = [wire.PartSource(node_rank=n, address=str(n), ranks=(n,)) for n in range(2)]
    wanted = {0: (lent[1],), 1: (lent[0],), 2: tuple(lent)}
    assert {rank: (o.version, o.tier, o.go, o.sources) for rank, o in _origins(sent)} == {
        rank: (v(9), wire.Tier.MEMORY, False, sources) for rank, sources in wanted.items()
    }
    number = _origins(sent)[0][1].plan_id
    for rank in (0, 1):
        say(job, rank, wire.RestorePlanVerified(plan_id=number))
    sent = say(job, 2, wire.RestorePlanVerified(plan_id=number))
    assert {rank: (o.go, o.partial, o.sources) for rank, o in _origins(sent)} == {
        rank: (True, False, sources) for rank, sources in wanted.items()
    }
    again = say(job, 2, restore_request(storage=(v(5),)))
    assert [o.sources for _, o in _origins(again)] == [wanted[2]], "who asks again hears it again"


def _origins(sent: list[tuple[int, object]]) -> list[tuple[int, wire.RestorePlan]]:
    return [(rank, word) for rank, word in sent if isinstance(word, wire.RestorePlan)]


def test_a_part_that_cannot_be_read_leads_to_storage() -> None:
    """A source that does not answer is as bad as damage; the event names it."""
    job = training(2)
    say(job, 0, restore_request(parts=(_part(9, (0,), whole=True),), storage=(v(5),)))
    sent = say(job, 1, restore_request(storage=(v(5),)))
    assert {(o.tier, o.partial) for _, o in _origins(sent)} == {(wire.Tier.MEMORY, True)}
    found = _looked(job, sent, error="node 0 does not answer")
    assert (found.version, found.tier, found.sources) == (v(5), wire.Tier.STORAGE, ())
    assert "CheckpointDamaged" in job.reasons()


def test_a_new_master_names_the_sources_again() -> None:
    """Of what an earlier one has told some nodes, from what all say that they hold."""
    job = training(2)
    told = wire.RestorePlan(plan_id=77, version=v(6), tier=wire.Tier.MEMORY, go=True)
    say(job, 0, restore_request(parts=(_part(6, (0,), whole=True),), told=told))
    sent = say(job, 1, restore_request(storage=(v(9),)))
    source = wire.PartSource(node_rank=0, address="0", ranks=(0,))
    assert {rank: (o.version, o.go, o.sources) for rank, o in _origins(sent)} == {
        0: (v(6), True, ()),
        1: (v(6), True, (source,)),
    }


def test_what_a_world_started_from_is_not_passed_over_by_those_who_have_no_part() -> None:
    """A slow node still reads it while others save already."""
    job = training(2)
    say(job, 0, restore_request(parts=(_part(9, (0,), whole=True),)))
    sent = say(job, 1, restore_request())
    _looked(job, sent)
    say(job, 0, wire.MemoryCheckpoints(versions=(v(9),), whole=True))
    say(job, 1, wire.MemoryCheckpoints(versions=(v(1, 3),)))
    book = job.context.checkpoints.tracker
    assert book.passed_over == set()
    say(job, 0, wire.MemoryCheckpoints(versions=(v(2, 3), v(9))))
    assert book.passed_over == {v(1, 3)}, "that one can never be complete"


def _looked(job: SteeredJob, sent: list[tuple[int, object]], error: str = "") -> wire.RestorePlan:
    """Let node 1 find its share damaged, or both find theirs intact; return what follows."""
    (origin,) = {o.plan_id: o for _, o in sent if isinstance(o, wire.RestorePlan)}.values()
    if not error:
        say(job, 0, wire.RestorePlanVerified(plan_id=origin.plan_id))
    sent = say(job, 1, wire.RestorePlanVerified(plan_id=origin.plan_id, error=error))
    (following,) = {o.plan_id: o for _, o in sent if isinstance(o, wire.RestorePlan)}.values()
    return following


def test_damage_leads_to_the_other_tier_then_to_an_older_step() -> None:
    """Each copy that is passed over is named, in an event and to the ranks."""
    job = training(2)
    question = restore_request(memory=(v(9),), storage=(v(9), v(5)))
    say(job, 0, question)
    sent = say(job, 1, question)
    found = _looked(job, sent, error="slot 1 of rank 1 is damaged")
    assert (found.version, found.tier) == (v(9), wire.Tier.STORAGE)
    found = _looked(job, [(0, found)], error="file 0 is damaged")
    assert (found.version, found.tier) == (v(5), wire.Tier.STORAGE)
    assert "slot 1 of rank 1" in " ".join(found.notes)
    found = _looked(job, [(0, found)], error="and this one")
    assert (found.version, found.go) == (None, True)
    assert job.reasons().count("CheckpointDamaged") == 3


def test_something_older_than_was_announced_is_never_taken_in_silence() -> None:
    """The directory may have been emptied behind everybody's back: an event names the step."""
    job = training(2)
    rank, grant = granted(job, 10)
    say(job, rank, done(grant))
    job.agents[0].crash_worker()
    job.run(8.0)
    assert job.status.round == 2
    job.context.checkpoints.tracker.done.clear()  # as after a change of the master
    say(job, 0, restore_request(storage=(v(4),)))
    say(job, 1, restore_request(storage=(v(4),)))
    assert "CheckpointLost" in job.reasons()


def test_a_start_waits_for_a_commit_that_was_granted() -> None:
    """A world starts from a step that becomes durable while its start waits."""
    job = training(2)
    rank, grant = granted(job, 10)
    question = restore_request(storage=(v(5),))
    assert say(job, 0, question) == []
    assert say(job, 1, question) == []
    sent = say(job, rank, done(grant))
    assert {o.version for _, o in sent if isinstance(o, wire.RestorePlan)} == {v(10)}


def test_what_an_earlier_master_has_told_some_is_told_to_all() -> None:
    """Its ranks have begun from it: another choice would mix two steps."""
    job = training(2)
    told = wire.RestorePlan(plan_id=77, version=v(6), tier=wire.Tier.MEMORY, go=True)
    say(job, 0, restore_request(memory=(v(9), v(6)), told=told))
    sent = say(job, 1, restore_request(memory=(v(9), v(6))))
    assert {(o.version, o.go) for _, o in sent if isinstance(o, wire.RestorePlan)} == {(v(6), True)}


def test_questions_of_another_round_or_of_an_outsider_are_nobodys() -> None:
    """They begin nothing."""
    job = training(2)
    for number in (7, 3):
        assert say(job, 0, restore_request(memory=(v(9),)), number) == []
        assert say(job, 1, restore_request(memory=(v(9),)), number) == []
        assert say(job, 0, wire.MemoryCheckpoints(versions=(v(9),)), number) == []


def test_memory_goes_only_when_all_nodes_have_something_newer() -> None:
    """And what some node has left out is told, so that nobody keeps it for ever."""
    job = training(2)
    assert say(job, 0, wire.MemoryCheckpoints(versions=(v(3), v(2)))) == []
    sent = say(job, 1, wire.MemoryCheckpoints(versions=(v(2),)))
    assert {m.complete for _, m in sent if isinstance(m, wire.ReleaseCheckpoints)} == {v(2)}
    assert {rank for rank, _ in sent} == {0, 1}
    sent = say(job, 1, wire.MemoryCheckpoints(versions=(v(4), v(2))))
    ((complete, passed),) = {
        (m.complete, m.passed_over) for _, m in sent if isinstance(m, wire.ReleaseCheckpoints)
    }
    assert (complete, passed) == (v(2), (v(3),))
    sent = say(job, 0, wire.MemoryCheckpoints(versions=(v(4), v(2))))
    assert {m.complete for _, m in sent if isinstance(m, wire.ReleaseCheckpoints)} == {v(4)}


def test_agents_keep_checkpoints_only_where_all_of_a_world_do() -> None:
    """A plain torchrun among them keeps none: then every rank sees for itself, as it does there."""
    job = training(2)
    assert [world.keeps_checkpoints for *_, world in job.assignments] == [True, True]
    node = job.context.membership.nodes[1]
    assert node.hello is not None
    node.hello = dataclasses.replace(node.hello, keeps_checkpoints=False)
    job.agents[0].crash_worker()
    job.run(8.0)
    assert [world.keeps_checkpoints for *_, world in job.assignments[2:]] == [False, False]
    assert job.refold() == job.state
