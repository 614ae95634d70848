"""Hangs of a running world: from silence to the evidence of all ranks to an event."""

from __future__ import annotations

import pytest

from holdfast_master.instructions import KeepEvidence
from holdfast_wire import messages as wire
from holdfast_wire.reasons import Cause, EventReason
from messages.hang_evidence import REDUCES, SLEEPS, USER, rank, stack, tail
from simulation.agent import Agent
from simulation.steered.job import SteeredJob, training
from simulation.steered.without_sdk import without_sdk

INFERS = stack(("/job/train.py", "infer"))

HEALTH = wire.HealthPolicy(
    hang=wire.HangPolicy(
        mode=wire.HealthMode.REPORT, step_time_factor=10.0, min_seconds=8.0, first_step_seconds=60.0
    )
)


def _asked(job: SteeredJob) -> list[tuple[int, wire.CollectEvidence]]:
    return [(node, sent) for node, sent in job.sent if isinstance(sent, wire.CollectEvidence)]


def _hung(seconds: float = 20.0) -> SteeredJob:
    """A job whose first rank stands still, and the others wait for it."""
    job = training(3, health=HEALTH)
    job.run(5.0)
    job.agents[0].workers.pause(paused=True)
    job.run(seconds)
    return job


def _go_on(job: SteeredJob) -> None:
    job.agents[0].workers.pause(paused=False)
    job.run(5.0)


def test_a_world_that_trains_does_not_hang() -> None:
    """Nobody is asked, however long it trains."""
    job = training(3, health=HEALTH)
    job.run(120.0)
    assert not _asked(job)


def test_a_world_without_progress_is_asked_once_and_named() -> None:
    """After the limit that its own pace has taught; every member gives its evidence."""
    job = _hung(7.0)
    assert not _asked(job)
    job.run(6.0)
    assert sorted(node for node, _ in _asked(job)) == [0, 1, 2]
    (text,) = job.texts(EventReason.HANG_FOUND)
    assert "no progress for" in text
    assert job.state.phase is wire.JobPhase.TRAINING
    job.run(30.0)
    assert len(job.texts(EventReason.HANG_FOUND)) == 1
    _go_on(job)
    assert len(job.texts(EventReason.HANG_OVER)) == 1


def test_the_hang_that_holds_is_in_the_health_of_the_job() -> None:
    """With the time since it was seen; it is gone once the ranks go on."""
    job = training(3, health=HEALTH)
    job.run(5.0)
    assert job.core.health(job.moment()).hang is None
    job.agents[0].workers.pause(paused=True)
    job.run(20.0)
    first = job.core.health(job.moment()).hang
    job.run(5.0)
    hang = job.core.health(job.moment()).hang
    assert first is not None
    assert hang is not None
    assert hang.cause
    assert hang.seconds == pytest.approx(first.seconds + 5.0, abs=0.1)
    _go_on(job)
    assert job.core.health(job.moment()).hang is None


def _hangs(job: SteeredJob) -> list[wire.Incident]:
    listed = job.core.incidents(job.moment())
    return [one for one in listed if one.cause == Cause.HANG]


def _kept(job: SteeredJob) -> list[wire.IncidentEvidence]:
    return [one.evidence for one in job.instructions if isinstance(one, KeepEvidence)]


def test_a_hang_is_an_incident_that_keeps_its_evidence() -> None:
    """It is closed when the ranks go on, spends no budget, and has the stacks of all ranks."""
    job = _hung()
    (hang,) = _hangs(job)
    assert (hang.open, hang.reported_only, hang.from_round) == (True, True, 1)
    (kept,) = _kept(job)
    assert kept.incident_id == hang.id
    assert [one.rank for one in kept.ranks] == [0, 1, 2]
    _go_on(job)
    (over,) = _hangs(job)
    assert not over.open
    assert over.first_step_seconds > 0
    assert not job.charges()


