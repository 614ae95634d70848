"""The whole way: operator as a pod under its own account, apply, real torch, Complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.audit import uses
from cluster.control_plane import ControlPlane
from cluster.jobs import Make, container, manifest
from cluster.kubectl import Kubectl
from cluster.release import ACCOUNT
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
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


def test_a_job_trains_to_its_end(
    plane: ControlPlane, make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Two workers on two nodes form a world, train, and the job is Complete; nothing is left."""
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    words = ("holdfast-run", "--nproc-per-node=1", str(script))
    body = manifest(*words, replicas=2, cleanup__pods="None")
    container(body)["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    job = make_job("gpt")
    job.create(body)
    status = job.until_over()
    true = {one["type"]: one["reason"] for one in status["conditions"] if one["status"] == "True"}
    assert true.keys() == {"Complete"}, job.seen()
    kubectl.run("wait", "ej/gpt", "--for=condition=Complete", "--timeout=5s")
    assert status["phase"] == "Succeeded"
    assert "of 2 says 1.0" in kubectl.run("logs", "gpt-worker-0-0")
    job.until("the event of the end", lambda: true["Complete"] in job.events())
    assert {pod["spec"]["nodeName"] for pod in job.pods()} == {"n1", "n2"}
    job.delete()
    # Of this test's namespace: others provoke refusals on the same cluster.
    asked = [one for one in uses(plane.audit_log, ACCOUNT) if f"/{kubectl.namespace}/" in one.uri]
    assert asked
    assert [one.uri for one in asked if one.refused] == []
