"""The status: right by the CRD's own schema, stable while nothing changes, true when it does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast_operator.plan.actions import FinishJob
from holdfast_operator.plan.inputs import PlannedJob
from holdfast_operator.plan.view import MasterView
from holdfast_operator.planner import plan
from holdfast_operator.spec.job import SpecVersion
from holdfast_operator.status.conditions import rfc3339
from holdfast_wire.messages import (
    BudgetKind,
    BudgetState,
    ExcludeDecision,
    FinishDecision,
    HealthReason,
    JobPhase,
    JobStatus,
    PodPhase,
)
from jobs.job_files import TEMPLATE
from jobs.planned import NOW, World, creates, running, worker

TRAINING = JobStatus(
    phase=JobPhase.TRAINING,
    epoch=1,
    round=3,
    world_size=8,
    active_nodes=4,
    ready_nodes=4,
    step=77,
    restarts_in_place=2,
    nodes_replaced=1,
    nodes_disrupted=5,
    rescales=6,
    budgets=(
        BudgetState(kind=BudgetKind.FAILURES, used=3, limit=32),
        BudgetState(kind=BudgetKind.RESCALES, used=0, limit=9),
    ),
    goodput=0.876,
    job_seconds=100.0,
)


def _condition(status: dict[str, Any], kind: str) -> tuple[str, str]:
    (found,) = [one for one in status["conditions"] if one["type"] == kind]
    return found["status"], found["reason"]


def test_the_newest_checkpoint_stands_in_the_status_with_its_tier_and_time() -> None:
    """Storage where both have it; the same one keeps its time, also while no master speaks."""
    world = running(replicas=4)
    assert "lastCheckpoint" not in _said(world)
    first = {"step": 70, "tier": "Memory", "time": rfc3339(NOW)}
    assert _said(world, stored_step=50, memory_step=70)["lastCheckpoint"] == first
    world.now += 5
    assert _said(world, stored_step=60, memory_step=70)["lastCheckpoint"] == first
    both = {"step": 70, "tier": "Storage", "time": rfc3339(NOW + 5)}
    status = _said(world, stored_step=70, memory_step=70)
    assert status["lastCheckpoint"] == both
    world.master, world.now = MasterView(), world.now + 60
    world.look()
    assert world.status["lastCheckpoint"] == both


def test_a_finished_worker_is_not_made_again_by_an_operator_that_begins() -> None:
    """Its pod went with its node, and nothing else knows that its training has ended well."""
    world = running(replicas=4, successPolicy="AllWorkers")
    for rank in (0, 2, 3):
        world.end(f"t-worker-{rank}-0", 0)
    world.look()
    assert world.status["completedIndexes"] == "0,2-3"
    del world.pods["t-worker-2-0"]
    assert world.look().actions == ()
    world.history = {}
    del world.pods["t-worker-1-0"]
    assert creates(world.look()) == ["t-worker-1-0"], "the others have finished"
    assert world.status["completedIndexes"] == "0,2-3"
    world.suspend(wanted=True)
    world.look()
    assert "completedIndexes" not in world.status
    world.suspend(wanted=False)
    assert "t-worker-2-0" in creates(world.look()), "wanted again, it takes part in a new world"


def _said(world: World, said: JobStatus = TRAINING, **fields: Any) -> dict[str, Any]:
    world.hear(dataclasses.replace(said, **fields))
    world.look()
    return world.status


def test_a_new_job_is_pending() -> None:
    """Before its master has said anything there are sizes, a selector and conditions."""
    world = World({"replicas": 4, "minReplicas": 2})
    world.look()
    assert world.status["phase"] == "Pending"
    assert world.status["size"] == {"min": 2, "desired": 4, "max": 4}
    assert world.status["selector"] == "holdfast.dev/job=t,holdfast.dev/role=worker"
    assert (world.status["replicas"], world.status["readyReplicas"]) == (0, 0)
    assert {one["type"] for one in world.status["conditions"]} == {
        "Suspended",
        "MasterReady",
        "QuorumReady",
        "Scaling",
        "Degraded",
        "Healthy",
    }
    assert _condition(world.status, "MasterReady") == ("False", "MasterStarting")
    assert _condition(world.status, "QuorumReady") == ("False", "InsufficientWorkers")
    assert _condition(world.status, "Suspended") == ("False", "NotSuspended")


def test_a_training_job_shows_what_its_master_says() -> None:
    """World, restarts, touched budgets and goodput are the master's; pods are counted here."""
    world = running(replicas=4)
    status = _said(world)
    assert status["phase"] == "Running"
    assert status["startTime"] == rfc3339(NOW)
    assert status["world"] == {
        "round": 3,
        "epoch": 1,
        "size": 8,
        "activeReplicas": 4,
        "standbys": 0,
        "step": 77,
    }
    assert status["restarts"] == {
        "total": 3,
        "inPlace": 2,
        "replaced": 1,
        "disrupted": 5,
        "rescaled": 6,
    }
    assert status["budgets"] == [{"name": "failures", "used": 3, "limit": 32}]
    assert status["goodputPercent"] == 88
    assert (status["replicas"], status["readyReplicas"]) == (4, 4)
    assert _condition(status, "MasterReady") == ("True", "Connected")
    assert _condition(status, "QuorumReady") == ("True", "EnoughWorkers")
    assert _condition(status, "Degraded") == ("False", "AsRequested")
    assert _condition(status, "Scaling") == ("False", "Steady")


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (HealthReason.AS_EXPECTED, ("True", "AsExpected")),
        (HealthReason.STRAGGLER, ("False", "Straggler")),
        (HealthReason.HANG, ("False", "Hang")),
        (HealthReason.PREFLIGHT_FAILED, ("False", "PreflightFailed")),
        (HealthReason.NOT_JUDGED, ("Unknown", "NotJudged")),
        (HealthReason.UNSPECIFIED, ("Unknown", "NotJudged")),
    ],
)
def test_healthy_is_what_the_master_says_of_the_ranks(
    health: HealthReason, expected: tuple[str, str]
) -> None:
    """With its words; a master of an older release says nothing, so nobody knows."""
    world = running(replicas=4)
    status = _said(world, health=health, health_text="rank 2 is slow")
    assert _condition(status, "Healthy") == expected
    (found,) = [one for one in status["conditions"] if one["type"] == "Healthy"]
    assert found["message"] == "rank 2 is slow"