def test_a_successor_goes_on_with_the_hang_that_it_finds() -> None:
    """Neither the incident nor its event is doubled; the first progress closes it."""
    job = _hung()
    job.restart_master()
    job.run(2.0)
    assert [one.open for one in _hangs(job)] == [True]
    job.run(70.0)
    assert len(_kept(job)) == 2
    assert {one.incident_id for one in _kept(job)} == {_hangs(job)[0].id}
    assert len(job.texts(EventReason.HANG_FOUND)) == 1
    _go_on(job)
    assert [one.open for one in _hangs(job)] == [False]
    assert len(job.texts(EventReason.HANG_OVER)) == 1


def test_a_successor_closes_a_hang_that_ended_while_there_was_no_master() -> None:
    """It sees the ranks make progress."""
    job = _hung()
    job.kill_master()
    job.agents[0].workers.pause(paused=False)
    job.start_master()
    job.run(5.0)
    assert [one.open for one in _hangs(job)] == [False]
    assert len(job.texts(EventReason.HANG_OVER)) == 1


def test_the_status_sums_the_health_up() -> None:
    """Not judged before a world runs; as expected, a hang, and as expected again."""
    job = training(3, health=HEALTH)
    job.run(5.0)
    found = [job.status]
    job.agents[0].workers.pause(paused=True)
    job.run(20.0)
    found.append(job.status)
    assert found[-1].health_text == _hangs(job)[0].text
    _go_on(job)
    found.append(job.status)
    job.ask(wire.StopJobRequest(now=True))
    job.run(5.0)
    health = [one.health.name for one in (*found, job.status)]
    assert health == ["AS_EXPECTED", "HANG", "AS_EXPECTED", "NOT_JUDGED"]


def test_a_hang_ends_with_its_world() -> None:
    """A person restarts the round: the hang is closed, and the ranks never went on."""
    job = _hung()
    job.ask(wire.StopJobRequest(now=True))
    job.run(5.0)
    (hang,) = _hangs(job)
    assert (hang.open, hang.first_step_seconds) == (False, 0.0)
    assert hang.decided_seconds > 0
    assert not job.context.health.open_incident


def test_nobody_is_asked_where_hangs_are_not_looked_for() -> None:
    """Mode Disabled, or a spec of an older operator."""
    for health in (
        None,
        wire.HealthPolicy(hang=wire.HangPolicy(mode=wire.HealthMode.DISABLED, min_seconds=5.0)),
    ):
        job = training(2, health=health)
        job.agents[0].workers.pause(paused=True)
        job.run(60.0)
        assert not _asked(job)


def test_a_first_evaluation_without_the_sdk_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks compute, are looked at once a minute, and are named when a first step would be."""
    without_sdk(monkeypatch)
    hang = wire.HangPolicy(
        mode=wire.HealthMode.REPORT,
        step_time_factor=10.0,
        min_seconds=8.0,
        first_step_seconds=200.0,
    )
    job = training(3, health=wire.HealthPolicy(hang=hang))
    job.run(10.0)
    job.agents[0].workers.pause(paused=True)
    job.run(150.0)
    assert not job.texts(EventReason.HANG_FOUND)
    assert len(_asked(job)) == 3 * 3
    job.run(120.0)
    (text,) = job.texts(EventReason.HANG_FOUND)
    assert "linear.py" in text or "train.py" in text
    _go_on(job)
    assert len(job.texts(EventReason.HANG_OVER)) == 1


def test_an_evaluation_that_ended_is_learned_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one of its length is not even asked about."""
    without_sdk(monkeypatch)
    job = training(3, health=HEALTH)
    job.run(10.0)
    for _ in range(2):
        job.agents[0].workers.pause(paused=True)
        job.run(30.0)
        job.agents[0].workers.pause(paused=False)
        job.run(10.0)
    assert not job.texts(EventReason.HANG_FOUND)
    assert not job.texts(EventReason.HANG_OVER)
    assert len(_asked(job)) == 3


def _hanging_seconds(job: SteeredJob) -> float:
    entries = job.core.goodput(job.moment()).totals
    return sum(one.node_seconds for one in entries if one.kind is wire.GoodputClass.HANG)


