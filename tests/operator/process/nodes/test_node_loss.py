"""A real node is lost with a worker on it, and comes back from its disks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.jobs import Job, Make
from cluster.kubectl import Kubectl
from cluster.real.images import lacking
from cluster.real.jobs import next_step, real_job, steps
from cluster.real.node import RealNodes

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
Told = Callable[[str, float], None]


def test_a_lost_node_is_replaced_on_one_that_is_there(
    make_job: Make, nodes: RealNodes, kubectl: Kubectl, folder: Path, told: Told
) -> None:
    """Under Kubernetes' own 40 s and 300 s, and with the master on the only node that is left."""
    job = make_job("lost")
    kubectl.run("cordon", "n2")
    job.create(real_job(folder))
    job.until_training(2)
    kubectl.run("uncordon", "n2")
    kubectl.run("delete", "pod", "lost-worker-1-0", "--wait=false")
    job.until("a worker on the other node", lambda: _places(job) == {"n1", "n2"})
    job.until_training(2)
    job.until("steps", lambda: bool(steps(folder)) and steps(folder)[-1].at > time.time() - 1)

    since = time.time()
    nodes["n2"].lose()
    try:
        again = next_step(job, folder, since)
        told("node lost to next step", again.at - since)
        assert again.begun > 0
        told("and at full size", next_step(job, folder, since, 2).at - since)
        assert time.time() - since < 60, "it waited for Kubernetes to give the node up"
    finally:
        nodes["n2"].start()
        nodes["n2"].ready()
    (folder / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"


def _places(job: Job) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in job.pods()}
