"""Consequences of a failure by `spec.failurePolicy`: its rules, and the end of its budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import SHARED, Job, Make, looping, manifest, share
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
    for job in jobs.values():
        job.delete()


@pytest.mark.extended(
    "nodes that failed are avoided in other tests",
    held_by=[
        "operator/process/jobs/test_rules.py::test_each_rule_leads_to_what_it_says",
        "operator/process/jobs/test_node_history.py::test_a_job_keeps_away_from_a_node_on_which_two_jobs_had_trouble",
    ],
)
def test_of_the_nodes_that_failed_only_the_newest_are_avoided(
    make_job: Make, tmp_path: Path
) -> None:
    """With room for one, the second that fails has the first forgotten: its pod goes back there."""
    job = make_job("forgets")
    folder = f"{SHARED}/ends"
    (tmp_path / "ends").mkdir()
    script = (
        "import holdfast, os, time\n"
        "job = holdfast.init()\n"
        "for step in range(1, 100000):\n"
        "    time.sleep(0.05)\n"
        f"    if step == 5 and len(os.listdir({folder!r})) < 2:\n"
        f"        open({folder!r} + f'/{{job.round}}', 'x')\n"
        "        raise SystemExit(7)\n"
        "    job.step(step + 100 * job.round)\n"
    )
    (tmp_path / "ends.py").write_text(script)
    body = manifest("holdfast-run", "--nproc-per-node=1", f"{SHARED}/ends.py")
    body["spec"]["failurePolicy"] = {"rules": [_rule("ReplaceOnOtherNode", 7)]}
    body["spec"]["scheduling"] = {"maxExcludedNodes": 1}
    job.create(share(body, tmp_path))
    nodes: dict[str, str] = {}

    def moved(pod: str) -> bool:
        nodes.update((_named(one), one["spec"].get("nodeName", "")) for one in job.pods())
        return bool(nodes.get(pod))

    for number in range(3):
        pod = f"forgets-worker-0-{number}"
        job.until(pod, lambda pod=pod: moved(pod))  # type: ignore[misc]
    first, second, third = (nodes[f"forgets-worker-0-{number}"] for number in range(3))
    assert (first != second, third) == (True, first)
    job.until_training(1)
    job.until("its word", lambda: job.status.get("excludedNodes") == [second])
    job.until("the reason", lambda: second in job.condition("Degraded")["message"])
    assert first not in job.condition("Degraded")["message"]
    job.delete()


def _named(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


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
        jobs[name].delete()


def test_a_rule_on_a_pod_s_condition_decides(
    make_job: Make, nodes: Nodes, namespace: str, tmp_path: Path
) -> None:
    """An evicted pod's, here: the rule ends the job, which a preemption would not."""
    condition = {"type": "DisruptionTarget", "status": "True"}
    rules = [{"action": "FailJob", "onPodConditions": [condition]}]
    job = make_job("taken")
    job.create(looping(tmp_path, failurePolicy__rules=rules))
    job.until_training(1)
    nodes.tell("evict", namespace=namespace, pod="taken-worker-0-0")
    job.until_over()
    failed = job.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "FailJobRule"), job.seen()
    job.delete()
