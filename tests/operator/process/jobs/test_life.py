"""A job's life with real torch in its pods: its size, its pauses, pods that go, its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Job, Make, container, manifest, training
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods
from house.patience import patience

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("witness"),
    needs_pods,
]
_KEPT = "services,secrets"


def _environment(pod: dict[str, Any]) -> dict[str, str]:
    listed = pod["spec"]["containers"][0]["env"]
    return {one["name"]: one.get("value", "") for one in listed}


def _edit(job: Job, body: dict[str, Any], value: str) -> None:
    """Change the worker's template."""
    container(body)["env"] = [{"name": "EDITED", "value": value}]
    job.patch(worker=body["spec"]["worker"])


def _ready(job: Job, role: str) -> int:
    return int(next(one["ready"] for one in job.status["roles"] if one["name"] == role))


def _applied(kubectl: Kubectl) -> set[str]:
    """Fields of the status that are written whole, with every change."""
    shown = kubectl.json("get", "ej", "life", "--show-managed-fields")
    owners = shown["metadata"]["managedFields"]
    applied = [one["fieldsV1"] for one in owners if one["operation"] == "Apply"]
    (status,) = (fields["f:status"] for fields in applied if "f:status" in fields)
    return set(status)


def _says(kubectl: Kubectl, pod: str, words: str) -> bool:
    return words in kubectl.try_run("logs", pod).stdout


