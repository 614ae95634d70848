"""Ends of jobs: in time, too late, by rule, by hand; with and without an operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import Make, container, looping, manifest, training
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods
from holdfast_wire import keys

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_SAVES = {"path": "/work-files", "onDelete": True, "onDeleteTimeoutSeconds": 60}


def _loop(folder: Path, *flags: str, **spec: Any) -> dict[str, Any]:
    """A job of two ranks in one pod that only counts steps."""
    return looping(folder, "--step-seconds=0.02", *flags, nproc=2, **spec)


def test_what_is_left_of_a_job_is_what_its_cleanup_says(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """None keeps all pods, All none; Running keeps those that ended by themselves."""
    jobs = {kind: make_job(kind.lower()) for kind in ("None", "All", "Running")}
    for kind, job in jobs.items():
        job.create(_loop(tmp_path, "--steps=10", cleanup__pods=kind))
    for job in jobs.values():
        assert job.ended() == ("Complete", "Succeeded")
    jobs["All"].until("no pods", lambda: not jobs["All"].pods() + jobs["All"].pods("master"))
    jobs["Running"].until("no master", lambda: not jobs["Running"].pods("master"))
    assert [pod["status"]["phase"] for pod in jobs["Running"].pods()] == ["Succeeded"]
    assert [pod["status"]["phase"] for pod in jobs["None"].pods()] == ["Succeeded"]
    assert len(jobs["None"].pods("master")) == 1


def test_a_job_ends_by_its_policies(make_job: Make, kubectl: Kubectl, tmp_path: Path) -> None:
    """Any worker that is done, rank 0, a rule about an exit code, the deadline."""
    once = {name: tmp_path / name for name in ("any", "rank0", "rule")}
    fails = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}
    cases: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
        "rank0": (
            _loop(
                tmp_path, "--steps=5000", f"--exit-once=0:0:{once['rank0']}", successPolicy="Rank0"
            ),
            ("Complete", "Succeeded"),
        ),
        "any": (
            _loop(
                tmp_path,
                "--steps=5000",
                f"--exit-once=0:1:{once['any']}",
                replicas=2,
                successPolicy="AnyWorker",
            ),
            ("Complete", "Succeeded"),
        ),
        "rule": (
            _loop(
                tmp_path,
                "--steps=5000",
                f"--exit-once=3:1:{once['rule']}",
                failurePolicy__rules=[fails],
            ),
            ("Failed", "FailJobRule"),
        ),
        "late": (
            manifest("sleep", "600", grace_s=1, activeDeadlineSeconds=6),
            ("Failed", "DeadlineExceeded"),
        ),
    }
    jobs = {name: make_job(name) for name in cases}
    for name, (body, _) in cases.items():
        jobs[name].create(body)
    for name, (_, expected) in cases.items():
        assert jobs[name].ended() == expected, jobs[name].seen()
    kubectl.run("wait", "ej/rule", "--for=condition=Failed", "--timeout=5s")
    jobs["late"].until("no pods", lambda: not jobs["late"].live() + jobs["late"].live("master"))


def test_a_job_that_the_api_server_does_not_take_fails_in_its_words(
    make_job: Make, kubectl: Kubectl
) -> None:
    """The pod template is checked before any pod is made, of every role."""
    role = {"name": "eval", "replicas": 1, "template": {"spec": {"containers": [{"name": "e"}]}}}
    wrong = manifest("sleep", "1")
    container(wrong)["ports"] = [{"containerPort": 70000}]
    bodies = {
        "worker": (wrong, "spec.worker.template: "),
        "beside": (manifest("sleep", "1", extraRoles=[role]), "spec.extraRoles[eval].template: "),
    }
    for name, (body, where) in bodies.items():
        job = make_job(name)
        job.create(body)
        assert job.ended() == ("Failed", "InvalidTemplate")
        told = job.condition("Failed")["message"]
        assert told.startswith(where)
        assert "must be between 1 and 65535" in told or "image: Required value" in told
        assert job.pods() + job.pods("master") == []


def test_a_job_that_asks_for_what_is_not_there_is_refused_by_name(make_job: Make) -> None:
    """Before anything is made for it; what the API server itself fills in asks for nothing."""
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "overrides": (
            {"podTemplateOverrides": [{"manager": "kueue.x-k8s.io/manager"}]},
            "spec.podTemplateOverrides: (a list of 1) asks for changes of templates by other",
        ),
        "scaler": (
            {"elasticPolicy__scaler": "Master"},
            'spec.elasticPolicy.scaler: "Master" asks for a master that scales the job by itself',
        ),
        "copies": (
            {"checkpoint__memory": {"copies": 1}},
            "spec.checkpoint.memory.copies: 1 asks for copies of checkpoints on other nodes",
        ),
        "store": (
            {"checkpoint__path": "s3://b/x"},
            'spec.checkpoint.path: "s3://b/x" asks for checkpoints in an object store',
        ),
    }
    jobs = {name: make_job(name) for name in cases}
    for name, (spec, _) in cases.items():
        jobs[name].create(manifest("sleep", "1", **spec))
    for name, (_, said) in cases.items():
        job = jobs[name]
        assert job.ended() == ("Failed", "NotSupported")
        told = job.condition("Failed")["message"]
        assert told.startswith(said)
        assert "which this version does not have; " in told
        assert job.pods() + job.pods("master") == []


def test_an_edit_that_asks_for_what_is_not_there_ends_no_training(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """An event tells of a queueing system's edit to a running job. The job is left alone."""
    job = make_job("edited")
    job.create(_loop(tmp_path, "--steps=100000"))
    job.until_training(1)
    before = job.world["round"], {pod["metadata"]["uid"] for pod in job.pods()}
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    job.patch(podTemplateOverrides=[{"manager": "kueue", "schedulingGates": gates}])
    told = ("get", "events.events.k8s.io", "--field-selector=reason=NotSupported")
    job.until("its event", lambda: bool(kubectl.json(*told)["items"]))
    (event,) = kubectl.json(*told)["items"]
    assert event["note"].startswith("ignored: spec.podTemplateOverrides: "), event["note"]
    assert "leave it out, and change the templates themselves" in event["note"]
    job.until_steps()
    assert (job.world["round"], {pod["metadata"]["uid"] for pod in job.pods()}) == before


