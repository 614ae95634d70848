"""The CRD as people meet it: kubectl's scale, explain, get and wait, two appliers, an HPA."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from holdfast_operator.spec.schema import parse_crd, walk
from house.patience import patience
from jobs.job_files import CRD, job

pytestmark = pytest.mark.kube
_SELECTOR = "holdfast.dev/job=tr,holdfast.dev/role=worker"
_STATUS: dict[str, Any] = {
    "phase": "Running",
    "replicas": 4,
    "readyReplicas": 3,
    "selector": _SELECTOR,
    "size": {"min": 2, "desired": 4, "max": 8},
    "world": {"round": 5, "epoch": 1, "size": 4, "activeReplicas": 4, "standbys": 0, "step": 70},
    "restarts": {"total": 8, "inPlace": 6, "replaced": 2, "disrupted": 1, "rescaled": 4},
}


@pytest.fixture
def running(plane: ControlPlane, kubectl: Kubectl) -> str:
    """The address of a job with a status as the operator writes it."""
    kubectl.run("create", "-f", "-", stdin=job("tr", minReplicas=2, maxReplicas=8))
    path = f"/apis/holdfast.dev/v1alpha1/namespaces/{kubectl.namespace}/elasticjobs/tr"
    answer = plane.api.merge(f"{path}/status", {"status": _STATUS})
    assert answer.ok, answer.message
    return path


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds * patience()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def test_kubectl_scales_within_the_bounds(kubectl: Kubectl, running: str) -> None:
    """`kubectl scale` changes spec.replicas and is refused in words outside the bounds."""
    kubectl.run("scale", "ej/tr", "--replicas=8")
    assert kubectl.json("get", "ej", "tr")["spec"]["replicas"] == 8
    for replicas, said in ((1, "below minReplicas 2"), (9, "above maxReplicas 8"), (0, "0")):
        done = kubectl.try_run("scale", "ej/tr", f"--replicas={replicas}")
        assert done.returncode != 0
        assert said in done.stderr
    assert kubectl.json("get", "ej", "tr")["spec"]["replicas"] == 8


def test_the_scale_subresource_carries_what_an_hpa_needs(plane: ControlPlane, running: str) -> None:
    """/scale shows wanted and present replicas, and the selector as a text."""
    scale = plane.api.get(f"{running}/scale").body
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 4, "selector": _SELECTOR}


def test_the_columns_tell_the_story(kubectl: Kubectl, running: str) -> None:
    """`kubectl get ej` shows phase, sizes, round, step and restarts."""
    head, row = kubectl.run("get", "ej", "tr").splitlines()
    assert head.split() == (
        ["NAME", "PHASE", "READY", "REPLICAS", "MIN", "MAX", "ROUND", "STEP", "RESTARTS", "AGE"]
    )
    assert row.split()[:-1] == ["tr", "Running", "3", "4", "2", "8", "5", "70", "8"]


@pytest.mark.parametrize("words", [("get", "ej"), ("get", "elasticjob"), ("get", "training")])
def test_a_job_is_found_by_every_name(
    kubectl: Kubectl, running: str, words: tuple[str, ...]
) -> None:
    """Short name, singular and category lead to the job."""
    assert "/tr" in kubectl.run(*words, "-o", "name")


_TOP = parse_crd(CRD).schema.properties


def test_kubectl_explains_a_job_as_a_tree(kubectl: Kubectl) -> None:
    """Required fields are marked, and every field of the schema stands in the tree."""
    shown = kubectl.run("explain", "elasticjob", "--recursive")
    _, mark, below = shown.partition("\n  spec\t<Object> -required-\n")
    assert mark
    names = [line.partition("\t<")[0].strip() for line in below.splitlines() if "\t<" in line]
    top = {"metadata", "spec", "apiVersion", "kind"}
    wanted = [
        str(path[-1])
        for path, _ in walk(parse_crd(CRD).schema)
        if path and path[0] != "metadata" and (len(path) > 1 or path[0] not in top)
    ]
    assert sorted(names) == sorted(name for name in wanted if not name.endswith("[]"))


@pytest.mark.parametrize(
    "path",
    ["spec", "status", *(f"spec.{name}" for name, node in _TOP["spec"].properties.items()
                         if node.properties)],
)  # fmt: skip
def test_kubectl_explains_each_field_of_a_group(kubectl: Kubectl, path: str) -> None:
    """`kubectl explain elasticjob.spec.worker` has what the CRD says of it and of its fields."""
    node = parse_crd(CRD).schema
    for step in path.split("."):
        node = node.properties[step]
    said = " ".join(kubectl.run("explain", f"elasticjob.{path}").split())
    assert f"DESCRIPTION: {node.description} FIELDS:" in said
    for name, below in node.properties.items():
        assert f" {name} <" in said
        assert f" {below.description} " in f"{said} "


def test_kubectl_refuses_an_unknown_field(kubectl: Kubectl) -> None:
    """A misspelt field is an error before anything is stored."""
    done = kubectl.try_run("apply", "-f", "-", stdin=job("x", relpicas=3))
    assert done.returncode != 0
    assert 'unknown field "spec.relpicas"' in done.stderr


def test_an_end_can_be_awaited_whatever_it_is(
    plane: ControlPlane, kubectl: Kubectl, running: str
) -> None:
    """`kubectl wait` on completionTime returns for success and failure alike."""
    wish = "--for=jsonpath={.status.completionTime}"
    assert kubectl.try_run("wait", "ej/tr", wish, "--timeout=0.2s").returncode != 0
    plane.api.merge(f"{running}/status", {"status": {"completionTime": "2026-01-01T00:00:00Z"}})
    kubectl.run("wait", "ej/tr", wish, "--timeout=5s")


def test_two_managers_apply_side_by_side(plane: ControlPlane, kubectl: Kubectl) -> None:
    """Each owns what it set; a size that somebody else scaled is a conflict that names him."""
    path = f"/apis/holdfast.dev/v1alpha1/namespaces/{kubectl.namespace}/elasticjobs/two"
    base = {**job("two"), "metadata": {"name": "two", "namespace": kubectl.namespace}}
    assert plane.api.apply(path, base, "git").ok
    other = {
        "apiVersion": base["apiVersion"],
        "kind": base["kind"],
        "metadata": base["metadata"],
        "spec": {"cleanup": {"pods": "All"}},
    }
    assert plane.api.apply(path, other, "platform").ok
    again = plane.api.apply(path, base, "git")
    assert again.body["spec"]["cleanup"]["pods"] == "All"
    kubectl.run("scale", "ej/two", "--replicas=6")
    refused = plane.api.apply(path, base, "git")
    assert refused.code == 409
    assert ".spec.replicas" in refused.message
    assert "kubectl" in refused.message
    forced = plane.api.apply(path, base, "git", force=True)
    assert forced.body["spec"]["replicas"] == 4


def test_containers_of_two_managers_are_merged_by_name(
    plane: ControlPlane, kubectl: Kubectl
) -> None:
    """A second applier can add a container beside the worker's."""
    path = f"/apis/holdfast.dev/v1alpha1/namespaces/{kubectl.namespace}/elasticjobs/side"
    base = {**job("side"), "metadata": {"name": "side", "namespace": kubectl.namespace}}
    assert plane.api.apply(path, base, "git").ok
    spec = {"containers": [{"name": "logs", "image": "y"}]}
    extra = {**base, "spec": {"worker": {"template": {"spec": spec}}}}
    answer = plane.api.apply(path, extra, "mesh")
    containers = answer.body["spec"]["worker"]["template"]["spec"]["containers"]
    assert [one["name"] for one in containers] == ["worker", "logs"]


