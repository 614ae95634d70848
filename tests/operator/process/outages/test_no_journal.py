"""A master that keeps no journal: its container is killed, and another one goes on in the pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.jobs import Make, training
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]


def test_a_master_without_a_journal_is_started_again_in_its_pod(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """With an epoch of its own: the workers join it, and train on in the same round."""
    job = make_job("forgets")
    job.create(training(tmp_path, replicas=2, master__journal={"mode": "None"}))
    job.until_training(2)
    first, (master,) = job.status, job.live("master")
    nodes.tell("kill", namespace=namespace, pod=master)
    job.until("the next master", lambda: job.world["epoch"] > first["world"]["epoch"])
    job.until("its word", lambda: job.holds("MasterReady"))
    job.until_steps()
    assert job.world["round"] == first["world"]["round"]
    assert (job.live("master"), job.status["masterPods"]) == ([master], 1)
    assert job.live() == ["forgets-worker-0-0", "forgets-worker-1-0"]
