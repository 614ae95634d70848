"""The whole way: operator as a pod under its own account, apply, real torch, Complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.audit import uses
from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from cluster.release import ACCOUNT, Release
from cluster.rights import needs_pods

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    needs_pods,
]
_SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
for _ in range(20):
    dist.all_reduce(total)
    total /= dist.get_world_size()
print("rank", dist.get_rank(), "of", dist.get_world_size(), "says", total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def _until(what: str, condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen:\n{told()}"
        time.sleep(0.2)


def _job(script: Path) -> dict[str, Any]:
    container = {
        "name": "worker",
        "image": "local",
        "command": ["holdfast-run", "--nproc-per-node=1", str(script)],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "gpt"},
        "spec": {
            "replicas": 2,
            "cleanup": {"pods": "None"},
            "worker": {"template": {"spec": {"containers": [container]}}},
        },
    }


def test_a_job_trains_to_its_end(
    plane: ControlPlane, release: Release, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Two workers on two nodes form a world, train, and the job is Complete; nothing is left."""

    def state() -> str:
        seen = kubectl.run("get", "ej,pods,services,secrets,events", "-o", "wide")
        return f"{seen}\n{release.operator_log()}"

    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    kubectl.run("create", "-f", "-", stdin=_job(script))
    status: dict[str, Any] = {}

    def over() -> bool:
        status.update(kubectl.json("get", "ej", "gpt").get("status", {}))
        return "completionTime" in status

    _until("the end of the job", over, state)
    true = {one["type"] for one in status["conditions"] if one["status"] == "True"}
    assert true == {"Complete"}, state()
    kubectl.run("wait", "ej/gpt", "--for=condition=Complete", "--timeout=5s")
    assert status["phase"] == "Succeeded"
    logs = kubectl.run("logs", "gpt-worker-0-0")
    assert "of 2 says 1.0" in logs
    ended = next(one for one in status["conditions"] if one["type"] == "Complete")
    told = (
        "get",
        "events.events.k8s.io",
        f"--field-selector=reason={ended['reason']}",
        "-o",
        "name",
    )
    _until("the event of the end", lambda: bool(kubectl.run(*told)), state)
    placed = {
        one["spec"]["nodeName"]
        for one in kubectl.json("get", "pods", "-l", "holdfast.dev/role=worker")["items"]
    }
    assert placed == {"n1", "n2"}
    kubectl.run("delete", "ej", "gpt", "--wait=false")
    left = ("get", "pods,services,secrets", "-l", "holdfast.dev/job=gpt", "-o", "name")
    _until("the clean-up", lambda: not kubectl.run(*left), state)
    assert [one.uri for one in uses(plane.audit_log, ACCOUNT) if one.refused] == []
