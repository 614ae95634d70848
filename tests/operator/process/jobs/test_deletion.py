"""Jobs that a person deletes in another way than the usual one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.audit import uses
from cluster.control_plane import ControlPlane
from cluster.jobs import SHARED, Make, container, training
from cluster.kubectl import Kubectl
from cluster.release import ACCOUNT
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]


def _pods_made(plane: ControlPlane, namespace: str) -> int:
    """Count the operator's requests for a pod in the namespace."""
    return sum(
        (one.verb, one.resource, one.namespace) == ("create", "pods", namespace)
        for one in uses(plane.audit_log, ACCOUNT)
    )


def test_a_job_deleted_in_the_foreground_goes_after_its_pods(
    plane: ControlPlane, make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """No pod comes back while the job still stands; a last save that is wished holds nothing up.

    Whether it comes is chance: the garbage collector deletes the master's pod with the workers'.
    """
    jobs = {}
    for name in ("plain", "saves"):
        (tmp_path / name).mkdir()
        wish = {"path": SHARED, "onDelete": True, "onDeleteTimeoutSeconds": 300}
        more: dict[str, Any] = {"checkpoint": wish} if name == "saves" else {}
        jobs[name] = make_job(name)
        jobs[name].create(training(tmp_path / name, **more))
    for job in jobs.values():
        job.until_training(1)
    made = _pods_made(plane, kubectl.namespace)
    kubectl.run("delete", "ej", "plain", "--cascade=foreground", "--timeout=30s")
    assert jobs["plain"].pods() + jobs["plain"].pods("master") == []
    jobs["plain"].until_gone()
    kubectl.run("delete", "ej", "saves", "--cascade=foreground", "--timeout=25s")
    jobs["saves"].until_gone()
    assert _pods_made(plane, kubectl.namespace) == made


def test_an_orphaned_job_trains_on_and_its_name_stays_taken(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Nobody deletes what its owner left behind; a job of the same name waits for its removal."""
    job = make_job("left")
    body = training(tmp_path)
    # Nulls, and what JSON may write in more than one way: the kept templates must not change.
    body["spec"]["worker"]["template"]["spec"]["nodeSelector"] = None
    container(body)["env"].append({"name": "TEXT", "value": 'é <&> \U0001f600 \u2028 \\"on'})
    job.create(body)
    job.until_training(1)
    kept = {pod["metadata"]["uid"] for pod in job.pods() + job.pods("master")}
    kubectl.run("delete", "ej", "left", "--cascade=orphan", "--timeout=30s")
    written = (tmp_path / "state.pt").stat().st_mtime_ns
    job.until("more steps", lambda: (tmp_path / "state.pt").stat().st_mtime_ns > written + 10**9)
    job.create(body)
    words = "exists and is not this job's"
    job.until(words, lambda: words in job.condition("MasterReady").get("message", ""))
    left = job.pods() + job.pods("master")
    assert {pod["metadata"]["uid"] for pod in left} == kept
    assert not any(pod["metadata"].get("ownerReferences") for pod in left)
    chosen = "--selector=holdfast.dev/job=left"
    kubectl.run("delete", "pods,services,secrets,controllerrevisions,pdb", chosen, "--timeout=40s")
    job.until_training(1)
    assert not kept & {pod["metadata"]["uid"] for pod in job.pods() + job.pods("master")}
