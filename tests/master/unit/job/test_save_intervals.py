"""Steps between checkpoints: all ranks change them after the same step, or none does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast_master.core import Core
from holdfast_master.instructions import Record
from holdfast_master.job.worlds import assignment
from holdfast_wire import messages as wire
from holdfast_wire.tiers import by_tier, to_intervals
from simulation.steered.job import SteeredJob, started, training


def _costs(
    memory: float,
    storage: float,
    memory_every: int | None = None,
    storage_every: int | None = None,
) -> wire.SavingReport:
    """What a node's saves cost, s, and the script's own numbers."""
    costs = (
        wire.TierCost(tier=wire.Tier.MEMORY, stop_seconds=memory, every=memory_every),
        wire.TierCost(
            tier=wire.Tier.STORAGE, stop_seconds=storage, durable_seconds=1.0, every=storage_every
        ),
    )
    return wire.SavingReport(step_seconds=0.1, costs=costs)


COSTS = _costs(0.01, 0.2)


def followed(nodes: int = 3, costs: wire.SavingReport = COSTS, **changes: Any) -> SteeredJob:
    """A job that trains, whose ranks follow the master's schedule."""
    return training(nodes, agents={"costs": costs}, **changes)


def _policy(**every: int) -> wire.CheckpointPolicy:
    """What a job's file says of these tiers."""
    given = {wire.Tier[name.upper()]: number for name, number in every.items()}
    return wire.CheckpointPolicy(intervals=to_intervals(given))


def _every(
    message: wire.ScheduleConfirmed | wire.SetSchedule | wire.WorldAssignment,
) -> tuple[int, ...]:
    """Steps between saves to memory and to storage."""
    return tuple(by_tier(message.intervals).values())


def _told(job: SteeredJob) -> list[list[wire.SetSchedule]]:
    return [agent.schedules for _, agent in sorted(job.agents.items())]


def _shown(job: SteeredJob) -> dict[wire.Tier, int]:
    status = job.status
    return {one.tier: one.every for one in status.checkpoint_intervals}


def _fact(job: SteeredJob) -> wire.ScheduleConfirmed:
    fact = job.state.schedule
    assert fact is not None
    return fact


def test_a_world_begins_with_what_ranks_do_without_a_master() -> None:
    """Until something was measured; the assignment says it, and the status shows it."""
    job = followed(2, costs=wire.SavingReport())
    job.run(100.0)
    assert [_every(world) for *_, world in job.assignments] == [(1, 100)] * 2
    assert _shown(job) == {wire.Tier.MEMORY: 1, wire.Tier.STORAGE: 100}
    assert _told(job) == [[], []]
    reasons = [one.reason for one in job.status.checkpoint_intervals]
    assert reasons == ["unchanged until this round has measured a save"] * 2


def test_all_ranks_are_told_one_schedule_and_then_that_all_know_it() -> None:
    """The offer first; what it says is confirmed once every node has heard of it, and recorded."""
    job = followed(3)
    job.run(60.0)
    told = _told(job)
    assert told[0] == told[1] == told[2]
    offer, confirmed = told[0]
    assert (offer.confirmed, confirmed.confirmed) == (False, True)
    assert dataclasses.replace(offer, confirmed=True) == confirmed
    assert max(agent.seen[offer.schedule_id] for agent in job.agents.values()) <= offer.step
    fact = _fact(job)
    assert (fact.schedule_id, fact.step, fact.round) == (offer.schedule_id, offer.step, 1)
    assert _shown(job) == by_tier(offer.intervals)
    assert job.reasons().count("CheckpointScheduled") == 1


def test_the_slowest_node_is_what_saving_costs() -> None:
    """All ranks wait for it; an interval is longer where a save costs more."""
    job, slow = followed(2), followed(2)
    slow.agents[1].costs = _costs(0.16, 3.2)
    job.run(60.0)
    slow.run(60.0)
    fourfold = [4 * every for every in _every(_fact(job))]
    assert list(_every(_fact(slow))) == pytest.approx(fourfold, rel=0.25)


def test_a_rank_that_had_passed_the_step_makes_it_a_later_one() -> None:
    """Under a new number, each further away; only what all heard in time is confirmed."""
    job = followed(2)
    job.agents[1].slow_steps = 40
    job.run(120.0)
    for told in _told(job):
        offers = [one for one in told if not one.confirmed]
        assert len(offers) > 1
        assert [one.schedule_id for one in offers] == sorted({one.schedule_id for one in offers})
        assert [one.step for one in offers] == sorted({one.step for one in offers})
        (confirmed,) = [one for one in told if one.confirmed]
        assert confirmed.schedule_id == offers[-1].schedule_id
        assert confirmed.step >= job.agents[1].seen[confirmed.schedule_id]


def test_what_one_rank_never_hears_is_never_confirmed() -> None:
    """It is offered again and again; the others do not do without the old schedule."""
    job = followed(3)
    job.agents[2].deaf = True
    job.run(120.0)
    assert job.state.schedule is None
    assert not any(one.confirmed for told in _told(job) for one in told)
    assert len(_told(job)[0]) > 2
    assert _shown(job) == {wire.Tier.MEMORY: 1, wire.Tier.STORAGE: 100}
    job.agents[2].deaf = False
    job.run(120.0)
    assert [told[-1].confirmed for told in _told(job)] == [True] * 3


