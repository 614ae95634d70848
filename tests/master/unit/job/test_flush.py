"""Steps that only memory has go to storage before their nodes go, or go apart."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from masters.checkpoint_words import Words
from simulation.steered.job import SteeredJob, training

V7 = wire.CheckpointVersion(lineage=1, step=7)
V9 = wire.CheckpointVersion(lineage=1, step=9)


def last_try(nodes: int = 2, **changes: Any) -> tuple[SteeredJob, Words]:
    """A job of two nodes that no failure may interrupt."""
    budgets = (wire.Budget(kind=wire.BudgetKind.FAILURES, limit=0),)
    job = training(nodes, budgets=budgets, **changes)
    return job, Words(job)


def failing(*held: wire.CheckpointVersion) -> tuple[SteeredJob, Words]:
    """Such a job that has just failed, with these versions in memory."""
    job, words = last_try()
    words.hold(*held)
    job.agents[1].crash_worker()
    job.run(3.0)
    return job, words


def test_a_job_that_fails_has_its_newest_steps_written_before_its_agents_leave() -> None:
    """Ranks are stopped, every node writes, one commits, and then all are told to leave."""
    job, words = last_try()
    words.hold(V9, V7)
    assert job.status.memory_step == 9
    job.agents[1].crash_worker()
    job.run(3.0)
    assert [order.version for order in words.told(wire.FlushToStorage)] == [V9, V9]
    assert len({order.attempt for order in words.told(wire.FlushToStorage)}) == 1
    assert len(words.told(wire.StopRound)) == 2
    assert not words.told(wire.Leave)
    status = job.status
    assert (status.phase.name, status.reason) == ("WAITING", "Rescue")
    assert "step 9 is written from memory to storage first" in status.text
    for rank in (0, 1):
        words.write(rank, words.told(wire.FlushToStorage, rank)[0])
    assert not words.told(wire.Leave)
    words.commit()
    assert len(words.told(wire.Leave)) == 2
    job.run_until("FAILED")
    assert job.status.stored_step == 9
    assert len(words.events("CheckpointRescuing")) == 1
    assert "step 9 is on storage" in words.events("CheckpointRescued")[0]
    assert words.events("CheckpointNotRescued") == []


def test_a_job_without_a_directory_ends_without_a_rescue_and_without_a_warning() -> None:
    """Its checkpoints were to live in memory only: nothing is tried, and nothing is wrong."""
    job, words = last_try()
    words.hold(V9, V7, memory_only=True)
    job.agents[1].crash_worker()
    job.run_until("FAILED", limit=5.0)
    assert words.told(wire.FlushToStorage) == []
    assert words.events("CheckpointRescuing") == words.events("CheckpointFailed") == []
    (told,) = (
        one for one in job.core.events_after(0, 9999) if one.reason == "CheckpointNotRescued"
    )
    assert told.severity is wire.EventSeverity.NORMAL
    assert "the ranks named no directory" in told.text


def test_a_suspended_job_without_a_directory_is_warned_of_what_it_loses() -> None:
    """It is to go on, and its pods take the only copy with them."""
    job, words = last_try()
    words.hold(V9, V7, memory_only=True)
    job.operator.change(suspend=True)
    job.run_until("SUSPENDED", limit=10.0)
    (told,) = (
        one for one in job.core.events_after(0, 9999) if one.reason == "CheckpointNotRescued"
    )
    assert told.severity is wire.EventSeverity.WARNING
    assert "was in memory and is lost: the ranks named no directory" in told.text


def test_a_directory_that_a_later_world_names_makes_rescues_possible() -> None:
    """Only the newest word of a node counts."""
    job, words = last_try()
    words.hold(V7, memory_only=True)
    words.hold(V9, V7)
    job.agents[1].crash_worker()
    job.run(3.0)
    assert [order.version for order in words.told(wire.FlushToStorage)] == [V9, V9]


def test_a_step_that_became_complete_a_moment_before_the_end_is_written_too() -> None:
    """The word of it is a little younger than the word of the crash."""
    job, words = failing(V7)
    words.hold(V9, V7)
    orders = words.told(wire.FlushToStorage, 1)
    assert [order.version for order in orders] == [V7, V9]
    for rank in (0, 1):
        words.write(rank, orders[-1])
    words.commit()
    assert job.status.stored_step == 9
    job.run_until("FAILED")


def test_a_job_of_one_node_is_saved_like_any_other() -> None:
    """Its keeper sees for itself what may leave memory; the master only hears what there is."""
    job, words = last_try(1, min_replicas=1)
    words.hold(V9, V7)
    assert not words.told(wire.ReleaseCheckpoints)
    job.agents[0].crash_worker()
    job.run(3.0)
    words.write(0, words.told(wire.FlushToStorage)[0])
    words.commit()
    job.run_until("FAILED")
    assert job.status.stored_step == 9


def test_nothing_waits_where_storage_has_it_already() -> None:
    """A job without newer steps in memory ends as fast as before."""
    job, words = last_try()
    words.hold(V9)
    for rank in (0, 1):
        words.write(rank, wire.FlushToStorage(version=V9, attempt="a"))
    words.commit()
    job.agents[0].crash_worker()
    job.run(3.0)
    assert not words.told(wire.FlushToStorage)
    job.run_until("FAILED")


def test_a_step_whose_parts_are_on_storage_is_committed_before_the_end() -> None:
    """Its coordinator is not sent away with the grant in its hands."""
    job, words = last_try()
    for rank in (0, 1):
        words.write(rank, wire.FlushToStorage(version=V9, attempt="a"))
    job.agents[1].crash_worker()
    job.run(3.0)
    assert not words.told(wire.FlushToStorage)
    assert not words.told(wire.Leave)
    words.commit()
    assert len(words.told(wire.Leave)) == 2
    job.run_until("FAILED")


def test_parts_that_were_on_their_way_are_not_written_twice() -> None:
    """The order names the attempt in which they lie."""
    job, words = last_try()
    words.hold(V9)
    words.write(0, wire.FlushToStorage(version=V9, attempt="of the schedule"))
    job.agents[1].crash_worker()
    job.run(3.0)
    assert {order.attempt for order in words.told(wire.FlushToStorage)} == {"of the schedule"}


def test_a_node_that_is_lost_meanwhile_ends_the_rescue() -> None:
    """The others' parts are of no use; the job ends, and says what is lost and why."""
    job, words = failing(V9)
    assert words.told(wire.FlushToStorage)
    job.agents[1].crash()
    job.run(1.0)
    (text,) = words.events("CheckpointNotRescued")
    assert "step 9 was in memory and is lost: node 1 had a part of it, and is gone" in text
    assert "storage has none" in text
    job.run_until("FAILED")
    assert "ReplaceRequested" not in job.reasons()