def test_a_goodput_that_is_a_guess_is_marked_and_stays_marked() -> None:
    """Also while no master is there to say so, and at the job's end; a measured one has no mark."""
    world = running(replicas=4)
    assert "goodputAssumed" not in _said(world)
    status = _said(world, goodput_assumed=True)
    assert (status["goodputPercent"], status["goodputAssumed"]) == (88, True)
    world.master = type(world.master)()
    world.look()
    assert world.status["goodputAssumed"] is True


def test_a_guessed_step_stands_apart() -> None:
    """The column `Step` of kubectl cannot show that a step is a guess."""
    assert "guessedStep" not in _said(running(replicas=4))["world"]
    status = _said(running(replicas=4), step=12, step_guessed=True)
    assert (status["world"]["step"], status["world"]["guessedStep"]) == (0, 12)


def test_an_unchanged_job_has_an_unchanged_status() -> None:
    """Time alone changes nothing, so nothing needs to be written."""
    world = running(replicas=4)
    before = _said(world)
    world.now += 1000
    world.look()
    assert world.status == before


def test_a_condition_keeps_its_time_until_its_statement_changes() -> None:
    """The lastTransitionTime is of the status, not of the reason or the message."""
    world = running(replicas=4)
    _said(world, active_nodes=3)
    world.now += 60
    first = {one["type"]: one for one in world.status["conditions"]}
    status = _said(world, active_nodes=2)
    second = {one["type"]: one for one in status["conditions"]}
    assert second["Degraded"]["message"] == "2 of 4 workers train"
    assert second["Degraded"]["lastTransitionTime"] == first["Degraded"]["lastTransitionTime"]
    assert first["QuorumReady"]["status"] == second["QuorumReady"]["status"] == "False"
    status = _said(world)
    assert _condition(status, "Degraded") == ("False", "AsRequested")
    (degraded,) = [one for one in status["conditions"] if one["type"] == "Degraded"]
    assert degraded["lastTransitionTime"] == rfc3339(NOW + 60)


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        (JobPhase.TRAINING, "Running"),
        (JobPhase.STOPPING, "Running"),
        (JobPhase.SAVING, "Scaling"),
        (JobPhase.WAITING, "Restarting"),
        (JobPhase.FORMING, "Restarting"),
        (JobPhase.STARTING, "Restarting"),
    ],
)
def test_the_phase_of_a_job_that_has_trained(phase: JobPhase, shown: str) -> None:
    """One word for people."""
    world = running(replicas=4)
    _said(world)
    assert _said(world, phase=phase)["phase"] == shown