def test_a_loop_of_the_script_is_a_hang_at_its_learned_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that spins in its own code does not evaluate."""
    without_sdk(monkeypatch, '  File "/job/train.py", line 9 in spin\n')
    job = training(3, health=HEALTH)
    job.run(10.0)
    job.agents[0].workers.pause(paused=True)
    job.run(20.0)
    assert len(job.texts(EventReason.HANG_FOUND)) == 1
    before = _hanging_seconds(job)
    job.run(10.0)
    assert _hanging_seconds(job) == pytest.approx(before + 30.0, abs=4.0), "three nodes"


@pytest.mark.parametrize(
    ("shown", "age", "found"), [(REDUCES, 61.0, 1), (REDUCES, 1.0, 0), (INFERS, 61.0, 0)]
)
def test_a_world_without_known_steps_is_judged_by_its_evidence(
    monkeypatch: pytest.MonkeyPatch, shown: str, age: float, found: int
) -> None:
    """As a first step: where ranks wait for others, and no collective was issued for so long."""
    report = Agent.report
    without_sdk(monkeypatch, steps=False)
    job = training(3, health=HEALTH)
    for agent in job.agents.values():
        agent.ignores = (*agent.ignores, wire.CollectEvidence)
    job.run(58.0)
    assert not _asked(job)
    job.run(5.0)
    for node, order in _asked(job):
        kept = rank(node, stack=shown, groups=(tail(3, age_seconds=age),))
        if node == 1:
            kept = rank(node, stack=USER, groups=(tail(2, age_seconds=age + 1),), **SLEEPS)
        agent = job.agents[node]
        message = wire.EvidenceCollected(command_id=order.command_id, ranks=(kept,))
        report(agent, message, agent.accepted.round)
    job.run(3.0)
    assert len(job.texts(EventReason.HANG_FOUND)) == found


def test_the_pace_is_known_seconds_after_the_first_step() -> None:
    """Steps count, not looks: a hang then need not wait for as long as a first step may take."""
    job = training(3, health=HEALTH)
    job.run(1.5)
    job.agents[0].workers.pause(paused=True)
    job.run(15.0)
    assert len(job.texts(EventReason.HANG_FOUND)) == 1


def _learned_pause(job: SteeredJob) -> float:
    return job.context.health.hang_watch.learned.longest_pause


@pytest.mark.parametrize(
    ("node", "section"), [(0, wire.RankSection.EVAL), (2, wire.RankSection.CHECKPOINT)]
)
def test_a_section_is_no_pause_of_training(node: int, section: wire.RankSection) -> None:
    """Of any rank: the others wait for it. The next hang is found as early as the first."""
    job = _hung(1.0)
    current = job.agents[node].workers.current
    assert current is not None
    usual, current.slot.section = current.slot.section, section - 1
    job.run(30.0)
    current.slot.section = usual
    _go_on(job)
    assert _learned_pause(job) == 0.0


def test_the_start_of_a_world_is_no_pause_of_training() -> None:
    """A first step compiles; that it was slow says nothing of later ones."""
    job = training(3, health=HEALTH)
    job.agents[0].workers.paused = True  # and so are the processes of the next round
    job.agents[1].crash_worker()
    job.run(35.0)
    assert job.status.round == 2
    _go_on(job)
    assert job.context.worlds.running().reached  # type: ignore[union-attr]
    assert _learned_pause(job) == 0.0


def test_a_pause_that_no_step_has_ended_is_not_learned() -> None:
    """The rank went on into an evaluation, which has a limit of its own."""
    job = _hung(7.0)
    current = job.agents[0].workers.current
    assert current is not None
    usual, current.slot.section = current.slot.section, wire.RankSection.EVAL - 1
    job.run(3.0)
    assert _learned_pause(job) == 0.0
    current.slot.section = usual
    job.run(7.0)
    _go_on(job)
    assert _learned_pause(job) == pytest.approx(7.0, abs=2.0)
