"""Stragglers of a running world: from samples of collectives to an event."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.page_sample import Section
from holdfast_master.job.health import stragglers
from holdfast_master.job.state.health import GroupHistory
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from simulation.steered.job import training
from simulation.steered.samples import Sampler

POLICY = wire.StragglerPolicy(
    mode=wire.HealthMode.REPORT, slowdown_percent=10, window_steps=5, votes=3, votes_out_of=5
)


def _judged(group: GroupHistory) -> set[int]:
    """The ranks of the newest window."""
    return set(group.window.ranks) if group.window is not None else set()


def _health(**changes: object) -> wire.HealthPolicy:
    return wire.HealthPolicy(straggler=dataclasses.replace(POLICY, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_node_that_becomes_slow_is_named_and_later_cleared(nodes: int) -> None:
    """Within 20 steps at these thresholds; clocks that differ by minutes do not matter."""
    sampled = Sampler(training(nodes, health=_health()))
    sampled.offsets = {1: 200.0, 0: -55.0}
    sampled.repeat(10)
    assert not sampled.job.texts(EventReason.STRAGGLER_FOUND)
    sampled.steps(20, {1: 0.03})
    (text,) = sampled.job.texts(EventReason.STRAGGLER_FOUND)
    assert "1" in text
    sampled.repeat(6)
    assert len(sampled.job.texts(EventReason.STRAGGLER_GONE)) == 1


def test_a_verdict_counts_steps_as_the_script_does() -> None:
    """A run that went on from a checkpoint is slow since the step that its script names."""
    sampled = Sampler(training(2, health=_health()))
    sampled.before = 5000
    sampled.repeat(10)
    sampled.steps(20, {1: 0.03})
    (text,) = sampled.job.texts(EventReason.STRAGGLER_FOUND)
    step = int(text.partition("since step ")[2].partition(",")[0])
    assert abs(step - 5201) < POLICY.window_steps


def test_a_verdict_holds_while_ranks_evaluate_or_save() -> None:
    """Such a window says nothing of anybody: the verdict is neither over nor found again."""
    job = training(2, health=_health())
    sampled = Sampler(job)
    sampled.repeat(10)
    sampled.steps(20, {1: 0.03})
    for section in (Section.EVAL, Section.TRAIN):
        for agent in job.agents.values():
            assert agent.workers.current is not None
            agent.workers.current.slot.section = int(section)
        job.run(1.5)
        sampled.steps(20, {1: 0.03})
    assert len(sampled.job.texts(EventReason.STRAGGLER_FOUND)) == 1
    assert not sampled.job.texts(EventReason.STRAGGLER_GONE)


def test_a_node_that_its_check_found_slow_is_named_from_the_first_step() -> None:
    """It has no faster past in this world; beside its peers it is as slow as in its check."""
    job = training(3, health=_health())
    state = job.state
    for rank in range(3):
        verdict = "SLOW" if rank == 1 else "HEALTHY"
        agent = job.agents[rank].agent_id
        state.judged[rank] = wire.NodeJudged(node_rank=rank, agent_id=agent, verdict=verdict)
    sampled = Sampler(job)
    sampled.repeat(4, slow={1: 0.03})
    (text,) = sampled.job.texts(EventReason.STRAGGLER_FOUND)
    assert text.startswith("node 1 ")


def test_a_longer_period_of_the_same_collectives_is_judged_anew() -> None:
    """Parts of a step were taken for steps at first: nothing of them counts any more."""
    sampled = Sampler(training(2, health=_health()))
    sampled.repeat(3)
    group = sampled.job.context.health.groups["0"]
    assert group.record.windows > 0
    group.repeat(1, 4)
    assert (group.period, group.record.windows, group.waiting) == (4, 0, [])
    group.repeat(0, 1)
    assert group.period == 4
    group.repeat(1, 2)
    assert group.period == 2


def test_a_large_world_is_judged_in_slices_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Samples that come between two slices change nothing of the look that is under way."""
    monkeypatch.setattr(stragglers, "AT_ONCE_RANKS", 1)
    sampled = Sampler(training(4, health=_health()))
    sampled.repeat(10, wait=0.015)
    assert sampled.job.context.health.groups["0"].judgement is not None
    sampled.job.run(3.0)
    assert not sampled.job.texts(EventReason.STRAGGLER_FOUND)
    sampled.steps(20, {1: 0.03}, wait=3.0)
    (text,) = sampled.job.texts(EventReason.STRAGGLER_FOUND)
    assert "node 1" in text
    group = sampled.job.context.health.groups["0"]
    assert group.record.windows == 215 // POLICY.window_steps