def test_a_disk_that_is_full_ends_the_rescue() -> None:
    """With the reason of the node."""
    job, words = failing(V9)
    words.write(1, words.told(wire.FlushToStorage, 1)[0], error="no space left on device")
    assert len(words.told(wire.Leave)) == 2
    assert "no space left on device" in words.events("CheckpointFailed")[0]
    assert len(words.events("CheckpointNotRescued")) == 1
    job.run_until("FAILED")


def test_the_end_does_not_wait_for_ever() -> None:
    """A node that never answers costs the setting's time."""
    job, words = failing(V9)
    job.run(job.context.settings.rescue_seconds - 5.0)
    assert not words.told(wire.Leave)
    job.run(5.0)
    assert len(words.told(wire.Leave)) == 2
    assert "was not on storage within 300 s" in words.events("CheckpointNotRescued")[0]
    job.run_until("FAILED")


def test_a_node_that_was_away_gets_the_order_again() -> None:
    """Not a Leave: it has a part of what is to be saved."""
    job, words = failing(V9)
    job.agents[1].cut_off()
    job.run(0.5)
    job.agents[1].reachable()
    job.run(2.0)
    first, second = words.told(wire.FlushToStorage, 1)
    assert first == second
    assert not words.told(wire.Leave)


def test_a_new_master_hears_what_there_is_and_finishes_the_rescue() -> None:
    """The end is in the journal; what agents hold and have written they say again."""
    job, words = failing(V9)
    order = words.told(wire.FlushToStorage, 1)[0]
    job.restart_master()
    job.run(2.0)
    assert not words.told(wire.Leave)
    words.hold(V9)
    again = words.told(wire.FlushToStorage, 1)[-1]
    assert again.version == order.version
    for rank in (0, 1):
        words.write(rank, again)
    words.commit()
    assert len(words.told(wire.Leave)) == 2
    job.run_until("FAILED")


def test_a_new_master_does_not_wait_for_agents_that_say_nothing() -> None:
    """Agents whose ranks keep no checkpoints have nothing to say."""
    job, _ = failing(V9)
    job.restart_master()
    job.run(job.context.settings.adopt_seconds + 6.0)
    assert job.is_in("FAILED")


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_stop_at_once_gives_memory_up(*, by_operator: bool) -> None:
    """A stop at once waits for no disk. The step in memory is given up."""
    job = training(2)
    words = Words(job)
    words.hold(V9)
    if by_operator:
        job.take(OperatorMessage(wire.StopRequest(grace_seconds=0.0, reason="deleted")))
    else:
        job.ask(wire.StopJobRequest(now=True))
    assert not words.told(wire.FlushToStorage)
    assert len(words.told(wire.Leave)) == 2


def test_a_person_may_end_the_wait() -> None:
    """The job fails anyway."""
    job, words = failing(V9)
    assert not words.told(wire.Leave)
    job.ask(wire.StopJobRequest(now=True))
    assert len(words.told(wire.Leave)) == 2
    assert "nobody waits for it" in words.events("CheckpointNotRescued")[0]
    job.run_until("FAILED")


def test_the_operators_patience_bounds_the_rescue() -> None:
    """A missed barrier in a grace of 20 s: the agents leave within it."""
    job = training(2)
    words = Words(job)
    for agent in job.agents.values():
        agent.save_seconds = 1e6
    words.hold(V9)
    begin = job.time.now
    job.take(OperatorMessage(wire.StopRequest(grace_seconds=20.0, reason="deleted")))
    job.run(14.0)
    assert words.told(wire.FlushToStorage)
    assert words.told(wire.StopRound)[0].grace_seconds > 0
    assert not words.told(wire.Leave)
    job.run(1.5)
    assert len(words.told(wire.Leave)) == 2
    assert job.time.now - begin < 20.0


