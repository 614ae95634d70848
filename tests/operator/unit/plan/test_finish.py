"""The end of a job: its pods first, then the word that it is over, then the clean-up."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.finish import END_WAIT_SECONDS, LEAVE_SECONDS, MASTER_ATTEMPTS, MASTER_LOST
from holdfast_operator.plan.actions import DeleteJob, DeletePod, FinishJob, Plan
from holdfast_operator.plan.pods import MASTER_SLOT
from holdfast_wire.messages import FinishDecision, PodPhase, ReplaceDecision, ScaleDecision
from jobs.job_files import TEMPLATE
from jobs.planned import World, creates, deletes, running, worker

DONE = FinishDecision(decision_id=9, succeeded=True, reason="Succeeded", text="all done")
FAILED = FinishDecision(decision_id=9, succeeded=False, reason="NoProgress", text="no step")
_GRACE_SECONDS = 20
_TEMPLATE = {
    "spec": {
        "containers": [{"name": "worker", "image": "i", "command": ["true"]}, {"name": "logs"}],
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
}


def _decided(decision: FinishDecision = DONE, **fields: Any) -> World:
    world = running(
        **{"replicas": 2, "extraRoles": [{"name": "e", "template": TEMPLATE}], **fields}
    )
    world.hear(decision)
    return world


def _over(decision: FinishDecision = DONE, **fields: Any) -> World:
    world = _decided(decision, **fields)
    for _ in range(3):
        made = world.look()
        if any(isinstance(action, FinishJob) for action in made.actions):
            return world
        for name, pod in world.pods.items():
            if pod.slot != MASTER_SLOT and pod.live:
                world.end(name, 0)
    raise AssertionError("the job did not end")


def test_a_decided_end_takes_the_pods_first() -> None:
    """Nobody may think that the job's devices are free while its processes run."""
    world = _decided()
    made = world.look()
    assert deletes(made) == {"t-e-0-0": "JobFinished"}
    assert made.requeue_after == LEAVE_SECONDS
    world.now += LEAVE_SECONDS
    made = world.look()
    assert deletes(made) == {
        "t-e-0-0": "JobFinished",
        "t-worker-0-0": "JobFinished",
        "t-worker-1-0": "JobFinished",
    }
    assert not any(isinstance(action, FinishJob) for action in made.actions)
    assert made.requeue_after == END_WAIT_SECONDS + 30 - LEAVE_SECONDS
    world.do(made)
    assert world.look().actions == ()
    world.finish_deletions()
    assert world.look().actions == (FinishJob(succeeded=True, reason="Succeeded", text="all done"),)


def test_agents_may_leave_by_themselves_first() -> None:
    """The master tells them to; a pod that ended well is not shown as one that was killed."""
    world = _decided(extraRoles=[])
    assert world.look().actions == ()
    for name in ("t-worker-0-0", "t-worker-1-0"):
        world.end(name, 0)
    (action,) = world.look().actions
    assert isinstance(action, FinishJob)


def test_a_pod_that_does_not_go_cannot_hold_up_the_end_for_ever() -> None:
    """After its grace and a minute the job is over all the same."""
    world = _decided(FAILED)
    world.now += LEAVE_SECONDS
    world.do(world.look())
    world.now += END_WAIT_SECONDS + 30 - LEAVE_SECONDS
    (action,) = world.look().actions
    assert action == FinishJob(succeeded=False, reason="NoProgress", text="no step")


def test_with_cleanup_none_the_pods_end_by_themselves() -> None:
    """Nothing is deleted; the job is over when its agents have left, which the master told them."""
    world = _decided(cleanup__pods="None")
    assert world.look().actions == ()
    for name in ("t-worker-0-0", "t-worker-1-0", "t-e-0-0"):
        world.end(name, 0)
    assert [type(action) for action in world.look().actions] == [FinishJob]
    assert world.look().actions == ()
    assert world.live("master") == [0]


def test_no_pod_is_made_and_no_wish_is_heard_once_the_end_is_decided() -> None:
    """Whatever fails, is replaced or is to be scaled then: it is over."""
    world = _decided()
    world.end("t-worker-0-0", 1)
    world.end("t-master-0-0", 1)
    uid = world.pods["t-worker-1-0"].uid
    world.hear(ReplaceDecision(node_rank=1, pod_uid=uid))
    world.hear(ScaleDecision(decision_id=1, replicas=5))
    world.now += LEAVE_SECONDS
    made = world.look()
    assert creates(made) == []
    assert deletes(made) == {"t-e-0-0": "JobFinished", "t-worker-1-0": "JobFinished"}


