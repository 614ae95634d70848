"""Every second of every node is in exactly one class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.job.state.goodput import GoodputLedger
from holdfast_master.policies.goodput import CLASSES, summed
from holdfast_master.settings import CoreSettings
from holdfast_wire import messages as wire
from simulation.oracle.core_state import check_ledger
from simulation.oracle.invariants import Broken
from simulation.steered.job import SteeredJob, started, training

G = wire.GoodputClass


def classes(job: SteeredJob) -> dict[wire.GoodputClass, float]:
    """Node-seconds of the job by class."""
    return {entry.kind: entry.node_seconds for entry in job.core.goodput(job.moment()).totals}


def test_classes_sum_to_the_nodes_time() -> None:
    """Also over crashes, rescales and roll-backs; the sum over nodes is the whole."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(5.0)
    job.ask(wire.ScaleRequest(replicas=3))
    job.run(10.0)
    found = job.core.goodput(job.moment())
    per_node = [sum(entry.node_seconds for entry in node.classes) for node in found.nodes]
    assert sum(per_node) == pytest.approx(found.node_seconds, abs=1e-6)
    assert per_node[0] == pytest.approx(job.time.now, abs=0.1)
    assert {G.PRODUCTIVE, G.RESTART, G.RESCALE, G.ROLLED_BACK, G.WAITING} <= set(classes(job))
    assert job.status.goodput == pytest.approx(found.goodput)


def test_an_incident_says_what_it_cost() -> None:
    """Restart and rolled-back work of both nodes, nothing of the time after."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(20.0)
    found = job.incidents[0]
    cost = {entry.kind: entry.node_seconds for entry in found.cost}
    assert set(cost) == {G.RESTART, G.ROLLED_BACK}
    assert cost[G.RESTART] == pytest.approx(2 * found.first_step_seconds, rel=0.2)
    assert cost[G.ROLLED_BACK] == pytest.approx(2 * 0.1 * found.steps_redone, rel=0.1)


def test_time_before_detection_is_not_productive() -> None:
    """Five seconds of silence were lost to all nodes."""
    job = training(2, min_replicas=1, replaces=False)
    job.raises = 0.0
    job.agents[1].freeze()
    job.run(20.0)
    found = job.incidents[0]
    cost = {entry.kind: entry.node_seconds for entry in found.cost}
    assert found.detection_seconds == pytest.approx(5.0, abs=0.6)
    assert cost[G.RESTART] > 4.0


def report(job: SteeredJob, **progress: object) -> None:
    """One heartbeat of node 0."""
    values = {"round": 1, "step": 5, "step_seconds": 0.1, "has_sdk": True, **progress}
    beat = wire.Heartbeat(ranks=(wire.RankProgress(**values),))  # type: ignore[arg-type]
    job.say(0, beat)


def test_checkpoints_and_hangs_are_seen() -> None:
    """By the section and by the time without a step; a stall is told once."""
    job = training(2)
    report(job, section=wire.RankSection.CHECKPOINT)
    assert job.context.ledger.kind(0) is G.CHECKPOINT
    for _ in range(2):
        report(job, section=wire.RankSection.TRAIN, since_step_seconds=60.0)
        assert job.context.ledger.kind(0) is G.HANG
    assert job.reasons().count("StepStalled") == 1
    report(job, section=wire.RankSection.TRAIN)
    assert job.context.ledger.kind(0) is G.PRODUCTIVE


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_times_that_are_no_times_are_left_out(value: float) -> None:
    """A torn page does not spoil the job's figures."""
    job = training(2)
    before = job.status.step_seconds
    report(job, step_seconds=value)
    report(job, since_step_seconds=value)
    assert job.status.step_seconds == before
    job.agents[0].crash_worker()
    job.run(3.0)
    assert job.is_in("TRAINING")


def test_progress_and_throughput_are_shown() -> None:
    """Steps, samples and loss of the whole world."""
    job = training(2)
    job.run(5.0)
    status = job.status
    assert status.step >= 60
    assert status.step_seconds == pytest.approx(0.1)
    assert status.samples_per_second == pytest.approx(160, rel=0.3)
    assert (status.has_loss, status.loss) == (True, 1.0)
    ranks = [rank for node in job.core.nodes(job.moment()) for rank in node.ranks]
    assert [rank.rank for rank in ranks] == [0, 1]
    assert {rank.section for rank in ranks} == {"TRAIN"}


