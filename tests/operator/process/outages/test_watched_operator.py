"""The operator as a cluster's administrator sees it, who also has a say on its pods."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.jobs import Make, manifest
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_ENFORCED = "pod-security.kubernetes.io/enforce"
_ASK = (
    "import sys, urllib.request as u; "
    "print(u.urlopen('http://127.0.0.1:8080' + sys.argv[1], timeout=5).read().decode())"
)


def _asked(release: Release, path: str) -> str:
    words = ("exec", "deploy/holdfast-operator", "--", "python", "-c", _ASK, path)
    return release.kubectl.run(*words)


def test_probes_and_metrics_of_the_operator_say_how_it_is(make_job: Make, release: Release) -> None:
    """Alive, ready, and how often it has looked at jobs."""
    job = make_job("looked")
    job.create(manifest("sleep", "600", grace_s=1))
    job.until("its pod", lambda: job.live() == ["looked-worker-0-0"])
    assert _asked(release, "/healthz").strip() == "ok"
    assert _asked(release, "/readyz").strip() == "ok"
    metrics = dict(
        line.rsplit(maxsplit=1)
        for line in _asked(release, "/metrics").splitlines()
        if line and not line.startswith("#")
    )
    assert float(metrics['holdfast_operator_looks_total{outcome="done"}']) > 0
    assert float(metrics["holdfast_operator_link_errors_total"]) == 0
    assert float(metrics["holdfast_operator_queue_depth"]) >= 0


def _policy(namespace: str) -> list[dict[str, Any]]:
    group = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    return [
        {
            "apiVersion": group,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "no-workers"},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [
                    {
                        "expression": "!object.metadata.name.contains('-worker-')",
                        "message": "workers are not wanted here",
                    }
                ],
            },
        },
        {
            "apiVersion": group,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "no-workers"},
            "spec": {
                "policyName": "no-workers",
                "validationActions": ["Deny"],
                "matchResources": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
                },
            },
        },
    ]


def test_a_policy_against_its_pods_is_told_and_waited_for(make_job: Make, kubectl: Kubectl) -> None:
    """In the policy's own words; once it is gone the job begins."""
    for one in _policy(kubectl.namespace):
        kubectl.run("create", "-f", "-", stdin=one)
    probe = manifest("sleep", "1")["spec"]["worker"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a-worker-0"}, **probe}
    job = make_job("policed")
    job.until(  # the API server takes a moment to follow a policy
        "the policy",
        lambda: (
            "not wanted"
            in kubectl.try_run("create", "--dry-run=server", "-f", "-", stdin=pod).stderr
        ),
    )
    job.create(manifest("sleep", "600", grace_s=1, replicas=2))
    job.until("its word", lambda: job.condition("QuorumReady").get("reason") == "PodsRefused")
    assert "workers are not wanted here" in job.condition("QuorumReady")["message"]
    assert job.status["phase"] == "Pending"
    assert job.pods() == []
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        kubectl.run("delete", kind, "no-workers")
    job.until("both pods", lambda: len(job.live()) == 2)


def test_under_restricted_pod_security_only_the_template_is_refused(
    make_job: Make, kubectl: Kubectl
) -> None:
    """The master is admitted; what a worker lacks is told, and its pod comes once it may."""
    kubectl.run("label", "namespace", kubectl.namespace, f"{_ENFORCED}=restricted")
    job = make_job("strict")
    job.create(manifest("sleep", "600", grace_s=1))
    job.until("its word", lambda: job.condition("QuorumReady").get("reason") == "PodsRefused")
    told = job.condition("QuorumReady")["message"]
    assert 'container "worker" must set securityContext.allowPrivilegeEscalation=false' in told
    job.until("its master", lambda: job.live("master") == ["strict-master-0-0"])
    assert job.pods() == []
    kubectl.run("label", "namespace", kubectl.namespace, f"{_ENFORCED}-")
    job.until("its pod", lambda: job.live() == ["strict-worker-0-0"])


def test_a_limit_below_the_masters_own_request_is_told_with_the_remedy(
    make_job: Make, kubectl: Kubectl
) -> None:
    """Nobody wrote the template that is refused, so its name alone would help nobody."""
    least = {"type": "Container", "max": {"cpu": "50m"}, "default": {"cpu": "50m"}}
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "small"},
        "spec": {"limits": [least]},
    }
    kubectl.run("create", "-f", "-", stdin=limits)
    job = make_job("small")
    job.create(manifest("sleep", "600", grace_s=1))
    job.until("the refusal", lambda: job.condition("MasterReady").get("reason") == "PodsRefused")
    told = job.condition("MasterReady")["message"]
    assert "maximum cpu usage per Container is 50m, but limit is 2" in told
    assert "the job gives no spec.master.template" in told
