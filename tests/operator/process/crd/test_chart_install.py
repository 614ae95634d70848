"""The life of a release with the real helm: install, upgrade, uninstall, and what stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.audit import uses
from cluster.control_plane import ControlPlane
from cluster.jobs import Job, training
from cluster.kubectl import CommandFailedError, Kubectl
from cluster.nodes import Nodes
from cluster.release import Release
from cluster.rights import needs_pods
from house.patience import patience

pytestmark = [pytest.mark.kube, needs_pods]
_CRD = ("get", "crd", "elasticjobs.holdfast.dev")
_JOB = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "kept"},
    "spec": {
        "replicas": 1,
        "suspend": True,
        "worker": {"template": {"spec": {"containers": [{"name": "worker", "image": "i"}]}}},
    },
}


@pytest.fixture
def release(plane: ControlPlane, nodes: Nodes, namespace: str) -> Iterator[Release]:
    """A release in the test's own namespace, which looks after that only; not installed yet."""
    made = Release(plane.kubeconfig, "try", namespace)
    yield made
    made.kubectl.try_run("delete", "deploy", "--all", "--wait=false")


def _only(release: Release) -> str:
    """The value that has it look after its own namespace and no other."""
    return f"watchNamespaces={{{release.kubectl.namespace}}}"


def test_a_release_comes_changes_and_goes(release: Release, kubectl: Kubectl) -> None:
    """Install waits until it is ready, its own test passes, an upgrade changes the pod.

    Uninstall leaves nothing, neither of it nor of the test.
    """
    scope = _only(release)
    release.install(scope, "replicas=1")
    names = ("-l", "app.kubernetes.io/instance=try", "-o", "name")
    leases = kubectl.run("get", "lease", "-o", "jsonpath={.items[*].metadata.name}")
    assert leases == "try-holdfast-operator"
    said = release.test()
    assert [line for line in said.splitlines() if line.startswith("ok: ")] == [
        "ok: a replica of the operator is ready",
        "ok: one of them leads",
        "ok: the API server takes an ElasticJob",
        "ok: and refuses one that cannot be",
    ], said
    assert kubectl.run("get", "ej", "-o", "name") == "", "dry runs"
    release.upgrade(scope, "replicas=2", "logLevel=debug")
    deployment = kubectl.json("get", "deploy", "try-holdfast-operator")
    assert deployment["status"]["readyReplicas"] == 2
    release.uninstall()
    assert kubectl.run("get", "deploy,sa,role,rolebinding,clusterrole", *names) == ""
    deadline = time.monotonic() + 30.0 * patience()  # helm waits for no pod of a Deployment
    while left := kubectl.run("get", "pod", *names):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_a_release_that_could_not_be_removed_is_cleared_for_the_next(release: Release) -> None:
    """As the tests' own fixtures do: its Deployment did not go in time, so its name is taken."""
    scope = (_only(release), "replicas=1")
    release.install(*scope)
    with pytest.raises(CommandFailedError, match="cannot reuse a name"):
        release.install(*scope)
    release.clear()
    release.install(*scope)
    release.uninstall()


def test_one_namespace_is_looked_after_with_rights_there_only(
    plane: ControlPlane, release: Release, kubectl: Kubectl
) -> None:
    """The operator works with a Role; it asks for nothing beyond, and a job elsewhere waits."""
    namespace = release.kubectl.namespace
    release.install(_only(release), "rbac.aggregate=false")
    Kubectl(plane.kubeconfig).run("create", "-f", "-", stdin=_JOB)
    kubectl.run("create", "-f", "-", stdin=_JOB)
    phase = ("get", "ej", "kept", "-o", "jsonpath={.status.phase}")
    plane.until("the phase", lambda: kubectl.run(*phase) == "Suspended")
    assert Kubectl(plane.kubeconfig).run(*phase) == ""
    Kubectl(plane.kubeconfig).run("delete", "ej", "kept")
    account = f"system:serviceaccount:{namespace}:try-holdfast-operator"
    used = list(uses(plane.audit_log, account))
    assert used
    assert [one.uri for one in used if one.refused] == []
    assert {one.namespace for one in used if one.resource} == {namespace}
    release.uninstall()


