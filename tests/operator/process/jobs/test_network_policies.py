"""NetworkPolicies of jobs and of the operator: which pod they let speak to which.

No packet is refused here: the test cluster's network enforces nothing. Its API server takes the
policies, and their rules are applied to the real pods, as a network that enforces them would. On
real nodes packets are refused (`nodes/test_enforced_policies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Make, manifest
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
GLOO: Final = 34567
"""Any port: a rank takes the one that is free."""
MASTER: Final = 50051
Pod = Mapping[str, Any]


@pytest.fixture(scope="module")
def release(plane: ControlPlane, nodes: Nodes) -> Iterator[Release]:
    """An operator with a NetworkPolicy that makes one for each job."""
    installed = Release(plane.kubeconfig)
    installed.clear()
    installed.install("networkPolicy.enabled=true", "networkPolicy.jobs=true")
    yield installed
    installed.remove()


class Policies:
    """What a cluster's NetworkPolicies let through, by the rules of their API."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._all = kubectl.json("get", "networkpolicies", "-A")["items"]
        names = kubectl.json("get", "namespaces")["items"]
        self._namespaces = {
            one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in names
        }

    def allow(self, source: Pod, target: Pod, port: int) -> bool:
        """Return whether TCP from one pod to a port of another is let in."""
        of_target = [
            one["spec"]
            for one in self._all
            if one["metadata"]["namespace"] == target["metadata"]["namespace"]
            and "Ingress" in one["spec"]["policyTypes"]
            and _chosen(one["spec"]["podSelector"], target["metadata"].get("labels", {}))
        ]
        return not of_target or any(
            self._passes(rule, spec, source, target, port)
            for spec in of_target
            for rule in spec.get("ingress", ())
        )

    def _passes(
        self, rule: Mapping[str, Any], spec: Mapping[str, Any], source: Pod, target: Pod, port: int
    ) -> bool:
        ports = rule.get("ports")
        if ports and port not in {_number(one["port"], target) for one in ports}:
            return False
        peers = rule.get("from")
        return not peers or any(self._is(one, source, target) for one in peers)

    def _is(self, peer: Mapping[str, Any], source: Pod, target: Pod) -> bool:
        assert peer.keys() <= {"namespaceSelector", "podSelector"}, peer
        home = source["metadata"]["namespace"]
        if "namespaceSelector" in peer:
            inside = _chosen(peer["namespaceSelector"], self._namespaces[home])
        else:
            inside = home == target["metadata"]["namespace"]
        return inside and _chosen(peer.get("podSelector", {}), source["metadata"].get("labels", {}))


def _chosen(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, selector
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def _number(port: int | str, target: Pod) -> int:
    """Return a port's number in a pod; 0: it has none of that name."""
    named = {
        one.get("name"): one["containerPort"]
        for container in target["spec"]["containers"]
        for one in container.get("ports", ())
    }
    return port if isinstance(port, int) else int(named.get(port, 0))


def _stranger(namespace: str, **labels: str) -> Pod:
    """A pod that belongs to nobody here."""
    spec = {"containers": [{"name": "a", "image": "i"}]}
    return {"metadata": {"name": "x", "namespace": namespace, "labels": labels}, "spec": spec}


def _metrics(pod: Pod) -> int:
    found = _number("metrics", pod)
    assert found, "it serves none"
    return found


def test_a_job_s_pods_hear_each_other_the_operator_and_scrapers(
    make_job: Make, kubectl: Kubectl, release: Release
) -> None:
    """Pair by pair, on the real pods of two jobs; and nobody else."""
    jobs = [make_job("one"), make_job("two")]
    for job in jobs:
        job.create(manifest("sleep", "3600", grace_s=1, replicas=2))
    for job in jobs:
        job.until("its pods", lambda job=job: len(job.live()) == 2)  # type: ignore[misc]
    (worker, peer), (foreign, _) = (job.pods() for job in jobs)
    (master,), (foreign_master,) = (job.pods("master") for job in jobs)
    (operator,) = release.kubectl.json("get", "pods")["items"]
    policies = Policies(kubectl)
    allowed = {
        "worker to its master": (worker, master, MASTER),
        "worker to worker of a job": (worker, peer, GLOO),
        "master to its worker": (master, worker, GLOO),
        "operator to master": (operator, master, MASTER),
        "operator to a worker, whether its node lives": (operator, worker, 1),
        "scraper to master": (_stranger("monitoring-x"), master, _metrics(master)),
        "scraper to operator": (_stranger("monitoring-x"), operator, _metrics(operator)),
    }
    refused = {
        "worker to another job's worker": (foreign, worker, GLOO),
        "worker to another job's master": (foreign, master, MASTER),
        "master to another job's master": (foreign_master, master, MASTER),
        "a pod of no job": (_stranger(kubectl.namespace), worker, GLOO),
        "a job of the same name elsewhere": (_stranger("default", **_labels(peer)), worker, GLOO),
        "one that looks like the operator": (
            _stranger(kubectl.namespace, **_labels(operator)),
            master,
            MASTER,
        ),
        "worker to operator": (worker, operator, 443),
    }
    policies._namespaces["monitoring-x"] = {}
    assert {what: policies.allow(*pair) for what, pair in allowed.items()} == dict.fromkeys(
        allowed, True
    )
    assert {what: policies.allow(*pair) for what, pair in refused.items()} == dict.fromkeys(
        refused, False
    )


def _labels(pod: Pod) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"]["labels"]
    return found


def test_a_job_waits_while_something_else_has_its_policy_s_name(
    make_job: Make, kubectl: Kubectl
) -> None:
    """It would train open to all; the status says what is in the way."""
    spec: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}
    other = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec}
    kubectl.run("create", "-f", "-", stdin={**other, "metadata": {"name": "guarded-pods"}})
    job = make_job("guarded")
    job.create(manifest("sleep", "3600", grace_s=1))
    job.until(
        "what is in the way",
        lambda: (
            "NetworkPolicy guarded-pods exists" in job.condition("MasterReady").get("message", "")
        ),
    )
    assert job.pods() + job.pods("master") == []
    kubectl.run("delete", "networkpolicy", "guarded-pods")
    job.until("its pod", lambda: len(job.live()) == 1)