def test_an_hpa_scales_a_job_into_its_bounds(kubectl: Kubectl, running: str) -> None:
    """Without any metrics the autoscaler still raises a job to its own minimum."""
    kubectl.run("create", "-f", "-", stdin=_hpa(least=6, most=8))
    _until(lambda: kubectl.json("get", "ej", "tr")["spec"]["replicas"] == 6)


def test_a_repository_and_an_autoscaler_do_not_fight_over_the_size(
    plane: ControlPlane, kubectl: Kubectl
) -> None:
    """Kubectl diff sees nothing that the operator writes; who applies again leaves replicas out."""
    given = job("git", minReplicas=2, maxReplicas=8)
    apply = ("apply", "--server-side", "--field-manager=git", "-f", "-")
    diff = ("diff", "--server-side", "--field-manager=git", "-f", "-")
    kubectl.run(*apply, stdin=given)
    path = f"/apis/holdfast.dev/v1alpha1/namespaces/{kubectl.namespace}/elasticjobs/git"
    assert plane.api.merge(f"{path}/status", {"status": _STATUS}).ok
    assert kubectl.run(*diff, stdin=given) == ""
    assert plane.api.merge(f"{path}/scale", {"spec": {"replicas": 6}}).ok
    refused = kubectl.try_run(*apply, stdin=given)
    assert refused.returncode != 0
    assert ".spec.replicas" in refused.stderr
    del given["spec"]["replicas"]
    assert kubectl.run(*diff, stdin=given) == ""
    kubectl.run(*apply, stdin=given)
    assert kubectl.json("get", "ej", "git")["spec"]["replicas"] == 6


def test_an_hpa_below_the_minimum_is_told_why(kubectl: Kubectl, running: str) -> None:
    """An autoscaler that wants less than minReplicas reports our message."""
    kubectl.run("create", "-f", "-", stdin=_hpa(least=1, most=1))

    def told() -> bool:
        conditions = kubectl.json("get", "hpa", "h").get("status", {}).get("conditions", ())
        return any("below minReplicas 2" in one.get("message", "") for one in conditions)

    _until(told)
    assert kubectl.json("get", "ej", "tr")["spec"]["replicas"] == 4


def _hpa(least: int, most: int) -> dict[str, Any]:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "holdfast.dev/v1alpha1",
                "kind": "ElasticJob",
                "name": "tr",
            },
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": cpu}],
        },
    }
