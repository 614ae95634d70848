"""Every second of every node is in exactly one class."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.decide.goodput import CLASSES, summed
from holdfast_master.inputs import Received
from holdfast_master.job.faults import BrokenInvariantError
from holdfast_master.job.ledger import Ledger
from holdfast_wire.messages import (
    Fence,
    GoodputClass,
    Heartbeat,
    RankProgress,
    RankSection,
    ScaleRequest,
)
from simulated_job import SimulatedJob

G = GoodputClass
Start = Callable[..., SimulatedJob]


def classes(job: SimulatedJob) -> dict[GoodputClass, float]:
    """Node-seconds of the job by class."""
    return {entry.kind: entry.node_seconds for entry in job.core.goodput(job.moment()).totals}


def test_classes_sum_to_the_nodes_time(training: Start) -> None:
    """Also over crashes, rescales and roll-backs; the sum over nodes is the whole."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(5.0)
    job.ask(ScaleRequest(replicas=3))
    job.run(10.0)
    found = job.core.goodput(job.moment())
    per_node = [sum(entry.node_seconds for entry in node.classes) for node in found.nodes]
    assert sum(per_node) == pytest.approx(found.node_seconds, abs=1e-6)
    assert per_node[0] == pytest.approx(job.time.now, abs=0.1)
    assert {G.PRODUCTIVE, G.RESTART, G.RESCALE, G.ROLLED_BACK, G.WAITING} <= set(classes(job))
    assert job.core.status(job.moment()).goodput == pytest.approx(found.goodput)


def test_an_incident_says_what_it_cost(training: Start) -> None:
    """Restart and rolled-back work of both nodes, nothing of the time after."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(20.0)
    found = job.core.goodput(job.moment()).incidents[0]
    cost = {entry.kind: entry.node_seconds for entry in found.cost}
    assert set(cost) == {G.RESTART, G.ROLLED_BACK}
    assert cost[G.RESTART] == pytest.approx(2 * found.first_step_seconds, rel=0.2)
    assert cost[G.ROLLED_BACK] == pytest.approx(2 * 0.1 * found.steps_redone, rel=0.1)


def test_time_before_detection_is_not_productive(training: Start) -> None:
    """Five seconds of silence were lost to all nodes."""
    job = training(2, min_replicas=1)
    job.replaces = False
    job.raises = 0.0
    job.agents[1].freeze()
    job.run(20.0)
    found = job.core.goodput(job.moment()).incidents[0]
    cost = {entry.kind: entry.node_seconds for entry in found.cost}
    assert found.detection_seconds == pytest.approx(5.0, abs=0.6)
    assert cost[G.RESTART] > 4.0


def report(job: SimulatedJob, **progress: object) -> None:
    """One heartbeat of node 0."""
    session = job.agents[0].session
    assert session is not None
    values = {"round": 1, "step": 5, "step_seconds": 0.1, "has_sdk": True, **progress}
    beat = Heartbeat(ranks=(RankProgress(**values),))  # type: ignore[arg-type]
    job.take(Received(session, Fence(epoch=1, incarnation="m1", round=1), beat))


def test_checkpoints_and_hangs_are_seen(training: Start) -> None:
    """By the section and by the time without a step; a stall is told once."""
    job = training(2)
    report(job, section=RankSection.CHECKPOINT)
    assert job.core._desk.ledger.kind(0) is G.CHECKPOINT
    for _ in range(2):
        report(job, section=RankSection.TRAIN, since_step_seconds=60.0)
        assert job.core._desk.ledger.kind(0) is G.HANG
    assert job.reasons().count("StepStalled") == 1
    report(job, section=RankSection.TRAIN)
    assert job.core._desk.ledger.kind(0) is G.PRODUCTIVE


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_times_that_are_no_times_are_left_out(training: Start, value: float) -> None:
    """A torn page does not spoil the job's figures."""
    job = training(2)
    before = job.core.status(job.moment()).step_seconds
    report(job, step_seconds=value)
    report(job, since_step_seconds=value)
    assert job.core.status(job.moment()).step_seconds == before
    job.agents[0].crash_worker()
    job.run(3.0)
    assert job.is_in("TRAINING")


def test_progress_and_throughput_are_shown(training: Start) -> None:
    """Steps, samples and loss of the whole world."""
    job = training(2)
    job.run(5.0)
    status = job.core.status(job.moment())
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
    steps: list[tuple[str, int, GoodputClass, int, str]],
) -> None:
    """Each account sums to its wall time; the running sums are the sums."""
    ledger, now = Ledger(), 0
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
        ledger.check()
        total = summed(ledger.totals(now).values())
        assert ledger.whole(now) == {key: spent for key, spent in total.items() if spent}
    ledger.forget("i1")
    assert ledger.cost("i1", now) == ()


def test_an_account_that_does_not_add_up_is_found() -> None:
    """The invariant can fail."""
    ledger = Ledger()
    ledger.open(0, G.WAITING, 0)
    ledger.turn(0, G.PRODUCTIVE, 10)
    ledger._open[0].totals[G.WAITING] += 1
    with pytest.raises(BrokenInvariantError, match="node 0: classes sum to 11"):
        ledger.check()
    assert ledger.close(9, 5) == {}
    assert ledger.kind(9) is G.UNSPECIFIED