@pytest.mark.parametrize("phase", [JobPhase.WAITING, JobPhase.FORMING, JobPhase.STARTING])
def test_a_job_that_has_not_trained_yet_is_pending(phase: JobPhase) -> None:
    """The first world takes its time; that is no restart."""
    assert _said(running(replicas=4), phase=phase, round=0)["phase"] == "Pending"


def test_scaling_up_shows_until_a_world_of_the_new_size_trains() -> None:
    """Pods that run are not enough: who waits for the end of the scaling waits for the training."""
    world = running(replicas=4, minReplicas=1)
    _said(world)
    world.scale(6)
    world.look()
    assert _condition(world.status, "Scaling") == ("True", "ScaleUp")
    assert world.status["phase"] == "Scaling"
    world.settle()
    assert _condition(_said(world, active_nodes=5), "Scaling") == ("True", "ScaleUp")
    assert "5 workers train, 6 are to" in str(world.status["conditions"])
    assert _condition(_said(world, active_nodes=6), "Scaling") == ("False", "Steady")
    assert _condition(_said(world, active_nodes=5), "Scaling") == ("False", "Steady")


def test_scaling_down_shows_until_a_world_of_the_new_size_trains() -> None:
    """The pods are to go first, then the world that is left must train."""
    world = running(replicas=4, minReplicas=1)
    _said(world)
    world.scale(3)
    world.look()
    assert _condition(world.status, "Scaling") == ("True", "ScaleDown")
    world.pods = {name: pod for name, pod in world.pods.items() if pod.slot.index != 3}
    assert _condition(_said(world), "Scaling") == ("True", "ScaleDown")
    assert _condition(_said(world, active_nodes=3), "Scaling") == ("False", "Steady")


def test_standbys_are_not_waited_for() -> None:
    """A pod left over from nodeUnit is in no world. No scaling waits for it."""
    world = running(replicas=4, minReplicas=2, nodeUnit=2)
    _said(world)
    world.scale(5)
    world.look()
    world.settle()
    assert _condition(_said(world), "Scaling") == ("False", "Steady")


def test_a_scaling_that_is_taken_back_is_over() -> None:
    """The size that trains is the one that is asked for again."""
    world = running(replicas=4, minReplicas=1)
    _said(world)
    world.scale(6)
    world.look()
    world.scale(4)
    assert _condition(_said(world), "Scaling") == ("False", "Steady")


def test_the_time_of_the_last_change_of_size_is_kept() -> None:
    """It is when a world of another size first trained."""
    world = running(replicas=4)
    assert "lastScaleTime" not in _said(world)["world"]
    world.now += 5
    assert _said(world, active_nodes=3)["world"]["lastScaleTime"] == rfc3339(NOW + 5)
    world.now += 5
    assert _said(world, active_nodes=3)["world"]["lastScaleTime"] == rfc3339(NOW + 5)


@pytest.mark.parametrize(
    ("unit", "active", "degraded"),
    [(1, 5, "False"), (1, 4, "True"), (2, 4, "False"), (2, 2, "True")],
)
def test_a_job_is_degraded_when_fewer_train_than_could(
    unit: int, active: int, degraded: str
) -> None:
    """Workers beyond a multiple of nodeUnit are standbys, and no loss."""
    world = running(replicas=5, minReplicas=2, nodeUnit=unit)
    assert _condition(_said(world, active_nodes=active), "Degraded")[0] == degraded


@pytest.mark.parametrize(
    ("scheduling", "listed"),
    [({}, ["a", "b"]), ({"maxExcludedNodes": 1}, ["b"]), ({"excludeFailedNodes": False}, None)],
)
def test_avoided_nodes_are_listed(scheduling: dict[str, Any], listed: list[str] | None) -> None:
    """People should know why pods do not go there: as many as the spec lets new pods avoid."""
    world = running(replicas=4, scheduling=scheduling)
    _said(world)
    for node in ("a", "b"):
        world.hear(ExcludeDecision(node=node))
    world.look()
    assert world.status.get("excludedNodes") == listed
    degraded = ("True", "NodeExcluded") if listed else ("False", "AsRequested")
    assert _condition(world.status, "Degraded") == degraded


def test_a_master_that_is_away_leaves_its_last_word() -> None:
    """Training goes on without it; pods' own readiness is counted then."""
    world = running(replicas=4)
    before = _said(world)
    world.master = world.master.disconnected()
    world.change("t-worker-0-0", ready=False)
    world.look()
    assert _condition(world.status, "MasterReady") == ("False", "MasterUnreachable")
    assert world.status["world"] == before["world"]
    assert world.status["readyReplicas"] == 3