def test_a_group_that_is_made_anew_ends_the_look_at_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its numbers begin again, and steps of both are never one window."""
    monkeypatch.setattr(stragglers, "AT_ONCE_RANKS", 1)
    sampled = Sampler(training(2, health=_health()))
    sampled.steps(20, wait=0.015)
    sampled.first = 1
    sampled.steps(20, wait=3.0)
    group = sampled.job.context.health.groups["0"]
    assert group.judgement is None
    assert 0 < group.aligned <= 20


def test_a_look_waits_for_all_ranks_of_the_world() -> None:
    """Two of four ranks are no group; a rank that never samples is waited for for a minute."""
    sampled = Sampler(training(4, health=_health()))
    assert not _judged(sampled.only(0, 1))
    sampled.steps(20)
    assert _judged(sampled.only(0, 1, 2, 3)) == {0, 1, 2, 3}
    late = Sampler(training(4, health=_health()))
    assert not _judged(late.only(0, 1, 2))
    late.job.run(stragglers.GATHER_SECONDS)
    assert _judged(late.only(0, 1, 2)) == {0, 1, 2}


def test_a_rank_that_samples_no_more_is_left_out_after_a_while() -> None:
    """The others are judged without it, and with it once it is back."""
    sampled = Sampler(training(3, health=_health()))
    sampled.steps(20)
    sampled.only(0, 1)
    sampled.job.run(stragglers.SILENT_SECONDS)
    assert _judged(sampled.only(0, 1)) == {0, 1}
    sampled.steps(20)
    assert _judged(sampled.only(0, 1, 2)) == {0, 1, 2}


def test_nobody_is_judged_where_the_mode_says_so() -> None:
    """Nor where a spec of an older operator has no health at all."""
    for health in (_health(mode=wire.HealthMode.DISABLED), None):
        sampled = Sampler(training(2, health=health))
        sampled.repeat(10)
        sampled.steps(40, {1: 0.05})
        assert not sampled.job.texts(EventReason.STRAGGLER_FOUND)


def test_samples_of_another_round_and_of_ranks_that_are_not_there_are_dropped() -> None:
    """A stream may deliver late, and a peer may say anything."""
    job = training(2, health=_health())
    agent = job.agents[1]
    group = wire.GroupCollectives(group="0", first_sequence=1, signatures=(1,), issued_us=(5,))
    alien = wire.CollectiveSamples(ranks=(wire.RankCollectives(local_rank=7, groups=(group,)),))
    agent.report(alien, agent.accepted.round)
    own = wire.CollectiveSamples(ranks=(wire.RankCollectives(local_rank=0, groups=(group,)),))
    agent.report(own, agent.accepted.round - 1)
    broken = dataclasses.replace(own, clock_offset_seconds=float("nan"))
    agent.report(broken, agent.accepted.round)
    job.run(0.5)
    assert not job.context.health.groups


def test_a_clock_probe_is_answered_with_the_masters_time() -> None:
    """So that agents can place their moments on one clock."""
    job = training(2)
    job.agents[0].report(wire.ClockProbe(probe_id=4), 0)
    job.run(0.2)
    (reply,) = [message for _, message in job.sent if isinstance(message, wire.ClockReply)]
    assert reply.probe_id == 4
    assert abs(reply.master_unix - job.moment().unix) < 0.2


def test_a_master_whose_clock_is_set_goes_on_with_the_old_time() -> None:
    """Else nodes that heard before and after would seem to be apart by that much."""
    job = training(2)
    job.agents[0].report(wire.ClockProbe(probe_id=4), 0)
    job.run(0.2)
    job.master.wall += 0.05
    job.agents[1].report(wire.ClockProbe(probe_id=5), 0)
    job.run(0.2)
    before, after = [message for _, message in job.sent if isinstance(message, wire.ClockReply)]
    assert after.master_unix - before.master_unix == pytest.approx(0.2, abs=0.02)