def test_several_namespaces_are_looked_after_and_one_may_come_later(
    plane: ControlPlane, release: Release, kubectl: Kubectl
) -> None:
    """Two of three, with a Role in each. Without its Role one is left, and the other goes on."""
    first, second = kubectl.namespace, f"{kubectl.namespace}-b"
    other, outside = Kubectl(plane.kubeconfig, second), Kubectl(plane.kubeconfig)
    outside.run("create", "namespace", second)
    phase = ("get", "ej", "kept", "-o", "jsonpath={.status.phase}")
    release.install(f"watchNamespaces={{{first},{second}}}", "rbac.aggregate=false")
    for one in (kubectl, other, outside):
        one.run("create", "-f", "-", stdin=_JOB)
    for one in (kubectl, other):
        plane.until("the phase", lambda one=one: one.run(*phase) == "Suspended")  # type: ignore[misc]
    assert outside.run(*phase) == ""
    account = f"system:serviceaccount:{first}:try-holdfast-operator"
    used = list(uses(plane.audit_log, account))
    assert [one.uri for one in used if one.refused] == []
    assert {one.namespace for one in used if one.resource} == {first, second}
    binding = other.run("get", "rolebinding", "try-holdfast-operator-jobs", "-o", "json")
    other.run("delete", "rolebinding", "try-holdfast-operator-jobs")
    release.kubectl.run("rollout", "restart", "deploy/try-holdfast-operator")
    release.kubectl.run("rollout", "status", "deploy/try-holdfast-operator", "--timeout=50s")
    for one in (kubectl, other):
        body = {**_JOB, "metadata": {"name": "later"}}
        one.run("create", "-f", "-", stdin=body)
    later = ("get", "ej", "later", "-o", "jsonpath={.status.phase}")
    plane.until("the phase", lambda: kubectl.run(*later) == "Suspended")
    assert other.run(*later) == ""
    metadata = {"name": "try-holdfast-operator-jobs"}
    other.run("create", "-f", "-", stdin={**json.loads(binding), "metadata": metadata})
    plane.until("it is back", lambda: other.run(*later) == "Suspended")
    for one in (other, outside):
        one.run("delete", "ej", "--all")
    release.uninstall()
    outside.run("delete", "namespace", second, "--wait=false")