def test_the_end_is_said_once() -> None:
    """The next plan finds it in the status."""
    world = _over()
    assert not any(isinstance(action, FinishJob) for action in world.look().actions)


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        ("Running", {"t-master-0-0"}),
        ("All", {"t-master-0-0", "t-worker-0-0", "t-worker-1-0", "t-e-0-0"}),
        ("None", set()),
    ],
)
def test_cleanup_takes_what_the_spec_says(policy: str, gone: set[str]) -> None:
    """Running: what still lives; All: dead pods with their logs, too; None: nothing."""
    world = _over(cleanup__pods=policy)
    assert set(deletes(world.look())) == gone
    world.settle()
    assert set(world.pods) == {"t-master-0-0", "t-worker-0-0", "t-worker-1-0", "t-e-0-0"} - gone


def test_a_pod_on_a_lost_node_is_cleaned_up_with_the_running_ones() -> None:
    """It may still run."""
    world = _over()
    world.change("t-master-0-0", lost=True)
    assert set(deletes(world.look())) == {"t-master-0-0"}


def test_the_whole_job_goes_when_its_time_is_spent() -> None:
    """The field ttlSecondsAfterFinished counts from the end that stands in the status."""
    world = _over(cleanup__ttlSecondsAfterFinished=100)
    world.settle()
    made = world.look()
    assert made.actions == ()
    assert made.requeue_after == pytest.approx(100, abs=1)
    world.now += 100
    (action,) = world.look().actions
    assert action == DeleteJob(reason="ttlSecondsAfterFinished (100 s) is spent")
    world.carry_out(action)
    assert world.pods == {}


def test_suspending_a_job_that_is_over_does_not_keep_it() -> None:
    """Its time after the end goes on, nothing of it is made again, and a resume changes nothing."""
    world = _over(cleanup__ttlSecondsAfterFinished=100)
    world.settle()
    for wanted in (True, False):
        world.suspend(wanted=wanted)
        assert world.look().actions == ()
        world.now += 40
    world.suspend(wanted=True)
    world.now += 20
    (action,) = world.look().actions
    assert isinstance(action, DeleteJob)


@pytest.mark.parametrize("began", [True, False])
def test_a_suspended_job_is_not_over(began: bool) -> None:  # noqa: FBT001
    """Its time after the end does not begin while it waits, also where it began suspended."""
    spec = {"replicas": 1, "cleanup": {"ttlSecondsAfterFinished": 0}}
    world = World({**spec, "suspend": True} if began else spec)
    world.settle()
    world.suspend(wanted=True)
    world.settle()
    world.now += 1e6
    assert not any(isinstance(action, DeleteJob) for action in world.look().actions)
    world.suspend(wanted=False)
    world.settle()
    assert any(pod.live for pod in world.pods.values())


def _master_that_cannot_start(times: int) -> World:
    world = World({"replicas": 1})
    for incarnation in range(times):
        world.now += world.look().requeue_after or 0
        world.make(MASTER_SLOT, incarnation)
        world.look()
        world.now += 0.2
        world.end(f"t-master-0-{incarnation}", 3)
    return world


@pytest.mark.parametrize(("vanishes", "code"), [(False, " (exit code 3)"), (True, "")])
def test_a_master_that_cannot_be_started_fails_the_job(code: str, *, vanishes: bool) -> None:
    """A wrong image or port would otherwise be tried again and again, and nobody would say so."""
    world = _master_that_cannot_start(MASTER_ATTEMPTS)
    if vanishes:
        world.pods.clear()
    made = world.look()
    (finish,) = [action for action in made.actions if isinstance(action, FinishJob)]
    assert finish.reason == MASTER_LOST
    assert finish.text == f"the job master ended at once 6 times in a row{code}; see its log"
    assert creates(made) == []