def test_a_deleted_job_saves_first_where_it_is_told_to(
    make_job: Make, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """It waits for the save, also while nobody looks after it; another job does not wait at all."""
    folders = {name: tmp_path / name for name in ("saves", "plain", "later")}
    jobs = {}
    for name, folder in folders.items():
        folder.mkdir()
        jobs[name] = make_job(name)
        wish: dict[str, Any] = {} if name == "plain" else {"checkpoint": _SAVES}
        jobs[name].create(training(folder, **wish))
    for job in jobs.values():
        job.until_training(1)
    assert jobs["saves"].body["metadata"]["finalizers"] == [keys.FINALIZER]
    assert "finalizers" not in jobs["plain"].body["metadata"]
    watching = kubectl.start("logs", "-f", "saves-worker-0-0")
    kubectl.run("delete", "ej", "saves", "--timeout=50s")
    assert "saves and stops after step" in watching.communicate(timeout=30)[0]
    jobs["saves"].until_gone()

    with release.away():
        kubectl.run("delete", "ej", "plain", "--timeout=20s")
        jobs["plain"].until_gone()
        kubectl.run("delete", "ej", "later", "--wait=false")
        step = _step(kubectl)
        jobs["later"].until("it trains on", lambda: _step(kubectl) > step)
    kubectl.run("wait", "ej/later", "--for=delete", "--timeout=50s")
    jobs["later"].until_gone()


def _step(kubectl: Kubectl) -> int:
    """Return the time of the state file's last write. Nobody updates a status now."""
    look = "import os; print(os.stat('/work-files/state.pt').st_mtime_ns)"
    return int(kubectl.run("exec", "later-worker-0-0", "--", "python", "-c", look))