def test_a_shrink_after_a_missed_barrier_holds_the_new_world_and_then_forms_it() -> None:
    """The drained node has a part of the newest step: it writes it before the others go on."""
    job = training(3, min_replicas=1)
    words = Words(job)
    for agent in job.agents.values():
        agent.save_seconds = 1e6
    words.hold(wire.CheckpointVersion(lineage=1, step=400), V7)
    job.context.worlds.assigned.step_seconds = 0.1  # type: ignore[union-attr]
    job.ask(wire.DrainNodeRequest(node_rank=2))
    job.run(45.0)
    status = job.status
    assert (status.round, status.reason) == (1, "Rescue")
    orders = words.told(wire.FlushToStorage)
    assert [order.version.step for order in orders] == [400] * 3
    for rank in range(3):
        words.write(rank, orders[0])
    words.commit()
    job.run(3.0)
    assert job.status.round == 2
    assert job.members == [0, 1]
    assert len(words.events("CheckpointRescued")) == 1


def test_a_world_waits_no_longer_than_the_steps_would_take_that_it_saves() -> None:
    """Nobody writes: 100 steps of 0.1 s are redone after 10 s."""
    job = training(3, min_replicas=1)
    words = Words(job)
    for agent in job.agents.values():
        agent.save_seconds = 1e6
    words.hold(wire.CheckpointVersion(lineage=1, step=100))
    world = job.context.worlds.assigned
    assert world is not None
    job.ask(wire.DrainNodeRequest(node_rank=2))
    for _ in range(600):
        world.step_seconds = 0.1
        if words.told(wire.FlushToStorage):
            break
        job.run(0.1)
    begin = job.time.now
    job.run(9.0)
    assert job.status.round == 1
    job.run(3.0)
    assert job.status.round == 2
    assert job.time.now - begin < 12.5
    assert "within 10 s" in words.events("CheckpointNotRescued")[0]


def test_a_restart_on_the_same_nodes_is_not_held_up() -> None:
    """It starts from memory."""
    job = training(3)
    words = Words(job)
    words.hold(V9)
    job.agents[1].crash_worker()
    job.run(2.0)
    assert job.status.round == 2
    assert not words.told(wire.FlushToStorage)
    assert words.events("CheckpointNotRescued") == []


def test_a_lost_node_takes_its_part_of_memory_with_it_and_nobody_waits() -> None:
    """The step is named, and what is left."""
    job = training(3, min_replicas=1)
    words = Words(job)
    words.hold(wire.CheckpointVersion(lineage=1, step=400))
    job.agents[2].crash()
    job.run(5.0)
    assert not words.told(wire.FlushToStorage)
    (text,) = words.events("CheckpointNotRescued")
    assert "step 400 was in memory and is lost: node 2" in text


def test_memory_of_the_round_before_counts_until_the_new_round_has_begun() -> None:
    """A world that dies at its start has not emptied anything."""
    job, words = last_try(2)
    words.hold(V9)
    context = job.context
    memory = context.checkpoints.tracker.memory
    context.checkpoints.tracker.enter(2, context.checkpoints.tracker.members, 2)
    assert context.checkpoints.tracker.complete is None
    assert context.checkpoints.tracker.memory == memory


def test_a_coordinator_that_hangs_is_replaced_and_the_step_is_given_up_at_last() -> None:
    """Another name each time, which fences the one before; three agents in turn."""
    job = training(3)
    words = Words(job)
    seconds = job.context.settings.commit_seconds
    for rank in range(3):
        words.write(rank, wire.FlushToStorage(version=V9, attempt="a"))
    grants = {0: words.told(wire.CommitGrant, 0)[0]}
    job.run(seconds - 1.0)
    assert len(words.told(wire.CommitGrant)) == 1
    job.run(1.5)
    grants[1] = words.told(wire.CommitGrant, 1)[0]
    assert grants[1].own != grants[0].own
    words.say(0, wire.CommitResult(version=V9, own=grants[0].own))
    assert job.status.stored_step == 0
    job.run(2 * seconds)
    assert len(words.told(wire.CommitGrant, 2)) == 1
    assert len(words.told(wire.CommitGrant)) == 3
    assert "node 0 has not committed step 9 within 60 s" in words.events("CommitHangs")[0]
    assert "nodes 0-2 did not commit it" in words.events("CheckpointFailed")[0]
    assert job.is_in("TRAINING")


def test_the_second_coordinators_commit_counts() -> None:
    """The step is announced as any other."""
    job = training(2)
    words = Words(job)
    for rank in range(2):
        words.write(rank, wire.FlushToStorage(version=V9, attempt="a"))
    job.run(job.context.settings.commit_seconds + 1.0)
    words.commit(1)
    assert job.status.stored_step == 9
    assert not job.context.checkpoints.tracker.pending