def test_a_keeper_that_was_just_started_keeps_what_only_the_past_knows() -> None:
    """Until the master speaks again, the last status says where the job was."""
    world = running(replicas=4)
    before = _said(world)
    world.master = type(world.master)()
    world.history = {}
    world.look()
    for name in ("world", "restarts", "budgets", "goodputPercent", "startTime"):
        assert world.status[name] == before[name]


def test_the_masters_address_is_shown_once_it_is_known() -> None:
    """Users connect there."""
    world = World({"replicas": 1})
    kept = PlannedJob(
        name="t", uid="u", version=SpecVersion(1), spec=world.job.spec, master_endpoint="m:1"
    )
    assert plan(kept, (), world.master, NOW).status["masterEndpoint"] == "m:1"


def test_pods_are_counted_by_role() -> None:
    """Active, ready, succeeded, failed and terminating of each role."""
    role = {"name": "eval", "restartPolicy": "Never", "template": TEMPLATE}
    world = running(replicas=2, extraRoles=[role])
    world.end("t-eval-0-0", 0)
    world.change("t-worker-0-0", deleting=True)
    world.make(worker(1), 1)
    world.end("t-worker-1-0", 1)
    world.look()
    counts = {role.pop("name"): role for role in map(dict, world.status["roles"])}
    names = ("active", "ready", "succeeded", "failed", "terminating")
    assert {name: tuple(count[key] for key in names) for name, count in counts.items()} == {
        "master": (1, 1, 0, 0, 0),
        "worker": (2, 1, 0, 1, 1),
        "eval": (0, 0, 1, 0, 0),
    }


def test_suspending_resuming_and_suspended_are_told_apart() -> None:
    """The condition is true only once no worker is left."""
    world = running(replicas=2)
    _said(world)
    world.suspend(True)
    world.look()
    assert world.status["phase"] == "Suspended"
    assert _condition(world.status, "Suspended") == ("False", "Suspending")
    world.now += 120
    world.settle()
    assert _condition(world.status, "Suspended") == ("True", "Suspended")
    world.master = world.master.disconnected()
    world.look()
    assert _condition(world.status, "MasterReady") == ("False", "Suspended")
    world.suspend(False)
    world.look()
    assert _condition(world.status, "Suspended") == ("False", "Resumed")
    world.settle()
    assert _condition(world.status, "Suspended") == ("False", "Resumed")


@pytest.mark.parametrize(
    ("succeeded", "condition", "phase"),
    [(True, "Complete", "Succeeded"), (False, "Failed", "Failed")],
)
def test_an_end_is_told_once_and_never_changes(
    succeeded: bool,  # noqa: FBT001
    condition: str,
    phase: str,
) -> None:
    """Complete or Failed and the completionTime come together, when the pods have ended."""
    world = running(replicas=2)
    _said(world)
    world.hear(FinishDecision(succeeded=succeeded, reason="Because", text="of that"))
    world.look()
    assert ("FailureTarget" in str(world.status)) is not succeeded
    assert "completionTime" not in world.status
    world.now += 7
    for name in ("t-worker-0-0", "t-worker-1-0"):
        world.end(name, 0)
    assert [type(action) for action in world.look().actions] == [FinishJob]
    assert _condition(world.status, condition) == ("True", "Because")
    assert world.status["phase"] == phase
    assert world.status["completionTime"] == rfc3339(NOW + 7)
    ended = world.status
    world.now += 100
    world.hear(FinishDecision(succeeded=not succeeded, reason="Other", text=""))
    world.hear(JobStatus(round=99))
    world.pods.clear()
    world.look()
    counted = ("replicas", "readyReplicas", "roles")
    assert {k: v for k, v in world.status.items() if k not in counted} == {
        k: v for k, v in ended.items() if k not in counted
    }


def test_a_pod_that_is_only_pending_is_not_ready() -> None:
    """Worker pods that exist, and those whose agent is connected, are two numbers."""
    world = World({"replicas": 1})
    world.make(worker(0))
    world.look()
    assert world.pods["t-worker-0-0"].phase is PodPhase.PENDING
    assert (world.status["replicas"], world.status["readyReplicas"]) == (1, 0)


def test_times_are_written_as_kubernetes_does() -> None:
    """UTC and whole seconds."""
    assert rfc3339(0.1) == "1970-01-01T00:00:01Z"


def test_the_version_of_what_a_queue_admits_is_kept_for_a_later_operator() -> None:
    """A job that never had a queue has none."""
    world = running(replicas=2)
    assert "admissionRevision" not in _said(world)
    world.revision = 1_700_000_000_000
    assert _said(world)["admissionRevision"] == 1_700_000_000_000
