"""Resources of a job that people take, break, have had first, or give to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Job, Make, container, manifest, training
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]


def _patch(kubectl: Kubectl, what: str, changes: list[dict[str, Any]]) -> None:
    kubectl.run("patch", *what.split(), "--type=json", "-p", json.dumps(changes))


def _waits_for(job: Job, words: str) -> None:
    job.until(words, lambda: words in job.condition("MasterReady").get("message", ""))


def test_what_people_take_or_break_comes_back(
    make_job: Make, release: Release, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Services, a key pair, a date: seen at the next look after them, and the job trains on."""
    release.upgrade("settings.resyncS=3")
    job = make_job("breaks")
    job.create(training(tmp_path, replicas=1))
    job.until_training(1)
    world = job.world
    kubectl.run("delete", "service", "breaks", "breaks-master")
    _patch(
        kubectl, "secret breaks-worker-tls-0", [{"op": "remove", "path": "/data/worker-0.cert.pem"}]
    )
    kubectl.run(
        "annotate", "secret", "breaks-user-tls", "--overwrite", "holdfast.dev/renew-after=x"
    )
    services = ("get", "service", "breaks", "breaks-master")
    job.until("its Services", lambda: kubectl.try_run(*services).returncode == 0)
    job.until(
        "its key pair",
        lambda: "worker-0.cert.pem" in kubectl.json("get", "secret", "breaks-worker-tls-0")["data"],
    )
    job.until("a date", lambda: _renew_after(kubectl, "breaks-user-tls") != "x")
    job.until_steps()
    assert job.world["round"] == world["round"]
    release.upgrade("settings.resyncS=600")


def _renew_after(kubectl: Kubectl, name: str) -> str:
    found = kubectl.json("get", "secret", name)["metadata"]["annotations"]
    return str(found["holdfast.dev/renew-after"])


def test_a_name_that_is_taken_is_told_and_waited_for(make_job: Make, kubectl: Kubectl) -> None:
    """A person's Service is not touched, and the job begins once it is gone."""
    kubectl.run("create", "service", "clusterip", "taken", "--tcp=80")
    job = make_job("taken")
    job.create(manifest("sleep", "600", grace_s=1))
    _waits_for(job, "Service taken exists and is not this job's")
    assert job.pods() == []
    kubectl.run("delete", "service", "taken")
    job.until("its pod", lambda: job.live() == ["taken-worker-0-0"])
    # Before its interpreter runs a master hears no SIGTERM, as the first process of its pod: 30 s.
    job.until("its master", lambda: job.holds("MasterReady"))


def test_a_disruption_budget_of_a_person_stays_as_it_is(make_job: Make, kubectl: Kubectl) -> None:
    """Neither deleted where the job wants none, nor taken over where it wants one."""
    for name in ("none", "own"):
        selector = f"--selector=holdfast.dev/job={name}"
        kubectl.run("create", "pdb", f"{name}-worker", selector, "--max-unavailable=1")
    none, own = make_job("none"), make_job("own")
    none.create(manifest("sleep", "600", grace_s=1))
    own.create(manifest("sleep", "600", grace_s=1, scheduling__podDisruptionBudget="MinReplicas"))
    for job in (none, own):
        job.until("its pod", lambda job=job: len(job.live()) == 1)  # type: ignore[misc]
        budget = kubectl.json("get", "pdb", f"{job.name}-worker")
        assert budget["spec"]["maxUnavailable"] == 1
        assert "ownerReferences" not in budget["metadata"]
        kubectl.run("delete", "ej", job.name)


def test_a_template_of_the_wrong_shape_fails_in_the_api_servers_words(make_job: Make) -> None:
    """The CRD lets a map pass where a list belongs; the API server does not."""
    wrong = manifest("sleep", "1")
    container(wrong)["env"] = {"LR": "3e-4"}
    job = make_job("shape")
    job.create(wrong)
    assert job.until_over()["phase"] == "Failed"
    failed = job.condition("Failed")
    assert failed["reason"] == "InvalidTemplate"
    assert failed["message"].startswith("spec.worker.template: ")
    assert "env" in failed["message"]


@pytest.fixture
def beside(plane: ControlPlane, namespace: str) -> Iterator[Kubectl]:
    """The admin's kubectl in a second namespace."""
    kubectl = Kubectl(plane.kubeconfig, f"{namespace}-beside")
    kubectl.run("create", "namespace", kubectl.namespace)
    yield kubectl
    kubectl.run("delete", "namespace", kubectl.namespace, "--wait=false")


def test_jobs_of_one_name_in_two_namespaces_have_nothing_in_common(
    plane: ControlPlane, make_job: Make, release: Release, beside: Kubectl
) -> None:
    """Each has its master and its pods; with one of them, nothing of the other goes."""
    here = make_job("twin")
    there = Job(plane, beside, "twin", release.operator_log)
    for job in (here, there):
        job.create(manifest("sleep", "600", grace_s=1))
    for job in (here, there):
        job.until("its master", lambda job=job: job.holds("MasterReady"))  # type: ignore[misc]
        job.until("its pod", lambda job=job: job.live() == ["twin-worker-0-0"])  # type: ignore[misc]
    uids = [{pod["metadata"]["uid"] for pod in job.pods()} for job in (here, there)]
    assert uids[0].isdisjoint(uids[1])
    here.delete()
    assert {pod["metadata"]["uid"] for pod in there.pods()} == uids[1]
    assert there.live("master") == ["twin-master-0-0"]
    beside.run("get", "service", "twin", "twin-master")
    there.delete()


def test_a_pod_that_is_given_another_jobs_labels_belongs_to_neither(
    make_job: Make, kubectl: Kubectl
) -> None:
    """Its place is filled again, the other job does not take it for its own; it goes with its own.

    People do so to keep a pod for a look at it, as with a ReplicaSet's.
    """
    mine, other = make_job("mine"), make_job("other")
    for job in (mine, other):
        job.create(manifest("sleep", "600", grace_s=1))
        job.until("its pod", lambda job=job: len(job.live()) == 1)  # type: ignore[misc]
    kubectl.run("label", "pod", "mine-worker-0-0", "--overwrite", "holdfast.dev/job=other")
    mine.until("its successor", lambda: mine.live() == ["mine-worker-0-1"])
    assert other.live() == ["mine-worker-0-0", "other-worker-0-0"]
    kubectl.run("annotate", "ej", "other", "looks=again")
    other.until("its word", lambda: other.holds("MasterReady"))
    assert other.status["replicas"] == 1
    mine.delete()
    gone = ("wait", "pod/mine-worker-0-0", "--for=delete", "--timeout=30s")
    kubectl.run(*gone)
    assert other.live() == ["other-worker-0-0"]