def test_workers_without_a_master_go_soon_after_the_job_is_given_up() -> None:
    """The grace counts from the last master's end, not from when the next would have come."""
    world = _master_that_cannot_start(MASTER_ATTEMPTS)
    world.make(worker(0))
    assert world.look().requeue_after == LEAVE_SECONDS
    world.now += LEAVE_SECONDS
    assert deletes(world.look()) == {"t-worker-0-0": "JobFinished"}


def test_a_master_is_tried_again_before_that() -> None:
    """Five masters in a row may fail at once; the sixth may live."""
    world = _master_that_cannot_start(MASTER_ATTEMPTS - 1)
    world.now += world.look().requeue_after or 0
    assert creates(world.look()) == ["t-master-0-5", "t-worker-0-0"]
    world.make(MASTER_SLOT, 5)
    assert not any(isinstance(action, FinishJob) for action in world.look().actions)


def test_a_suspension_that_comes_with_the_end_does_not_hold_it_up() -> None:
    """The job is over, and is not called suspended beside that."""
    world = _decided(extraRoles=[])
    world.suspend(True)
    assert world.look().requeue_after == LEAVE_SECONDS
    for name in ("t-worker-0-0", "t-worker-1-0"):
        world.end(name, 0)
    world.look()
    assert (world.status["phase"], world.stated("Complete")[0]) == ("Succeeded", "True")
    assert world.stated("Suspended") == ("False", "JobFinished")


def test_a_pod_that_waits_for_a_node_does_not_hold_up_the_end() -> None:
    """The others have succeeded without it; it goes before the job is over."""
    world = running(replicas=2, minReplicas=1)
    world.change("t-worker-1-0", phase=PodPhase.PENDING, ready=False, waiting="Unschedulable")
    world.end("t-worker-0-0", 0)
    world.hear(DONE)
    world.look()
    world.now += LEAVE_SECONDS
    made = world.look()
    assert deletes(made) == {"t-worker-1-0": "JobFinished"}
    world.do(made)
    world.finish_deletions()
    assert [type(action) for action in world.look().actions] == [FinishJob]


def _lingering(exit_code: int, **fields: Any) -> World:
    world = running(replicas=2, worker={"template": _TEMPLATE}, **fields)
    world.end("t-worker-0-0", exit_code, lingers=True)
    return world


def _graces(made: Plan) -> dict[str, int]:
    return {one.name: one.grace_s for one in made.actions if isinstance(one, DeletePod)}


def test_a_failed_worker_is_followed_though_its_side_container_runs() -> None:
    """The successor comes at once; then the side container gets the grace of its template."""
    world = _lingering(42)
    made = world.look()
    assert (creates(made), deletes(made)) == (["t-worker-0-1"], {})
    world.do(made)
    made = world.look()
    assert deletes(made) == {"t-worker-0-0": "Superseded"}
    assert _graces(made) == {"t-worker-0-0": _GRACE_SECONDS}


def test_a_worker_that_is_done_keeps_its_side_container_while_others_train() -> None:
    """It may still ship logs; the place needs no successor."""
    world = _lingering(0)
    assert world.look().actions == ()
    assert world.status["replicas"] == 1


def test_the_end_of_a_job_ends_side_containers_too() -> None:
    """Agents may leave first; then they get their grace, and are gone before the job is over."""
    world = _lingering(0)
    world.end("t-worker-1-0", 0)
    world.hear(DONE)
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), LEAVE_SECONDS)
    world.now += LEAVE_SECONDS
    made = world.look()
    assert deletes(made) == {"t-worker-0-0": "JobFinished"}
    assert _graces(made) == {"t-worker-0-0": _GRACE_SECONDS}
    world.do(made)
    assert world.look().actions == ()
    world.finish_deletions()
    assert [type(action) for action in world.look().actions] == [FinishJob]


def test_a_cleanup_that_keeps_all_pods_waits_for_no_side_container() -> None:
    """Nobody would end it."""
    world = _lingering(0, cleanup__pods="None")
    world.end("t-worker-1-0", 0)
    world.hear(DONE)
    assert [type(action) for action in world.look().actions] == [FinishJob]
    assert world.look().actions == ()


def test_a_suspended_job_ends_side_containers_with_their_grace() -> None:
    """A worker that has ended beside one is not live, and its pod still runs."""
    world = _lingering(1)
    world.suspend(True)
    made = world.look()
    assert _graces(made)["t-worker-0-0"] == _GRACE_SECONDS
