"""Notices that a node will be taken away: the way of a drain, charged as a preemption."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire.messages import BudgetKind, DrainNodeRequest, NoticeKind, NoticeReceived
from simulation.steered.job import SteeredJob, training

SPOT = NoticeReceived(
    kind=NoticeKind.PREEMPTION, source="gce preempted", text="preempted", seconds_left=30.0
)
REBOOT = NoticeReceived(kind=NoticeKind.MAINTENANCE, source="azure scheduled events", text="Reboot")
MIGRATION = NoticeReceived(
    kind=NoticeKind.MAINTENANCE, source="gce maintenance-event", text="MIGRATE", stays=True
)
NEW_KIND = NoticeReceived(kind=NoticeKind.UNSPECIFIED, source="moon", text="an eclipse")


def told(job: SteeredJob) -> list[str]:
    """Texts of the notices that people were told of."""
    return job.texts("NoticeReceived")


@pytest.mark.parametrize("notice", [SPOT, REBOOT])
def test_a_node_that_will_go_leaves_at_a_barrier(notice: NoticeReceived) -> None:
    """No step is lost, another node is asked for, and the preemption budget pays once."""
    job = training(3, replaces=False)
    job.agents[1].report(notice)
    job.run(8.0)
    assert job.members == [0, 2]
    assert job.redone == [0]
    assert "BarrierReached" in job.reasons()
    assert "ReplaceRequested" in job.reasons()
    job.run(12.0)
    assert job.charges() == [BudgetKind.PREEMPTIONS]
    assert job.incidents[0].cause == "Preempted"


def test_a_standby_takes_the_place_of_a_node_that_will_go() -> None:
    """Same size, without a wait."""
    job = training(3, standbys=1)
    job.add_agent(3)
    job.run(1.0)
    job.replaces = False
    job.agents[1].report(SPOT)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert job.redone == [0]


@pytest.mark.parametrize("notice", [MIGRATION, NEW_KIND])
def test_a_node_that_stays_is_only_spoken_of(notice: NoticeReceived) -> None:
    """Once, however often its agent says it."""
    job = training(3)
    for _ in range(3):
        job.agents[1].report(notice)
        job.run(1.0)
    assert job.members == [0, 1, 2]
    assert job.status.round == 1
    (text,) = told(job)
    assert notice.text in text
    assert "NodeDraining" not in job.reasons()


def test_the_event_names_the_source_and_the_time_that_is_left() -> None:
    """Whoever reads it can look there."""
    job = training(2)
    job.agents[1].report(SPOT)
    job.run(1.0)
    assert told(job) == ["node 1: it will be taken away (gce preempted: preempted, 30 s left)"]


def test_a_notice_of_the_operator_counts_like_the_agent_s() -> None:
    """Both may have it, in any order: that is one departure."""
    job = training(3, replaces=False)
    taint = dataclasses.replace(SPOT, source="node gpu-7", text="taint spot-itn", seconds_left=0.0)
    job.pods[2] = dataclasses.replace(job.pods[2], notice=taint)
    job.take(OperatorMessage(job.pods[2]))
    job.agents[2].report(SPOT)
    job.take(OperatorMessage(job.pods[2]))
    job.run(20.0)
    assert job.members == [0, 1]
    assert job.reasons().count("NodeDraining") == 1
    assert job.charges() == [BudgetKind.PREEMPTIONS]


def test_a_node_that_goes_before_the_barrier_was_taken_away() -> None:
    """The notice explains its end, and what the others meet: no failure."""
    job = training(3)
    job.agents[1].report(SPOT)
    job.run(0.01)
    job.agents[1].crash(told=False)
    job.run(30.0)
    assert job.charges() == [BudgetKind.PREEMPTIONS]
    assert sorted(job.members) == [0, 1, 2]


@pytest.mark.parametrize("after", [0.0, 0.005, 0.3, 2.0])
def test_a_new_master_goes_on_with_an_announced_departure(after: float) -> None:
    """From its journal: one charge, a replacement, no step lost."""
    job = training(3)
    job.agents[1].report(SPOT)
    job.run(after)
    job.restart_master(0.5)
    job.run(30.0)
    assert job.is_in("TRAINING")
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == [BudgetKind.PREEMPTIONS]
    assert job.redone[0] == 0
    assert job.refold() == job.state


def test_a_notice_that_came_while_no_master_was_there_is_repeated() -> None:
    """The agent says it to the next one."""
    job = training(3, replaces=False)
    job.kill_master()
    job.run(0.1)
    job.agents[1].report(SPOT)
    job.run(0.5)
    job.start_master()
    job.run(20.0)
    assert job.members == [0, 2]
    assert job.charges() == [BudgetKind.PREEMPTIONS]


def test_a_notice_is_known_to_a_master_without_a_journal() -> None:
    """The agent repeats it: at most the preemption budget pays."""
    job = training(3, replaces=False)
    job.agents[1].report(SPOT)
    job.run(0.01)
    job.restart_master(0.5, journal=False)
    job.run(30.0)
    assert job.members == [0, 2]
    assert set(job.charges()) <= {BudgetKind.PREEMPTIONS}


def test_a_person_s_drain_stays_free_when_a_notice_follows() -> None:
    """The first reason counts, and a drained node stays away."""
    job = training(3)
    job.ask(DrainNodeRequest(node_rank=1))
    job.agents[1].report(SPOT)
    job.run(20.0)
    assert job.members == [0, 2]
    assert job.charges() == []


def test_a_notice_that_is_withdrawn_changes_nothing_afterwards() -> None:
    """The ranks have been told to stop: the node leaves all the same."""
    job = training(3, replaces=False)
    job.agents[1].report(SPOT)
    job.run(0.01)
    job.agents[1].statements.withdraw(SPOT.source)
    job.restart_master(0.2)
    job.run(20.0)
    assert job.members == [0, 2]
    assert job.charges() == [BudgetKind.PREEMPTIONS]
