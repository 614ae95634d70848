"""Consequences of a failure by `spec.failurePolicy`: its rules, and the end of its budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import SHARED, Job, Make, looping, share
from cluster.nodes import Nodes
from cluster.rights import needs_pods

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("witness"),
    needs_pods,
]
_ANY_OTHER = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}


def _rule(action: str, *codes: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}


def _fails_once(folder: Path, name: str, code: int, *rules: dict[str, Any]) -> dict[str, Any]:
    """A job of one process that ends with a code in its fifth step, once."""
    once = f"--exit-once={code}:0:{SHARED}/{name}"
    flags = ("--steps=100000", once, "--last-words=Xid 79 on GPU 3")
    return share(looping(folder, *flags, failurePolicy__rules=[*rules, _ANY_OTHER]), folder)


def _until_over_it(job: Job) -> dict[str, Any]:
    """Wait until its one failure has been dealt with and accounted for; return the status."""
    job.until("the incident's end", lambda: "IncidentClosed" in job.events())
    job.until_steps()  # the status is from after that, then
    return job.status


def test_each_rule_leads_to_what_it_says(make_job: Make, tmp_path: Path) -> None:
    """The first that matches decides: by code, by every other code, by what the log says."""
    every_other = {"action": "ReplacePod", "onExitCodes": {"operator": "NotIn", "values": [7, 9]}}
    by_log = {"action": "RestartInPlace", "onLogPattern": "Xid [0-9]+ on GPU"}
    cases = {
        "node": (7, [_rule("ReplaceOnOtherNode", 7, 8)]),
        "pod": (11, [_rule("Ignore", 12), every_other]),
        "place": (13, [by_log]),
        "quiet": (5, [_rule("Ignore", 4, 5)]),
    }
    jobs = {name: make_job(name) for name in cases}
    first = {}
    for name, (code, rules) in cases.items():
        job = jobs[name]
        job.create(_fails_once(tmp_path, name, code, *rules))
        job.until("its pod", lambda job=job: len(job.pods()) == 1)  # type: ignore[misc]
        job.until("its node", lambda job=job: "nodeName" in job.pods()[0]["spec"])  # type: ignore[misc]
        pod = job.pods()[0]
        assert pod["metadata"]["name"] == f"{name}-worker-0-0"
        first[name] = pod["spec"]["nodeName"]
    status = {name: _until_over_it(job) for name, job in jobs.items()}

    assert jobs["node"].live() == ["node-worker-0-1"], jobs["node"].seen()
    assert jobs["node"].pods()[0]["spec"]["nodeName"] != first["node"]
    assert status["node"]["excludedNodes"] == [first["node"]]
    degraded = jobs["node"].condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NodeExcluded")
    assert first["node"] in degraded["message"]
    assert jobs["pod"].live() == ["pod-worker-0-1"]
    assert not jobs["pod"].holds("Degraded")
    for name in ("place", "quiet"):
        assert jobs[name].live() == [f"{name}-worker-0-0"]
        assert status[name]["restarts"] == {
            "inPlace": 1,
            "replaced": 0,
            "disrupted": 0,
            "rescaled": 0,
            "total": 1,
        }
    for name in ("node", "pod", "place"):
        job = jobs[name]
        job.until("its charge", lambda job=job: job.used() == {"failures": 1})  # type: ignore[misc]
    assert jobs["quiet"].used() == {}


def test_a_budget_that_is_spent_ends_the_job(make_job: Make, tmp_path: Path) -> None:
    """A failure more than is allowed; and failures in a row without a new step between them."""
    flags = ("--raise-text=no luck", "--step-seconds=0.02")
    budgets = {
        "spent": ({"failures": {"limit": 0}}, "FailureBudgetExhausted"),
        "stuck": ({"noProgressRestarts": {"limit": 1}}, "NoProgress"),
    }
    jobs = {name: make_job(name) for name in budgets}
    for name, (budget, _) in budgets.items():
        jobs[name].create(looping(tmp_path, *flags, failurePolicy__budgets=budget))
    for name, (_, reason) in budgets.items():
        jobs[name].until_over()
        failed = jobs[name].condition("Failed")
        assert (failed["status"], failed["reason"]) == ("True", reason), jobs[name].seen()
        assert "no luck" in failed["message"]


def test_a_rule_on_a_pod_s_condition_decides(
    make_job: Make, nodes: Nodes, namespace: str, tmp_path: Path
) -> None:
    """An evicted pod's, here: the rule ends the job, which a preemption would not."""
    condition = {"type": "DisruptionTarget", "status": "True"}
    rules = [{"action": "FailJob", "onPodConditions": [condition]}]
    job = make_job("taken")
    job.create(looping(tmp_path, "--steps=100000", failurePolicy__rules=rules))
    job.until_training(1)
    nodes.tell("evict", namespace=namespace, pod="taken-worker-0-0")
    job.until_over()
    failed = job.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "FailJobRule"), job.seen()
