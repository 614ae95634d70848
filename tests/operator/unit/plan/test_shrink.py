"""Workers go only when the master has let go of them, or when their grace is spent."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.plan.actions import DeletePod
from holdfast_operator.plan.pods import PodSlot
from holdfast_wire.messages import ReleaseDecision
from jobs.job_files import TEMPLATE
from jobs.planned import NOW, World, creates, deletes, running


def _scaled_down(**fields: Any) -> World:
    world = running(**{"replicas": 4, "minReplicas": 1, **fields})
    world.scale(2)
    return world


def test_a_surplus_worker_waits_for_its_release() -> None:
    """The master first makes a world without it; the time of the grace's end is told."""
    world = _scaled_down()
    made = world.look()
    assert made.actions == ()
    assert made.requeue_after == 120
    world.hear(ReleaseDecision(decision_id=1, node_ranks=(3,), reason="not in the world"))
    assert deletes(world.look()) == {"t-worker-3-0": "ScaledDown"}


def test_a_surplus_worker_that_nobody_releases_goes_after_its_grace() -> None:
    """A master that is away cannot keep pods for ever."""
    world = _scaled_down(elasticPolicy__scaleDownGraceSeconds=10)
    world.look()
    world.now = NOW + 9.9
    assert world.look().actions == ()
    world.now = NOW + 10
    assert deletes(world.look()) == {"t-worker-2-0": "ScaledDown", "t-worker-3-0": "ScaledDown"}


def test_a_grace_of_zero_waits_for_nobody() -> None:
    """A grace of zero lets surplus pods go without a wait."""
    world = _scaled_down(elasticPolicy__scaleDownGraceSeconds=0)
    assert set(deletes(world.look())) == {"t-worker-2-0", "t-worker-3-0"}


def test_a_worker_that_left_is_made_anew_where_it_is_wanted_again_by_then() -> None:
    """Its end is seen after the new size: its success says that it left, not that it is done."""
    world = _scaled_down()
    world.look()
    world.scale(4)
    world.look()
    world.end("t-worker-3-0", 0)
    assert creates(world.look()) == ["t-worker-3-1"]
    world.settle()
    world.end("t-worker-3-1", 0)
    assert creates(world.look()) == [], "the success of a pod that was always wanted stands"


def test_a_pod_whose_labels_were_edited_is_deleted_by_its_own_name() -> None:
    """A name made from its new place would be another pod's or nobody's, and it would stay."""
    world = running(replicas=2)
    world.change("t-worker-1-0", slot=PodSlot("eval", 0))
    made = world.look()
    assert deletes(made) == {"t-worker-1-0": "ScaledDown"}
    assert creates(made) == ["t-worker-1-1"]


def test_standbys_go_before_workers() -> None:
    """They have the ranks after replicas, so a smaller sum takes the highest ranks."""
    world = running(replicas=3, minReplicas=1, worker__standbys=1)
    world.hear(ReleaseDecision(node_ranks=(0, 1, 2, 3)))
    assert world.look().actions == ()
    world.scale(2)
    world.hear(ReleaseDecision(node_ranks=(3,)))
    assert deletes(world.look()) == {"t-worker-3-0": "ScaledDown"}


def test_a_release_of_an_older_size_does_not_count() -> None:
    """Nodes released once and wanted again since need a new release."""
    world = _scaled_down()
    world.look()
    world.hear(ReleaseDecision(node_ranks=(2, 3)))
    world.scale(4)
    assert world.look().actions == ()
    world.scale(2)
    assert world.look().actions == ()
    world.hear(ReleaseDecision(node_ranks=(3,)))
    assert list(deletes(world.look())) == ["t-worker-3-0"]


def test_a_dead_surplus_worker_goes_at_once() -> None:
    """There is nothing left to save."""
    world = _scaled_down()
    world.end("t-worker-3-0")
    assert deletes(world.look()) == {"t-worker-3-0": "ScaledDown"}


def test_a_worker_that_is_wanted_again_is_made_whatever_its_last_pod_did() -> None:
    """A rank that had finished before a scale-down takes part in the larger world again."""
    world = running(replicas=2, minReplicas=1)
    world.end("t-worker-1-0", 0)
    world.scale(1)
    world.look()
    del world.pods["t-worker-1-0"]
    world.scale(2)
    assert creates(world.look()) == ["t-worker-1-1"]


def test_a_surplus_pod_gets_the_grace_of_its_template() -> None:
    """SIGTERM to SIGKILL as the template says; Kubernetes' 30 s where it does not."""
    pod = {"containers": [{"name": "w", "command": ["x"]}], "terminationGracePeriodSeconds": 7}
    for template, seconds in (({"spec": pod}, 7), (TEMPLATE, 30)):
        world = _scaled_down(worker={"template": template})
        world.hear(ReleaseDecision(node_ranks=(3,)))
        (action,) = world.look().actions
        assert isinstance(action, DeletePod)
        assert action.grace_s == seconds