KINDS = st.sampled_from(CLASSES)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "turn", "reclassify", "begin"]),
        st.integers(0, 3),
        KINDS,
        st.integers(0, 10**7),
        st.sampled_from(["", "i1", "i2"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_order_of_changes_loses_a_microsecond(
    steps: list[tuple[str, int, wire.GoodputClass, int, str]],
) -> None:
    """Each account sums to its wall time; the running sums are the sums."""
    ledger, now = GoodputLedger(), 0
    ledger.bring({0: {G.PRODUCTIVE: 17}})
    for what, rank, kind, amount, incident in steps:
        now += amount
        if what == "open":
            ledger.open(rank, kind, now)
        elif what == "close":
            ledger.close(rank, now)
        elif what == "turn":
            ledger.turn(rank, kind, now, incident)
        elif what == "reclassify":
            assert 0 <= ledger.reclassify(rank, amount, kind, now, incident) <= amount
        else:
            ledger.begin_world(now)
        check_ledger(ledger)
        total = summed(ledger.totals(now).values())
        assert ledger.whole(now) == {key: spent for key, spent in total.items() if spent}
    ledger.forget("i1")
    assert ledger.cost("i1", now) == ()


def test_an_account_that_does_not_add_up_is_found() -> None:
    """The invariant can fail."""
    ledger = GoodputLedger()
    ledger.open(0, G.WAITING, 0)
    ledger.turn(0, G.PRODUCTIVE, 10)
    ledger._open[0].totals[G.WAITING] += 1
    with pytest.raises(Broken, match="node 0: classes sum to 11"):
        check_ledger(ledger)
    assert ledger.close(9, 5) == {}
    assert ledger.kind(9) is G.UNSPECIFIED


def test_steps_that_nobody_reports_are_no_figure() -> None:
    """Without the SDK no time to the next step is told, and the goodput is marked as a guess."""
    seen = training(2)
    assert not seen.status.goodput_assumed
    job = started(2, agents={"sdk": False})
    job.agents[0].crash_worker()
    job.run(20.0)
    answer = job.core.goodput(job.moment())
    [found] = answer.incidents
    assert not found.open
    assert found.first_step_unseen
    assert found.first_step_seconds == 0.0
    assert answer.goodput_assumed
    assert job.status.goodput_assumed
    [closed] = job.texts("IncidentClosed")
    assert "no rank reports its next step" in closed
    assert "next step after" not in closed
    job.restart_master()
    assert job.status.goodput_assumed


def test_a_step_that_is_reported_late_is_the_incidents_first() -> None:
    """The script imports the SDK some seconds after its start: the real time is shown."""
    job = started(2, agents={"sdk": False})
    job.agents[0].crash_worker()
    job.run(6.0)
    for agent in job.agents.values():
        agent.sdk = True
    job.run(20.0)
    [found] = job.incidents
    assert not found.first_step_unseen
    assert found.first_step_seconds > 5.0
    [cost] = found.cost
    assert cost.kind is G.RESTART
    # Both nodes stood still for as long: the late start is the incident's as well.
    assert cost.node_seconds == pytest.approx(2 * found.first_step_seconds, rel=0.05)


@pytest.mark.parametrize(("seconds", "assumed"), [(30.0, False), (150.0, True)])
def test_a_script_that_calls_the_sdk_late_has_had_a_long_start(
    seconds: float, *, assumed: bool
) -> None:
    """What it imported and loaded for half a minute is no training, and no guess is left.

    After minutes nobody can tell a start from steps that were not reported.
    """
    job = started(2, agents={"sdk": False})
    before = job.status
    job.run(seconds)
    for agent in job.agents.values():
        agent.sdk = True
    job.run(5.0)
    assert "StepsReported" in job.reasons()
    assert (before.goodput_assumed, job.status.goodput_assumed) == (True, assumed)
    productive = classes(job)[G.PRODUCTIVE]
    assert (productive > 2 * seconds) is assumed
    assert assumed or productive < 2 * 5.5
    assert job.refold() == job.state


def test_a_guess_of_an_earlier_world_stays_one() -> None:
    """A later start that is seen after all does not say what the first world did."""
    job = started(2, agents={"sdk": False})
    job.agents[0].crash_worker()
    job.run(1.0)
    job.run_until("TRAINING")
    job.run(3.0)
    for agent in job.agents.values():
        agent.sdk = True
    job.run(5.0)
    assert "StepsReported" in job.reasons()
    assert job.status.goodput_assumed


def test_a_crowd_that_is_heard_seldom_is_heard_before_its_steps_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SDK is seen by a heartbeat, and those of a large world come seldom."""
    monkeypatch.setattr("simulation.training.PACE", 3.0)
    settings = CoreSettings(crowd_nodes=1, crowd_messages_per_second=0.4, start_seconds=0.2)
    job = started(2, settings=settings)
    assert {agent.beat_seconds for agent in job.agents.values()} == {2.0}
    assert "StepsUnknown" not in job.reasons()