@pytest.mark.timeout(300)
def test_a_namespace_that_is_lost_takes_nothing_from_the_jobs_of_another(
    plane: ControlPlane, release: Release, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Its Role goes and comes back under one operator; elsewhere a master is heard all the time."""
    first, second = kubectl.namespace, f"{kubectl.namespace}-b"
    other, outside = Kubectl(plane.kubeconfig, second), Kubectl(plane.kubeconfig)
    outside.run("create", "namespace", second)
    release.install(f"watchNamespaces={{{first},{second}}}", "rbac.aggregate=false", "replicas=1")
    job = Job(plane, kubectl, "trains", release.operator_log)
    job.create(training(tmp_path, replicas=1))
    job.until_training(1)
    binding = other.json("get", "rolebinding", "try-holdfast-operator-jobs")
    other.run("delete", "rolebinding", "try-holdfast-operator-jobs")
    refusal = "ElasticJobs cannot be listed yet"
    plane.until("its end", lambda: refusal in release.operator_log())
    other.run("create", "-f", "-", stdin=_JOB)
    binding["metadata"] = {"name": "try-holdfast-operator-jobs"}
    other.run("create", "-f", "-", stdin=binding)
    phase = ("get", "ej", "kept", "-o", "jsonpath={.status.phase}")
    plane.until("it is back", lambda: other.run(*phase) == "Suspended")
    job.until_steps()
    job.patch(elasticPolicy={"belowMinTimeoutSeconds": 600})
    job.until("its spec", lambda: job.status["observedGeneration"] == 2)
    (pod,) = kubectl.json("get", "pods", "-l", "app.kubernetes.io/instance=try")["items"]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    for one in (kubectl, other):
        one.run("delete", "ej", "--all")
    job.until_gone()
    release.uninstall()
    outside.run("delete", "namespace", second, "--wait=false")


def test_a_second_operator_over_a_namespace_is_refused(
    release: Release, plane: ControlPlane
) -> None:
    """Over that one or over all: named with where it is and the remedy, before anything is made."""
    namespace = release.kubectl.namespace
    scope = (_only(release), "replicas=0")
    release.install(*scope)
    second = Release(plane.kubeconfig, "second", namespace)
    words = rf"try-holdfast-operator in namespace {namespace} looks after {namespace} already"
    for values in (scope, ("replicas=0",)):
        with pytest.raises(CommandFailedError, match=words):
            second.install(*values)
    assert second.kubectl.run("get", "deploy", "-o", "name").split() == [
        "deployment.apps/try-holdfast-operator"
    ]
    release.upgrade("replicas=0")  # its own scope may change
    with pytest.raises(CommandFailedError, match="looks after every namespace already"):
        second.install(*scope)
    release.uninstall()
    second.install(*scope)
    second.uninstall()


def test_the_crd_and_its_jobs_stay_when_the_release_goes(
    plane: ControlPlane, release: Release, kubectl: Kubectl
) -> None:
    """A CRD of kubectl's is taken over; uninstalled or switched off, it stays with every job."""
    scope = (_only(release), "replicas=0")
    kubectl.run("create", "-f", "-", stdin=_JOB)
    with pytest.raises(CommandFailedError, match="invalid ownership metadata"):
        release.install(*scope, "crds.enabled=true")
    release.install(*scope, "crds.enabled=true", flags=("--take-ownership", "--force-conflicts"))
    release.upgrade(*scope, "crds.enabled=false")
    assert kubectl.run(*_CRD, "-o", "name")
    release.upgrade(*scope, "crds.enabled=true", flags=("--take-ownership",))
    release.uninstall()
    assert kubectl.run("get", "ej", "kept", "-o", "name")


def test_a_deployment_that_was_scaled_by_hand_is_upgraded_when_forced(
    release: Release, kubectl: Kubectl
) -> None:
    """Helm says whose field it is; --force-conflicts takes it back."""
    scope = _only(release)
    release.install(scope, "replicas=0")
    kubectl.run("scale", "deploy/try-holdfast-operator", "--replicas=1")
    with pytest.raises(CommandFailedError, match=r"spec\.replicas"):
        release.upgrade(scope, "replicas=2")
    release.upgrade(scope, "replicas=0", flags=("--force-conflicts",))
    assert kubectl.json("get", "deploy", "try-holdfast-operator")["spec"]["replicas"] == 0
    release.uninstall()


def test_people_may_do_with_jobs_what_they_may_do_in_the_namespace(
    plane: ControlPlane, release: Release, kubectl: Kubectl
) -> None:
    """An editor of a namespace edits its jobs. A viewer only sees them."""
    release.install(_only(release), "replicas=0")
    for role in ("edit", "view"):
        kubectl.run("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}")

    def may(who: str, verb: str, part: str = "") -> bool:
        words = ("auth", "can-i", verb, "elasticjobs.holdfast.dev", f"--subresource={part}")
        done = kubectl.try_run(*words, f"--as={who}")
        return done.stdout.strip() == "yes"

    plane.until("the aggregated roles", lambda: may("view", "list"))
    plane.until("the aggregated roles", lambda: may("edit", "create"))
    assert may("edit", "update", "scale")
    assert not may("edit", "update", "status")
    assert not may("view", "create")
    assert not may("view", "update", "scale")
    release.uninstall()