def test_a_job_follows_its_size_and_pauses_when_it_is_told(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Up, down, suspended, edited, resumed: every change at a saved step, nothing counted."""
    job = make_job("life")
    body = training(tmp_path, replicas=2, minReplicas=1, maxReplicas=3)
    job.create(body)
    kubectl.run("wait", "ej/life", "--for=condition=QuorumReady", "--timeout=50s")
    job.until_training(2)
    assert job.status["masterPods"] == 1
    assert "f:masterPods" not in _applied(kubectl)  # see `apply`: it would be taken back
    for condition in ("MasterReady", "QuorumReady"):
        kubectl.run("wait", "ej/life", f"--for=condition={condition}", "--timeout=5s")
    _scale(job, kubectl)
    job.patch(suspend=True)
    kubectl.run("wait", "ej/life", "--for=condition=Suspended", "--timeout=60s")
    job.until("no pods", lambda: not job.pods() + job.pods("master"))
    assert len(kubectl.run("get", _KEPT, "-l", "holdfast.dev/job=life", "-o", "name").split()) == 5
    assert job.status["phase"] == "Suspended"
    before = job.world["step"]
    _edit(job, body, "while suspended")
    job.patch(suspend=False)
    kubectl.run("wait", "ej/life", "--for=condition=Suspended=False", "--timeout=50s")
    assert job.status["phase"] != "Suspended"
    job.until_training(1)
    assert job.world["step"] >= before
    assert _environment(job.pods()[0])["EDITED"] == "while suspended"
    assert job.condition("Suspended")["reason"] == "Resumed"
    assert "failures" not in {one["name"] for one in job.status["budgets"]}


def _scale(job: Job, kubectl: Kubectl) -> None:
    """Up to three and down to one, as a person does who waits for it."""
    kubectl.run("scale", "ej", "life", "--replicas=3")
    # Scaling is False from before: kubectl wait has to see that it is not about this size yet.
    kubectl.run("wait", "ej/life", "--for=condition=Scaling=False", "--timeout=50s")
    assert (job.world["activeReplicas"], job.status["replicas"]) == (3, 3)
    job.until_training(3)
    with job.awaited("Scaling"):
        kubectl.run("scale", "ej", "life", "--replicas=1")
    job.until_training(1)
    job.until("one pod", lambda: job.live() == ["life-worker-0-0"])
    assert _says(kubectl, "life-worker-0-0", "saves and stops after step")


def test_pods_that_are_taken_away_come_back_as_they_were(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """A worker is made anew from the template in force; a new master restarts nobody."""
    job = make_job("taken")
    body = training(tmp_path, replicas=2, minReplicas=1)
    job.create(body)
    job.until_training(2)
    first = job.status
    kubectl.run("delete", "pod", "-l", "holdfast.dev/job=taken,holdfast.dev/role=master")
    job.until("the next master", lambda: job.world["epoch"] > first["world"]["epoch"])
    job.until("its word", lambda: job.holds("MasterReady"))
    job.until_steps()
    assert job.world["round"] == first["world"]["round"]
    assert job.world["step"] > first["world"]["step"]
    assert job.status["restarts"]["inPlace"] == 0
    assert job.live() == ["taken-worker-0-0", "taken-worker-1-0"]

    _edit(job, body, "while running")
    with job.awaited("Degraded"):
        kubectl.run("delete", "pod", "taken-worker-1-0", "--wait=false")
    job.until("its successor", lambda: "taken-worker-1-1" in job.live())
    job.until_training(2)
    kubectl.run("wait", "ej/taken", "--for=condition=Degraded=False", "--timeout=30s")
    assert all("EDITED" not in _environment(pod) for pod in job.pods())
    # A loss is charged when its incident closes: ten seconds after the next step.
    job.until("its account", lambda: job.status["restarts"]["disrupted"] == 1)
    assert {one["name"] for one in job.status["budgets"]} <= {"preemptions", "rescales"}
    job.delete("--cascade=foreground")
    job.until("the job's own end", lambda: not kubectl.run("get", "ej", "-o", "name"))


def test_a_job_with_an_extra_role_ends_and_is_cleaned_up_by_the_clock(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Complete at every place where people look; then the whole job goes after its time."""
    job = make_job("ends")
    beside: dict[str, Any] = {
        "containers": [{"name": "eval", "image": "i", "command": ["sleep", "600"]}],
        "terminationGracePeriodSeconds": 1,
    }
    role = {"name": "eval", "replicas": 1, "template": {"spec": beside}}
    (tmp_path / "hold").touch()
    job.create(
        training(
            tmp_path,
            "--steps=40",
            replicas=2,
            extraRoles=[role],
            cleanup={"pods": "All", "ttlSecondsAfterFinished": 600},
        )
    )
    job.until_training(2)
    assert job.live("eval") == ["ends-eval-0-0"]
    job.until("its word", lambda: _ready(job, "eval") == 1)
    (tmp_path / "hold").unlink()
    kubectl.run("wait", "ej/ends", "--for=jsonpath={.status.completionTime}", "--timeout=50s")
    kubectl.run("wait", "ej/ends", "--for=condition=Complete", "--timeout=1s")
    status = job.status
    assert (status["phase"], status["world"]["step"]) == ("Succeeded", 40)
    assert {one["type"] for one in status["conditions"] if one["status"] == "True"} == {"Complete"}
    job.until("no pods", lambda: not job.pods() + job.pods("master") + job.pods("eval"))
    assert {"WorldTraining", "JobSucceeded", "Succeeded"} <= set(job.events())
    refused = kubectl.try_run("scale", "ej", "ends", "--replicas=1")
    assert "a finished job cannot be scaled" in refused.stderr
    job.patch(cleanup={"ttlSecondsAfterFinished": 1})
    gone = kubectl.try_run("wait", "ej/ends", "--for=delete", "--timeout=30s")
    assert gone.returncode == 0
    job.until_gone()


def test_a_job_that_is_applied_again_changes_only_where_it_was_edited(
    make_job: Make, kubectl: Kubectl
) -> None:
    """Kubectl apply, client-side and on the server, while the operator writes the status."""
    for name, flags in (("client", ()), ("server", ("--server-side",))):
        job = make_job(name)
        body = manifest("sleep", "600", grace_s=1, maxReplicas=3)
        body["metadata"]["name"] = name
        body["spec"]["elasticPolicy"] = {"scaleDownGraceSeconds": 0}
        kubectl.run("apply", *flags, "-f", "-", stdin=body)
        job.until("its pod", lambda job=job: len(job.live()) == 1)  # type: ignore[misc]
        job.until("its word", lambda job=job: job.status.get("replicas") == 1)  # type: ignore[misc]
        kept = job.body["metadata"]["generation"], job.uids()
        said = kubectl.run("apply", *flags, "-f", "-", stdin=body)
        assert ("unchanged" if not flags else "serverside-applied") in said
        assert (job.body["metadata"]["generation"], job.uids()) == kept
        body["spec"]["replicas"] = 2
        kubectl.run("apply", *flags, "-f", "-", stdin=body)
        job.until("two pods", lambda job=job: len(job.live()) == 2)  # type: ignore[misc]
        job.until("its word", lambda job=job: job.status["replicas"] == 2)  # type: ignore[misc]
        assert job.body["metadata"]["generation"] == kept[0] + 1
        assert kept[1] < job.uids()
        del body["spec"]["maxReplicas"]
        body["spec"]["replicas"] = 1
        kubectl.run("apply", *flags, "-f", "-", stdin=body)
        job.until("one pod", lambda job=job: len(job.pods()) == 1)  # type: ignore[misc]
        assert "maxReplicas" not in job.body["spec"]


def test_a_namespace_goes_with_its_jobs(
    plane: ControlPlane, make_job: Make, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """Mid-run, without a finalizer and with one; a worker that does not save has its deadline."""
    kubectl.run("create", "namespace", "leaves")
    inside = Kubectl(kubectl.kubeconfig, "leaves")
    wish = {"path": "/x", "onDelete": True, "onDeleteTimeoutSeconds": 60}
    jobs = []
    cases: dict[str, dict[str, Any]] = {"plain": {}, "saves": {"checkpoint": wish}}
    for name, more in cases.items():
        (tmp_path / name).mkdir()
        jobs.append(Job(plane, inside, name, release.operator_log))
        jobs[-1].create(training(tmp_path / name, **more))
    stubborn = make_job("stubborn")
    late = {**wish, "onDeleteTimeoutSeconds": 6}
    stubborn.create(manifest("sleep", "600", grace_s=1, replicas=2, checkpoint=late))
    for job in jobs:
        job.until_training(1)
    kubectl.run("delete", "namespace", "leaves", "--timeout=55s")

    stubborn.until("its finalizer", lambda: "finalizers" in stubborn.body["metadata"])
    stubborn.until("its worker", lambda: bool(stubborn.live()))
    asked = time.monotonic()
    kubectl.run("delete", "ej", "stubborn", "--timeout=50s")
    assert 5 < time.monotonic() - asked < 30 * patience()
    stubborn.until_gone()