def test_a_node_that_was_away_hears_it_when_it_is_back() -> None:
    """A node that was away gets the offer and its confirmation late. The others wait for it."""
    job = followed(2)
    job.run(27.0)
    job.agents[1].cut_off()
    job.run(3.0)
    assert job.context.checkpoints.schedule.offer is not None
    assert _told(job)[1] == []
    job.agents[1].reachable()
    job.run(60.0)
    assert [told[-1] for told in _told(job)] == [_told(job)[0][-1]] * 2
    assert _told(job)[1][-1].confirmed


def test_nothing_is_told_where_a_node_follows_no_schedule() -> None:
    """A script of its own on one node, or without a Checkpointer."""
    job = followed(2)
    job.agents[1].costs = None
    job.run(90.0)
    assert _told(job) == [[], []]
    assert _shown(job) == {}


def test_a_better_schedule_takes_its_place_and_a_near_one_does_not() -> None:
    """Hysteresis: a little more cost changes nothing, much more does."""
    job = followed(2)
    job.run(60.0)
    first = _fact(job)
    for agent in job.agents.values():
        agent.costs = _costs(0.012, 0.22)
    job.run(120.0)
    assert _fact(job) == first
    for agent in job.agents.values():
        agent.costs = _costs(0.05, 1.0)
    job.run(120.0)
    second = _fact(job)
    assert second.schedule_id > first.schedule_id
    assert second.step > first.step
    assert _every(second)[0] > 1.25 * _every(first)[0]


def test_the_spec_s_numbers_hold_from_the_start_and_when_they_change() -> None:
    """Without anything measured to begin with; a change of them is an offer like any other."""
    job = followed(2, checkpoint=_policy(memory=5, storage=40))
    job.run(60.0)
    assert {_every(world) for *_, world in job.assignments} == {(5, 40)}
    assert _told(job) == [[], []]
    job.operator.change(checkpoint=_policy(memory=5, storage=60))
    job.run(60.0)
    assert [_every(one) for one in _told(job)[1]] == [(5, 60)] * 2
    job.operator.change(checkpoint=_policy(memory=0, storage=0))
    job.run(60.0)
    assert _shown(job)[wire.Tier.MEMORY] not in {5, 1}


def test_the_script_s_numbers_win() -> None:
    """The other tier is fitted to them; the status says whose they are."""
    job = followed(2, costs=_costs(0.01, 0.2, memory_every=3), checkpoint=_policy(memory=7))
    job.run(60.0)
    shown = {one.tier: one for one in job.status.checkpoint_intervals}
    assert (shown[wire.Tier.MEMORY].every, shown[wire.Tier.MEMORY].reason) == (
        3,
        "the script says so",
    )
    assert shown[wire.Tier.STORAGE].every % 3 == 0
    assert shown[wire.Tier.STORAGE].every != 100
    only = followed(2, costs=_costs(0.01, 0.2, memory_every=0))
    only.run(60.0)
    assert _shown(only)[wire.Tier.MEMORY] == 0
    assert _shown(only)[wire.Tier.STORAGE] != 100


def test_ranks_that_are_made_anew_begin_with_what_held() -> None:
    """After a failure the assignment carries it, on every node; the offer died with its world."""
    job = followed(2)
    job.run(60.0)
    held = _fact(job)
    job.agents[0].crash_worker()
    job.run(5.0)
    job.run_until("TRAINING")
    again = [world for *_, world in job.assignments[2:]]
    assert {world.intervals for world in again} == {held.intervals}
    assert _shown(job) == by_tier(held.intervals)


def test_failures_are_counted_by_the_tier_that_they_go_back_to() -> None:
    """A process leaves the memory, a node takes it; a drain at a barrier loses nothing."""
    job = followed(3)
    job.run(20.0)
    job.agents[0].crash_worker()
    job.run(40.0)
    state = job.state
    assert state.tier_failures == {wire.Tier.MEMORY: 1}
    job.agents[1].crash()
    job.run(60.0)
    assert state.tier_failures == {wire.Tier.MEMORY: 1, wire.Tier.STORAGE: 1}
    job.ask(wire.DrainNodeRequest(node_rank=2))
    job.run(60.0)
    assert state.tier_failures == {wire.Tier.MEMORY: 1, wire.Tier.STORAGE: 1}
    assert state.trained_seconds == pytest.approx(120, abs=20)


def test_a_new_master_knows_from_the_journal_what_was_confirmed() -> None:
    """It tells nobody anything new, and goes on from there."""
    job = followed(2)
    job.run(60.0)
    held = _fact(job)
    job.restart_master(1.0)
    job.run(90.0)
    assert _fact(job) == held
    assert {one.schedule_id for told in _told(job) for one in told} == {held.schedule_id}
    assert _shown(job) == by_tier(held.intervals)


