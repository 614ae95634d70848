"""Pods that end where a training never began, or beside containers that run on."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import Job, Make, container, looping, manifest, pod_spec
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from house.extended import usual

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
OTHER_CODE = pytest.mark.extended(
    "another code of the same end",
    held_by=[
        "operator/process/jobs/test_pod_ends.py::test_ranks_that_are_scaled_away_may_end_as_they_like"
    ],
)
_SHORT = ("--steps=20", "--step-seconds=0.02")
_FAILS = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}


def _beside(body: dict[str, Any], script: str) -> dict[str, Any]:
    """The same job with a sidecar."""
    sidecar = {"name": "sidecar", "image": "i", "command": ["sh", "-c", script]}
    pod_spec(body)["containers"].append(sidecar)
    return body


def _until_nothing_runs(job: Job) -> None:
    job.until("no pod that runs", lambda: not job.live())


def test_a_worker_that_ends_without_ever_having_joined_is_judged(
    make_job: Make, kubectl: Kubectl
) -> None:
    """By the failure rules, by the budget, and beside a sidecar that runs on for ever."""
    early = "sleep 2; exit 42"
    limit = {"noProgressRestarts": {"limit": 1}}
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "rule": (manifest("sh", "-c", early, failurePolicy__rules=[_FAILS]), "FailJobRule"),
        "beside": (
            _beside(manifest("sh", "-c", early, failurePolicy__rules=[_FAILS]), "sleep 1000"),
            "FailJobRule",
        ),
        "budget": (manifest("sh", "-c", early, failurePolicy__budgets=limit), "NoProgress"),
    }
    jobs = {name: make_job(name) for name in cases}
    for name, (body, _) in cases.items():
        jobs[name].create(body)
    for name, (_, reason) in cases.items():
        assert jobs[name].ended() == ("Failed", reason), jobs[name].seen()
        assert "before its agent joined" in jobs[name].condition("Failed")["message"]
        _until_nothing_runs(jobs[name])


def test_a_job_that_no_agent_ever_joins_fails_when_its_time_for_that_is_over(
    make_job: Make,
) -> None:
    """Its worker lives, and its command starts no agent."""
    job = make_job("never")
    job.create(manifest("sleep", "600", grace_s=1, elasticPolicy__belowMinTimeoutSeconds=8))
    assert job.ended() == ("Failed", "BelowMinReplicas"), job.seen()
    _until_nothing_runs(job)


def test_a_job_ends_as_its_training_containers_do(make_job: Make, tmp_path: Path) -> None:
    """A sidecar that fails, runs on for ever or is native does not change the job's end."""
    bodies = {name: looping(tmp_path, *_SHORT) for name in ("fails", "stays", "native")}
    _beside(bodies["fails"], "sleep 3; exit 1")
    _beside(bodies["stays"], "sleep 1000")
    mesh = {"name": "mesh", "image": "i", "restartPolicy": "Always", "command": ["sleep", "1000"]}
    pod_spec(bodies["native"])["initContainers"] = [mesh]
    jobs = {name: make_job(name) for name in bodies}
    for name, body in bodies.items():
        container(body)["env"].append({"name": "LEFT", "value": name})
        jobs[name].create(body)
    for job in jobs.values():
        assert job.ended() == ("Complete", "Succeeded"), job.seen()
        assert "PodFailed" not in job.events()
    for job in jobs.values():
        _until_nothing_runs(job)


@pytest.mark.parametrize("code", usual([1, 143], 143, more=OTHER_CODE))
def test_ranks_that_are_scaled_away_may_end_as_they_like(
    make_job: Make, tmp_path: Path, code: int
) -> None:
    """Their scripts save, and end with another code than 0: the job is none the worse for it."""
    (tmp_path / "train.py").write_text(textwrap.dedent(_LEAVES))
    words = (str(tmp_path / "train.py"), str(code))
    body = manifest("holdfast-run", "--nproc-per-node=1", *words, replicas=2, minReplicas=1)
    job = make_job("away")
    job.create(body)
    job.until_training(2)
    job.patch(replicas=1)
    job.until_training(1)
    job.until_steps()
    job.until("one pod", lambda: len(job.pods()) == 1)
    assert job.status.get("budgets", []) == [], job.seen()
    job.patch(replicas=2)
    job.until_training(2)


_LEAVES = """
    import os, sys, time
    import holdfast

    job = holdfast.init()
    for step in range(1, 1000000):
        time.sleep(0.02)
        if job.step(step) is holdfast.SAVE_AND_STOP:
            sys.exit(int(sys.argv[1]) if os.environ["GROUP_RANK"] == "1" else 0)
"""


def test_a_deadline_holds_though_no_master_can_start(make_job: Make) -> None:
    """The worker would keep its devices for ever."""
    body = manifest("sleep", "600", grace_s=1)
    own = {"name": "master", "image": "i", "command": ["holdfast-master", "--in-pod"]}
    spec = {"nodeSelector": {"no": "such-node"}, "containers": [own]}
    body["spec"]["master"] = {"template": {"spec": spec}}
    job = make_job("nomaster")
    job.create(body)
    job.until("its worker", lambda: job.live() == ["nomaster-worker-0-0"])
    job.until("its word", lambda: job.condition("MasterReady").get("reason") == "Unschedulable")
    job.patch(activeDeadlineSeconds=1)
    assert job.ended() == ("Failed", "DeadlineExceeded")
    assert "Unschedulable: nomaster-master-0-0" in job.condition("Failed")["message"]
    assert job.live() == []


def test_the_status_says_which_container_a_job_waits_for(make_job: Make, tmp_path: Path) -> None:
    """An init container that never ends, then a command that starts no agent; READY counts none."""
    body = manifest("sleep", "600", grace_s=1)
    wait: dict[str, Any] = {
        "name": "fetch",
        "image": "i",
        "command": ["sh", "-c", "until [ -e /w/go ]; do sleep 0.1; done"],
    }
    wait["volumeMounts"] = [{"name": "w", "mountPath": "/w"}]
    pod_spec(body)["initContainers"] = [wait]
    pod_spec(body)["volumes"] = [{"name": "w", "hostPath": {"path": str(tmp_path)}}]
    job = make_job("waits")
    job.create(body)

    def says(words: str) -> bool:
        return words in job.condition("QuorumReady").get("message", "")

    job.until("its word", lambda: says("waits-worker-0-0: init container fetch runs"))
    (tmp_path / "go").touch()
    job.until("its word", lambda: says("1 pods run, and 0 of their agents are ready"))
    assert job.status["readyReplicas"] == 0