def test_surplus_pods_of_an_extra_role_go_at_once() -> None:
    """They are not part of the world, so nobody has to let go of them."""
    role = {"name": "eval", "replicas": 2, "template": TEMPLATE}
    world = running(replicas=1, extraRoles=[role])
    body = {**world.job.body, "spec": {**world.job.body["spec"]}}
    body["spec"]["extraRoles"] = [{**body["spec"]["extraRoles"][0], "replicas": 1}]
    world.job = type(world.job)(
        name="t", namespace="default", spec=type(world.job.spec).from_object(body), body=body
    )
    assert deletes(world.look()) == {"t-eval-1-0": "ScaledDown"}


@pytest.mark.parametrize("code", [0, 1, -15])
def test_however_a_surplus_worker_ended_its_place_is_filled_again_at_once(code: int) -> None:
    """A script that is told to stop may end with 1 or by SIGTERM: nothing is waited for."""
    world = _scaled_down()
    world.look()
    world.hear(ReleaseDecision(decision_id=1, node_ranks=(2, 3), reason="not in the world"))
    for rank in (2, 3):
        world.end(f"t-worker-{rank}-0", code)
    assert set(deletes(world.look())) == {"t-worker-2-0", "t-worker-3-0"}
    world.settle()
    assert world.live() == [0, 1]
    world.scale(4)
    assert creates(world.look()) == ["t-worker-2-1", "t-worker-3-1"]


# --- suspension ----------------------------------------------------------------------------------


def _suspended() -> World:
    role = {"name": "eval", "template": TEMPLATE}
    world = running(replicas=2, extraRoles=[role])
    world.suspend(True)
    return world


def test_a_suspended_job_keeps_its_master_until_the_workers_are_gone() -> None:
    """The master saves the state and releases the workers; then it goes, too."""
    world = _suspended()
    made = world.look()
    assert deletes(made) == {"t-eval-0-0": "Suspended"}
    assert made.requeue_after == 120
    world.hear(ReleaseDecision(node_ranks=(0, 1)))
    made = world.look()
    assert deletes(made) == {
        "t-eval-0-0": "Suspended",
        "t-worker-0-0": "Suspended",
        "t-worker-1-0": "Suspended",
    }
    world.do(made)
    assert world.look().actions == ()
    world.finish_deletions()
    assert deletes(world.look()) == {"t-master-0-0": "Suspended"}
    world.settle()
    assert world.pods == {}


def test_a_suspended_job_whose_master_died_gets_another_to_save_its_state() -> None:
    """As long as workers live, somebody has to let them go."""
    world = _suspended()
    world.end("t-master-0-0")
    assert creates(world.look()) == ["t-master-0-1"]


def test_a_job_that_is_suspended_from_the_start_gets_no_pods() -> None:
    """An admission system may hold a job back before anything runs."""
    world = World({"replicas": 2, "suspend": True})
    assert world.look().actions == ()


def test_a_job_that_began_suspended_begins_once_it_is_resumed() -> None:
    """Its status says what it waits for, and then that it was resumed."""
    world = World({"replicas": 2, "suspend": True, "cleanup__ttlSecondsAfterFinished": 5})
    world.look()
    world.now += 1000
    assert world.look().actions == (), "a job that waits is not over"
    assert (world.status["phase"], _suspended_says(world)) == ("Suspended", ("True", "Suspended"))
    world.suspend(False)
    assert creates(world.look()) == ["t-master-0-0", "t-worker-0-0", "t-worker-1-0"]
    assert (world.status["phase"], _suspended_says(world)) == ("Pending", ("False", "Resumed"))


def _suspended_says(world: World) -> tuple[str, str]:
    (found,) = (one for one in world.status["conditions"] if one["type"] == "Suspended")
    return found["status"], found["reason"]


def test_a_resumed_job_gets_all_its_pods_again() -> None:
    """Also in places whose last pod had ended with success when it was saved and stopped."""
    world = _suspended()
    world.look()
    world.end("t-worker-0-0", 0)
    world.now += 120
    world.settle()
    world.suspend(False)
    assert creates(world.look()) == ["t-master-0-1", "t-worker-0-1", "t-worker-1-1", "t-eval-0-1"]


@pytest.mark.parametrize("graceful", [True, False])
def test_dead_workers_of_a_suspended_job_are_cleared_away(graceful: bool) -> None:  # noqa: FBT001
    """Nothing of a suspended job's workers stays, dead or alive."""
    world = _suspended()
    world.end("t-worker-0-0", 0 if graceful else 1)
    assert "t-worker-0-0" in deletes(world.look())
