"""Jobs and clusters that are not as usual: suspended at first, large, beside others' objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Job, Make, container, looping
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_SHORT = ("--steps=20", "--step-seconds=0.02")


def test_a_job_that_began_suspended_trains_once_it_is_resumed(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """It has nothing before; its deadline begins then; once it is over nothing holds up its TTL."""
    job = make_job("held")
    limits = {"activeDeadlineSeconds": 600, "cleanup__ttlSecondsAfterFinished": 600}
    job.create(looping(tmp_path, *_SHORT, suspend=True, **limits))
    job.until("its word", lambda: job.holds("Suspended"))
    assert job.status["phase"] == "Suspended"
    assert job.pods() + job.pods("master") == []
    job.patch(suspend=False)
    assert job.until_over()["phase"] == "Succeeded"
    said = kubectl.try_run("patch", "ej", "held", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    assert "a finished job cannot be scaled, suspended or resumed" in said.stderr
    job.patch(cleanup={"ttlSecondsAfterFinished": 1})
    job.until_gone()


def test_a_job_of_700_kib_trains(make_job: Make, kubectl: Kubectl, tmp_path: Path) -> None:
    """Its object, its revision and its pods are that large, and each event of a watch is a line."""
    body = looping(tmp_path, *_SHORT)
    large = [{"name": f"LARGE_{number}", "value": "x" * 100_000} for number in range(7)]
    container(body)["env"] += large
    assert len(json.dumps(body)) > 700_000
    job = make_job("large")
    job.create(body)
    assert job.until_over()["phase"] == "Succeeded", job.seen()


def test_a_quota_on_limits_takes_the_master(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """A pod without limits would be refused for ever; the operator's own master has some."""
    hard = {"limits.cpu": "8", "limits.memory": "8Gi", "requests.cpu": "8"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}}
    kubectl.run("create", "-f", "-", stdin={**quota, "spec": {"hard": hard}})
    body = looping(tmp_path, *_SHORT)
    container(body)["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    job = make_job("quota")
    job.create(body)
    assert job.until_over()["phase"] == "Succeeded", job.seen()


def test_a_job_beside_its_operator_is_a_job_like_any_other(
    plane: ControlPlane, release: Release, tmp_path: Path
) -> None:
    """In one namespace neither takes the other's pods, Services or Secrets for its own."""
    job = Job(plane, release.kubectl, "beside-it", release.operator_log)
    before = release.kubectl.run("get", "pods", "-o", "name")
    job.create(looping(tmp_path, *_SHORT, successPolicy="AllWorkers"))
    assert job.until_over()["phase"] == "Succeeded", job.seen()
    job.delete()
    job.until_gone()
    assert release.kubectl.run("get", "pods", "-o", "name") == before, "the operator's own"


def _peering(plural: str, kind: str, scope: str) -> dict[str, Any]:
    """The CRD of kopf's peering, as its documentation has it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kopf.dev"},
        "spec": {
            "scope": scope,
            "group": "kopf.dev",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


_KINDS = (
    ("clusterkopfpeerings", "ClusterKopfPeering", "Cluster"),
    ("kopfpeerings", "KopfPeering", "Namespaced"),
)


@pytest.fixture
def peers(kubectl: Kubectl, release: Release) -> Iterator[None]:
    """Another kopf operator's peering everywhere, with a priority above all."""
    for plural, kind, scope in _KINDS:
        kubectl.run("create", "-f", "-", stdin=_peering(plural, kind, scope))
        kubectl.run("wait", f"crd/{plural}.kopf.dev", "--for=condition=Established")
        other = {"priority": 1000, "lastseen": "2100-01-01T00:00:00", "lifetime": 10**9}
        body = {
            "apiVersion": "kopf.dev/v1",
            "kind": kind,
            "metadata": {"name": "default"},
            "status": {"other": other},
        }
        for place in (kubectl,) if scope == "Cluster" else (kubectl, release.kubectl):
            place.run("create", "-f", "-", stdin=body)
    yield
    for plural, _, _ in _KINDS:
        kubectl.run("delete", "crd", f"{plural}.kopf.dev")


@pytest.mark.usefixtures("peers")
def test_the_peering_of_another_kopf_operator_pauses_nobody(
    make_job: Make, release: Release, tmp_path: Path
) -> None:
    """Ours is elected by a Lease: it begins anew beside such objects, and looks after jobs."""
    release.restart()
    job = make_job("beside")
    job.create(looping(tmp_path, *_SHORT))
    assert job.until_over()["phase"] == "Succeeded", job.seen()
