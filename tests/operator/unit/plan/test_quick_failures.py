"""Pods that fail at once are waited for longer each time, and nobody else with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast_operator.events.news import transitions
from holdfast_operator.plan.history import LONGEST_WAIT_SECONDS, SETTLED_SECONDS, wait_after
from holdfast_operator.plan.pods import PodSlot, Role
from holdfast_wire.messages import JobStatus, PodPhase
from jobs.planned import World, creates, made_by, running, worker


def test_waits_double_up_to_a_cap() -> None:
    """The second pod comes at once, the third after a second, and never later than a minute."""
    waits = [wait_after(quick) for quick in range(12)]
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert wait_after(10**6) == LONGEST_WAIT_SECONDS


def test_a_pod_that_fails_at_once_again_and_again_is_waited_for() -> None:
    """Each wait is told as the time of the next plan, and counts from the pod's end."""
    world = World({"replicas": 1})
    world.settle()
    del world.pods["t-worker-0-0"]
    world.history = {}
    waited = []
    for incarnation in range(6):
        world.make(worker(0), incarnation)
        world.look()
        world.now += 0.5
        world.end(f"t-worker-0-{incarnation}")
        made = world.look()
        waited.append(made.requeue_after or 0.0)
        assert creates(made) == ([] if made.requeue_after else [f"t-worker-0-{incarnation + 1}"])
        world.now += waited[-1]
        assert creates(world.look()) == [f"t-worker-0-{incarnation + 1}"]
    assert waited == [0, 1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "lived",
    [
        pytest.param({"ready": True}, id="its agent was connected"),
        pytest.param({"after": SETTLED_SECONDS}, id="it lived for a while"),
        pytest.param({"ended_ready": True}, id="it was connected when it ended"),
    ],
)
def test_a_pod_that_had_settled_ends_the_row_of_quick_failures(lived: dict[str, Any]) -> None:
    """A fault after a good start says nothing about whether a pod can start."""
    world = running(replicas=1)
    world.hear(JobStatus())
    slot = worker(0)
    entry = dataclasses.replace(world.history[slot], incarnation=4, ended=4, quick=5)
    world.history = {**world.history, slot: entry}
    del world.pods["t-worker-0-0"]
    world.make(slot, 5)
    world.change("t-worker-0-5", ready=bool(lived.get("ready")))
    if "ready" in lived:
        world.look()
        assert world.history[slot].quick == 0
    world.now += lived.get("after", 0.1)
    world.end("t-worker-0-5", ready=bool(lived.get("ended_ready")))
    made = world.look()
    assert creates(made) == ["t-worker-0-6"]
    assert made.history[slot].quick == 0


def test_without_a_master_a_pod_that_lived_long_has_failed_at_once_all_the_same() -> None:
    """Nobody else counts failures then: it would be made anew for ever, without a pause."""
    world = World({"replicas": 1})
    world.settle()
    waits: list[float] = []
    for incarnation in range(4):
        world.now += 3 * SETTLED_SECONDS
        world.look()
        world.end(
            f"t-worker-0-{incarnation}", text="step 1\ntorch cannot be imported\n", reason="Error"
        )
        made = world.look()
        waits.append(made.requeue_after or 0.0)
        world.now += waits[-1]
        (new,) = made_by(world.look())
        world.carry_out(new)
        world.change(new.name, phase=PodPhase.RUNNING, ready=True)
    assert waits == [0, 1, 2, 4]
    told = {one["type"]: (one["reason"], one["message"]) for one in world.status["conditions"]}
    reason, message = told["QuorumReady"]
    assert reason == "WorkersFail"
    assert message == (
        "0 workers train, at least 1 are needed; t-worker-0-3 ended with exit code 1 (Error): "
        "torch cannot be imported; it is the last of 4 in a row"
    )
    before = {**world.status, "conditions": []}
    (news,) = transitions(before, world.status, world.now)
    assert (news.reason, news.warning) == ("WorkersFail", True)
    assert transitions(world.status, world.status, world.now) == []
    world.hear(JobStatus())
    world.now += SETTLED_SECONDS
    world.look()
    assert world.history[worker(0)].quick == 0


def test_a_worker_that_ended_well_while_its_master_is_away_has_not_failed() -> None:
    """The master's node may be lost as the training ends."""
    world = World({"replicas": 2})
    world.settle()
    world.end("t-worker-0-0", 0)
    world.look()
    told = {one["type"]: one["reason"] for one in world.status["conditions"]}
    assert told["QuorumReady"] == "InsufficientWorkers"


def test_a_pod_that_was_taken_away_young_is_no_quick_failure() -> None:
    """Preemption and deletion prove nothing about the pod."""
    world = World({"replicas": 1})
    world.settle()
    slot = worker(0)
    del world.pods["t-worker-0-0"]
    for incarnation in range(1, 5):
        world.make(slot, incarnation)
        world.change(f"t-worker-0-{incarnation}", deleting=True)
        world.look()
        world.finish_deletions()
        assert creates(world.look()) == [f"t-worker-0-{incarnation + 1}"]


def test_each_place_waits_for_itself() -> None:
    """A worker that cannot start holds up no other."""
    world = World({"replicas": 2})
    world.settle()
    for name in ("t-worker-0-0", "t-worker-1-0"):
        del world.pods[name]
    world.history = {}
    for incarnation in range(2):
        world.make(worker(0), incarnation)
        world.end(f"t-worker-0-{incarnation}")
        world.look()
    made = world.look()
    assert creates(made) == ["t-worker-1-0"]
    assert made.requeue_after == 1.0


def test_a_planner_that_was_just_started_goes_on_from_what_there_is() -> None:
    """Without its history it gives the next number after the pods that exist."""
    world = running(replicas=1)
    world.make(worker(0), 3)
    world.end("t-worker-0-3")
    world.pods.pop("t-worker-0-0")
    world.history = {}
    assert creates(world.look()) == ["t-worker-0-4"]


def test_a_place_knows_its_role_by_its_name() -> None:
    """Extra roles cannot be called master or worker, so the name is enough."""
    assert PodSlot("master", 0).role is Role.MASTER
    assert worker(3).role is Role.WORKER
    assert PodSlot("eval", 0).role is Role.EXTRA


@pytest.mark.parametrize("ahead", [LONGEST_WAIT_SECONDS + 1, 3600.0])
def test_a_node_whose_clock_is_ahead_delays_no_successor(ahead: float) -> None:
    """An end that lies in the future by more than any wait says nothing; it comes at once."""
    world = running(replicas=1)
    world.end("t-worker-0-0", ended_at=world.now + ahead)
    assert creates(world.look()) == ["t-worker-0-1"]


def test_a_clock_that_is_set_back_delays_no_successor() -> None:
    """A wait that had begun is over, where it would have become one of an hour."""
    world = World({"replicas": 1})
    world.settle()
    del world.pods["t-worker-0-0"]
    world.history = {}
    for incarnation in range(4):
        world.make(worker(0), incarnation)
        world.look()
        world.end(f"t-worker-0-{incarnation}")
        waited = world.look().requeue_after or 0.0
        world.now += waited
        world.look()
    world.end("t-worker-0-3")
    world.now -= 3600.0
    assert creates(world.look()) == ["t-worker-0-4"]
