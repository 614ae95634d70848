"""Pods that cannot be made, placed or started: they are waited for, and the status says why."""

from __future__ import annotations

import pytest

from holdfast_operator.plan.history import LONGEST_REFUSAL_SECONDS, ApiRefusal, refused
from holdfast_operator.plan.inputs import Grouped
from holdfast_operator.plan.pods import MASTER_SLOT
from holdfast_wire.messages import JobPhase, JobStatus, PodPhase
from jobs.planned import World, creates, running, worker

QUOTA = 'pods "t-worker-1-0" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2'
POLICY = "pods \"t-worker-1-0\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"


def test_a_refused_pod_is_tried_again_later_and_later() -> None:
    """At once the first times, because quota often becomes free; never slower than a bound."""
    refusal: ApiRefusal | None = None
    waits = []
    for _ in range(10):
        refusal = refused(refusal, QUOTA, 100.0)
        waits.append(refusal.not_before - 100.0)
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert waits[-1] == LONGEST_REFUSAL_SECONDS


def test_a_refused_place_waits_and_the_others_do_not() -> None:
    """One pod that may not be made keeps nobody from being made."""
    world = World({"replicas": 3})
    world.refused[worker(1)] = refused(None, QUOTA, world.now)
    made = world.look()
    assert creates(made) == ["t-master-0-0", "t-worker-0-0", "t-worker-2-0"]
    assert made.requeue_after == 1.0
    world.now += 1.0
    assert "t-worker-1-0" in creates(world.look())


@pytest.mark.parametrize(("text", "reason"), [(QUOTA, "QuotaExceeded"), (POLICY, "PodsRefused")])
def test_the_status_has_the_words_of_a_refusal(text: str, reason: str) -> None:
    """In the reason what it is about, in the message what the API server said."""
    world = World({"replicas": 2})
    world.refused[worker(1)] = refused(None, text, world.now)
    world.look()
    quorum = world.condition("QuorumReady")
    assert (quorum["status"], quorum["reason"]) == ("False", reason)
    assert text in quorum["message"]


def test_a_gang_that_is_missing_is_told_where_people_look() -> None:
    """In its own condition, and as the obstacle of those that wait for pods."""
    world = World({"replicas": 2})
    world.grouped = Grouped(ready=False, text="install it", blocked=True)
    world.look()
    assert world.condition("GangReady")["reason"] == "NotGrouped"
    for kind in ("QuorumReady", "MasterReady"):
        assert world.condition(kind)["reason"] == "GangMissing"
        assert "install it" in world.condition(kind)["message"]
    world.grouped = Grouped(ready=False, text="none is served")
    world.look()
    assert world.condition("GangReady")["message"] == "none is served"
    assert world.condition("QuorumReady")["reason"] == "InsufficientWorkers"


def test_a_refusal_is_forgotten_once_the_pod_is_there_or_not_wanted() -> None:
    """The status says what is, not what was."""
    world = World({"replicas": 2, "minReplicas": 1, "maxReplicas": 2})
    world.refused[worker(1)] = refused(None, QUOTA, world.now)
    world.scale(1)
    world.look()
    assert world.condition("QuorumReady")["reason"] == "InsufficientWorkers"
    world.scale(2)
    world.now += 1
    world.do(world.look())
    world.look()
    assert world.condition("QuorumReady")["reason"] == "InsufficientWorkers"


@pytest.mark.parametrize("reason", ["Unschedulable", "ImagePullFailed", "ContainerNotStarted"])
def test_the_status_says_why_pods_wait(reason: str) -> None:
    """The name of the first, the words of the scheduler or the node, and how many there are."""
    world = running(replicas=3)
    for rank in (1, 2):
        name = f"t-worker-{rank}-0"
        world.change(name, ready=False, waiting=reason, waiting_text="there is no room")
    world.look()
    quorum = world.condition("QuorumReady")
    assert quorum["reason"] == reason
    assert "t-worker-1-0: there is no room (2 pods wait)" in quorum["message"]


def test_a_master_that_cannot_begin_is_told_in_its_own_condition() -> None:
    """Whoever looks why nothing happens finds it at the master."""
    world = World({"replicas": 1})
    world.make(MASTER_SLOT)
    world.change("t-master-0-0", waiting="ImagePullFailed", waiting_text="image x: not found")
    world.look()
    ready = world.condition("MasterReady")
    assert (ready["status"], ready["reason"]) == ("False", "ImagePullFailed")
    assert ready["message"] == "t-master-0-0: image x: not found"


def test_a_condition_says_which_container_waits_for_what() -> None:
    """Though nothing is in its way: an init container that never ends looks like that."""
    world = World({"replicas": 2})
    world.make(MASTER_SLOT)
    world.change("t-master-0-0", not_started="container master waits: ContainerCreating")
    for rank in (0, 1):
        world.make(worker(rank))
        world.change(f"t-worker-{rank}-0", not_started="init container fetch runs")
    world.look()
    quorum = world.condition("QuorumReady")
    assert (quorum["status"], quorum["reason"]) == ("False", "InsufficientWorkers")
    assert quorum["message"] == (
        "0 workers train, at least 2 are needed; t-worker-0-0: init container fetch runs "
        "(2 pods wait)"
    )
    assert world.condition("MasterReady")["message"] == (
        "the master has not been reached yet; t-master-0-0: container master waits: "
        "ContainerCreating"
    )


def test_a_condition_says_that_pods_run_and_no_agent_has_joined() -> None:
    """A command that starts no agent looks like that."""
    world = running(replicas=2)
    world.change("t-worker-1-0", phase=PodPhase.PENDING)
    world.hear(JobStatus(phase=JobPhase.WAITING, ready_nodes=0))
    world.look()
    assert world.condition("QuorumReady")["message"] == (
        "0 workers train, at least 2 are needed; 1 pods run, and 0 of their agents are ready"
    )
    world.hear(JobStatus(phase=JobPhase.WAITING, ready_nodes=1))
    world.look()
    message = world.condition("QuorumReady")["message"]
    assert message == "0 workers train, at least 2 are needed"
