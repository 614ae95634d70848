"""Rights: the operator uses each one that it has and asks for no other; its pods have none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.api import Api
from cluster.audit import Grant, granted, unused, uses
from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.jobs import container, manifest
from cluster.kubectl import Kubectl
from cluster.release import ACCOUNT, HISTORY, Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
_CHECKED_INSIDE: Final = {
    Grant("update", "holdfast.dev", "elasticjobs/finalizers", ""),
    Grant("create", "policy", "poddisruptionbudgets", ""),
}
"""The API server asks its authorizer while it admits an owner reference, and where an apply makes
an object; no request shows it."""
_WITH_KUEUE: Final = {Grant("get", "scheduling.k8s.io", "priorityclasses", "")}
"""A queued job's priority is asked for: the tests of queues use it."""
_METHODS: Final = {
    "list": "GET",
    "watch": "GET",
    "get": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
_OF_ONE: Final = {"get", "update", "patch", "delete"}
"""Verbs about one object, which a path that ends with the resource does not name."""
_BRIEFLY: Final = "watch=1&timeoutSeconds=1"
_EVERYBODYS: Final = {
    (verb, f"/apis/certificates.k8s.io/{version}/clustertrustbundles")
    for verb in ("get", "list", "watch")
    for version in ("v1", "v1beta1", "v1alpha1")
}
"""Kubernetes itself lets every account read whom the cluster trusts: roots that are public."""
_ABOUT_ONESELF: Final = {
    "selfsubjectaccessreviews",
    "selfsubjectreviews",
    "selfsubjectrulesreviews",
}
"""Everybody may ask what they may do."""


def _job(**spec: Any) -> dict[str, Any]:
    # Nobody is waited for who never joined.
    body = manifest("sleep", "600", grace_s=1, elasticPolicy__scaleDownGraceSeconds=1, **spec)
    body["metadata"]["name"] = "gpt"
    return body


def _running(kubectl: Kubectl, role: str) -> list[str]:
    pods = kubectl.json("get", "pods", "-l", f"holdfast.dev/role={role}")["items"]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def _first(plane: ControlPlane, kubectl: Kubectl, role: str) -> str:
    plane.until(f"the {role}", lambda: bool(_running(kubectl, role)))
    return _running(kubectl, role)[0]


def _condition(kubectl: Kubectl, kind: str) -> str:
    status = kubectl.json("get", "ej", "gpt").get("status", {})
    return next((one["status"] for one in status.get("conditions", ()) if one["type"] == kind), "")


@pytest.fixture
def _struck(plane: ControlPlane, release: Release, kubectl: Kubectl) -> None:
    """Two jobs crash: the history of nodes is made, and written again."""
    seen = {""}

    def is_newer() -> bool:
        found = release.kubectl.try_run(
            "get", "cm", HISTORY, "-o", "jsonpath={.metadata.uid}/{.data}"
        )
        newer = found.stdout not in seen
        seen.add(found.stdout)
        return found.returncode == 0 and newer

    for name in ("crash-1", "crash-2"):
        body = _job(failurePolicy={"budgets": {"failures": {"limit": 0}}})
        body["metadata"] = {"name": name, "labels": {"crashes": "yes"}}
        container(body)["command"] = ["holdfast-run", "--no-python", "sh", "-c", "exit 137"]
        kubectl.run("create", "-f", "-", stdin=body)
        plane.until(f"the strike of {name}", is_newer)
    kubectl.run("delete", "ej", "-l", "crashes=yes")


@needs_pods
@pytest.mark.usefixtures("_struck")
def test_the_operator_has_the_rights_that_it_uses_and_no_other(
    plane: ControlPlane, release: Release, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """A job whose life needs all of them; a new grant needs a step here that uses it."""
    holdfast = Commands(plane.kubeconfig, tmp_path, namespace)
    edit = ("patch", "ej", "gpt", "--type=merge", "-p")

    def until_is(condition: str, wanted: str) -> None:
        plane.until(f"{condition} {wanted}", lambda: _condition(kubectl, condition) == wanted)

    body = _job(
        cleanup={"ttlSecondsAfterFinished": 0},
        scheduling={"podDisruptionBudget": "MinReplicas", "gang": {"backend": "Auto"}},
        checkpoint={"path": "/x", "onDelete": True},
    )
    kubectl.run("create", "-f", "-", stdin=body)
    until_is("MasterReady", "True")
    plane.until("a worker", lambda: len(_running(kubectl, "worker")) == 1)
    # A template that is not in force yet, which the next operator has to find out.
    body["spec"]["worker"]["template"]["metadata"] = {"labels": {"edited": "yes"}}
    spec = {"worker": body["spec"]["worker"], "scheduling": {"podDisruptionBudget": "None"}}
    kubectl.run(*edit, json.dumps({"spec": spec}))
    plane.until("no budget", lambda: kubectl.run("get", "pdb", "-o", "name") == "")
    release.restart()
    kubectl.run(*edit, json.dumps({"spec": {"maxReplicas": 2}}))
    plane.until("its size", lambda: kubectl.json("get", "ej", "gpt")["status"]["size"]["max"] == 2)
    # By the master's decision; the second worker's key pair comes to a Secret that exists.
    holdfast.run("scale", "gpt", "2")
    plane.until("a second worker", lambda: len(_running(kubectl, "worker")) == 2)
    kubectl.run(*edit, json.dumps({"spec": {"minReplicas": 2}}))
    plane.until("its size", lambda: kubectl.json("get", "ej", "gpt")["status"]["size"]["min"] == 2)
    for wish in (True, False, True, False):  # the second time counts up an event
        kubectl.run(*edit, json.dumps({"spec": {"suspend": wish}}))
        until_is("Suspended", str(wish))
    plane.until("the next master", lambda: holdfast.works("stop", "gpt", "--now"))
    plane.until("the clean-up", lambda: kubectl.run("get", "ej", "-o", "name") == "")

    used = list(uses(plane.audit_log, ACCOUNT))
    assert [one.uri for one in used if one.refused] == []
    planted = Grant("patch", "", "pods", "")
    given, besides = granted(plane.api), _CHECKED_INSIDE | _WITH_KUEUE
    assert unused(plane.api, [*given, planted], used, besides) == [planted]
    assert set(given) >= besides


def test_owner_references_need_the_right_to_finalizers(
    plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    """Without it the operator could make no pod that a foreground deletion waits for."""
    kubectl.run("create", "-f", "-", stdin=_job(suspend=True, managedBy="example.com/other"))
    uid = kubectl.json("get", "ej", "gpt")["metadata"]["uid"]
    kubectl.run("create", "role", "makes", "--verb=create", "--resource=configmaps")
    kubectl.run("create", "serviceaccount", "maker")
    kubectl.run("create", "rolebinding", "m", "--role=makes", f"--serviceaccount={namespace}:maker")
    maker = _as_account(plane, kubectl, namespace, "maker")
    owner = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "name": "gpt",
        "uid": uid,
        "blockOwnerDeletion": True,
    }
    body = {"metadata": {"name": "c", "ownerReferences": [owner]}}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    plane.until("the right", lambda: maker.post(path, {"metadata": {"name": "b"}}).code != 403)
    answer = maker.post(path, body)
    assert answer.code == 403
    assert "cannot set blockOwnerDeletion" in answer.message


def _as_account(plane: ControlPlane, kubectl: Kubectl, namespace: str, name: str) -> Api:
    account = ("get", "serviceaccount", name)
    plane.until("the account", lambda: kubectl.try_run(*account).returncode == 0)
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = plane.api.post(path, body).body["status"]["token"]
    return Api(plane.ports.api, token, plane.folder / "ca.crt")


def _resources(plane: ControlPlane, namespace: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the path of each resource that the API server has, with its verbs."""
    groups = plane.api.get("/apis").body["groups"]
    versions = [version["groupVersion"] for group in groups for version in group["versions"]]
    for root in ["/api/v1", *(f"/apis/{version}" for version in versions)]:
        for one in plane.api.get(root).body["resources"]:
            kind, _, part = one["name"].partition("/")
            if kind in _ABOUT_ONESELF:
                continue
            where = f"/namespaces/{namespace}" if one["namespaced"] else ""
            path = f"{root}{where}/{kind}" + (f"/x/{part}" if part else "")
            yield path, set(one["verbs"])


def test_the_account_of_a_jobs_pods_may_do_nothing(
    plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    """A mounted token of a pod's account gets 403 for every verb on every resource."""
    pod = _as_account(plane, kubectl, namespace, "default")
    allowed, asked = [], Counter[str]()
    for verb, method, path in _calls(plane, namespace):
        answer = pod.call(method, path)
        asked[verb] += 1
        kind = path.partition("?")[0].removesuffix("/x")
        if answer.code != 403 and (verb, kind) not in _EVERYBODYS:
            allowed.append(f"{verb} {path}: {answer.code}")
    assert allowed == []
    assert asked.keys() == _METHODS.keys()
    assert min(asked.values()) > 40, asked


def _calls(plane: ControlPlane, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Yield verb, method and path of everything that the API server can be asked."""
    for path, verbs in _resources(plane, namespace):
        for verb in sorted(verbs & _METHODS.keys()):
            where = f"{path}/x" if verb in _OF_ONE and "/x/" not in path else path
            yield verb, _METHODS[verb], f"{where}?{_BRIEFLY}" if verb == "watch" else where


_ASK: Final = """
import http.client, json, ssl, sys
context = ssl._create_unverified_context()
line = http.client.HTTPSConnection("10.96.0.1", timeout=10, context=context)
codes = []
for verb, method, path in json.load(sys.stdin):
    line.request(method, path)
    answer = line.getresponse()
    answer.read()
    codes.append([verb, path, answer.status])
print(json.dumps(codes))
"""


@needs_pods
def test_master_and_worker_pods_have_nothing_to_ask_with(
    plane: ControlPlane, release: Release, kubectl: Kubectl, namespace: str
) -> None:
    """No token in either, and without one the API server refuses every verb on every resource."""
    kubectl.run("create", "-f", "-", stdin=_job())
    calls = list(_calls(plane, namespace))
    assert {verb for verb, _, _ in calls} == _METHODS.keys()
    for role in ("master", "worker"):
        pod = _first(plane, kubectl, role)
        look = kubectl.try_run("exec", pod, "--", "ls", "/var/run/secrets/kubernetes.io")
        assert "No such file" in look.stderr
        said = kubectl.run("exec", "-i", pod, "--", "python", "-c", _ASK, stdin=json.dumps(calls))
        codes = json.loads(said)
        assert [one for one in codes if one[-1] not in {401, 403}] == []
        assert len(codes) == len(calls)