def test_a_master_that_dies_between_offer_and_word_leaves_an_offer_behind() -> None:
    """Its successor offers anew under a newer number, and that one is confirmed."""
    job = followed(2)
    job.agents[1].deaf = True
    job.run(40.0)
    old = max(one.schedule_id for one in _told(job)[0])
    job.kill_master()
    job.agents[1].deaf = False
    job.run(1.0)
    job.start_master()
    job.run(90.0)
    assert [told[-1].confirmed for told in _told(job)] == [True, True]
    assert _fact(job).schedule_id > old


def test_a_master_without_a_journal_brings_all_ranks_to_one_schedule() -> None:
    """It does not know what was confirmed, so it does not rely on it."""
    job = followed(2)
    job.run(60.0)
    old = _fact(job)
    job.restart_master(1.0, journal=False)
    job.run(90.0)
    assert _fact(job).schedule_id > old.schedule_id
    assert [told[-1].schedule_id for told in _told(job)] == [_fact(job).schedule_id] * 2


def test_the_journal_alone_gives_schedule_and_counts() -> None:
    """No clock in them: the fold of the records is the state."""
    job = followed(2)
    job.run(60.0)
    job.agents[0].crash_worker()
    job.run(60.0)
    context = job.context
    restored = Core(context.identity, context.settings, list(job.records)).job.state
    assert restored.schedule == context.state.schedule
    assert restored.tier_failures == context.state.tier_failures == {wire.Tier.MEMORY: 1}
    assert restored.trained_seconds == context.state.trained_seconds > 0
    assert restored.trains_since == context.state.trains_since


def test_it_is_written_down_before_anybody_may_rely_on_it() -> None:
    """The record stands before the words in its batch, and is on disk before they go out."""
    job = followed(2)
    job.run(20.0)
    job.instructions.clear()
    job.run(30.0)
    seen = job.instructions
    records = [
        at
        for at, item in enumerate(seen)
        if isinstance(item, Record) and isinstance(item.fact, wire.ScheduleConfirmed)
    ]
    words = [
        at
        for at, item in enumerate(seen)
        if isinstance(
            message := getattr(getattr(item, "response", None), "message", None), wire.SetSchedule
        )
        and message.confirmed
    ]
    assert len(records) == 1
    record = seen[records[0]]
    assert isinstance(record, Record)
    assert record.durable
    assert words
    assert records[0] < min(words)


def test_the_base_of_a_job_is_its_spec_s() -> None:
    """Numbers in the spec go before what held last."""
    job = followed(2)
    job.run(60.0)
    context = job.context
    first = assignment.first_intervals(context.spec, context.state.schedule)
    assert to_intervals(first) == _fact(job).intervals
    job.operator.change(checkpoint=_policy(memory=9))
    job.run(1.0)
    assert assignment.first_intervals(context.spec, context.state.schedule)[wire.Tier.MEMORY] == 9


def _of_replicas(nodes: int = 3) -> SteeredJob:
    """A job of replicas that train, whose first one has confirmed a schedule."""
    job = started(nodes, agents={"costs": COSTS}, nodes_per_replica=1, min_replicas=1)
    job.run(60.0)
    assert [len(told) for told in _told(job)] == [2, *[0] * (nodes - 1)]
    return job


def test_a_schedule_outlives_the_loss_of_a_replica_that_does_not_save() -> None:
    """The first replica goes on with it, and hears it again when it was away."""
    job = _of_replicas()
    fact, shown = _fact(job), _shown(job)
    job.agents[2].crash_worker()
    job.run(8.0)
    assert job.state.round == 2
    assert (_fact(job), _shown(job)) == (fact, shown)
    assert len(_told(job)[0]) == 2
    job.agents[0].blip()
    job.run(5.0)
    assert [one.schedule_id for one in _told(job)[0][2:]] == [fact.schedule_id]
    assert _told(job)[0][-1].confirmed


def test_a_schedule_is_heard_while_another_replica_is_made() -> None:
    """The first replica was away when it was confirmed, and comes back while no world runs."""
    job = _of_replicas()
    hold = job.agents[2]
    hold.waiting, ready = None, hold._store_ready
    hold._store_ready = lambda name: hold.later(5.0, ready, name)  # type: ignore[assignment, method-assign]
    hold.crash_worker()
    job.run(0.5)
    assert job.context.worlds.running() is None
    job.agents[0].blip()
    job.run(2.0)
    assert job.context.worlds.running() is None
    assert _told(job)[0][-1].confirmed
    assert len(_told(job)[0]) == 3
    assert job.agents[0].rosters[-1].roster == job.state.roster


def test_a_replica_that_comes_to_save_is_told_a_schedule_of_its_own() -> None:
    """It began in the same round as the first one, and has heard of nothing."""
    job = _of_replicas()
    fact = _fact(job)
    job.agents[0].crash_worker()
    job.run(10.0)
    assert _fact(job).round == 0
    job.run(60.0)
    offer, confirmed = _told(job)[1]
    assert (offer.confirmed, confirmed.confirmed) == (False, True)
    assert confirmed.schedule_id > fact.schedule_id
    assert (_fact(job).schedule_id, _fact(job).round) == (confirmed.schedule_id, 1)
    assert job.refold().schedule == _fact(job)
