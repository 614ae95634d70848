"""Members of a world over time: standbys, too few workers, plain torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.jobs import SHARED, Make, container, manifest, share, training
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.rights import needs_pods

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("witness"),
    needs_pods,
]
_SLOW_SECONDS = 600.0


def _take(kubectl: Kubectl, pod: str) -> None:
    kubectl.run("delete", "pod", pod, "--force", "--grace-period=0")


def test_a_standby_takes_part_before_a_new_pod_runs(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, tmp_path: Path
) -> None:
    """A member's pod goes, its successor is slow: the world has its size again without it."""
    kubectl.run("create", "serviceaccount", "trainer")
    job = make_job("standby")
    body = training(tmp_path, replicas=2, minReplicas=2, nodeUnit=2, worker__standbys=1)
    body["spec"]["worker"]["template"]["spec"]["serviceAccountName"] = "trainer"
    job.create(body)
    job.until_training(2)
    job.until("its standby", lambda: len(job.live()) == 3)
    assert {pod["spec"]["serviceAccountName"] for pod in job.pods()} == {"trainer"}
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in job.pods())
    before = job.world["round"]
    nodes.tell("delay", seconds=_SLOW_SECONDS)
    try:
        _take(kubectl, "standby-worker-0-0")
        job.until("the next world", lambda: job.world["round"] > before)
        job.until_training(2)
        job.until_steps()
        assert "standby-worker-0-1" not in job.live(), "its successor had no time to start"
    finally:
        nodes.tell("delay", seconds=0.0)


def test_a_job_with_too_few_workers_waits_so_long_as_it_says(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Its conditions say why nothing trains; then it fails, with that as its reason."""
    job = make_job("few")
    job.create(training(tmp_path, replicas=2, minReplicas=2))
    job.until_training(2)
    # Not before: the time until the first world counts too.
    job.patch(elasticPolicy={"belowMinTimeoutSeconds": 15})
    job.until("its spec", lambda: job.status["observedGeneration"] == 2)
    nodes.tell("delay", seconds=_SLOW_SECONDS)
    try:
        _take(kubectl, "few-worker-1-0")
        job.until("its word", lambda: not job.holds("QuorumReady"))
        assert job.condition("QuorumReady")["reason"] == "InsufficientWorkers"
        status = job.until_over()
        assert job.holds("Failed"), status
        assert job.condition("Failed")["reason"] == "BelowMinReplicas"
    finally:
        nodes.tell("delay", seconds=0.0)


def test_plain_torchrun_finds_its_world(make_job: Make, kubectl: Kubectl, tmp_path: Path) -> None:
    """Its flags come from the pod's environment; two nodes of two processes come to their end.

    By their names, which their Service publishes although none of its pods is ever ready.
    """
    script = (
        "import os, socket, torch, torch.distributed as dist\n"
        "socket.gethostbyname(f'torchrun-worker-{1 - int(os.environ[\"GROUP_RANK\"])}.torchrun')\n"
        "dist.init_process_group('gloo')\n"
        "one = torch.ones(1)\n"
        "dist.all_reduce(one)\n"
        "print(f'{int(one)} ranks', os.environ['GROUP_WORLD_SIZE'], flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    (tmp_path / "sum.py").write_text(script)
    job = make_job("torchrun")
    body = manifest("torchrun", f"{SHARED}/sum.py", replicas=2, nprocPerNode=2)
    container(body)["readinessProbe"] = {"exec": {"command": ["false"]}}
    body["spec"]["cleanup"] = {"pods": "None"}
    job.create(share(body, tmp_path))
    job.until_over()
    assert job.holds("Complete"), job.seen()
    said = "".join(kubectl.run("logs", one["metadata"]["name"]) for one in job.pods())
    assert said.count("4 ranks 2") == 4


def test_a_script_that_breaks_before_its_first_step_is_never_said_to_train(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Whoever waits for QuorumReady with kubectl waits until the job has failed."""
    script = "import holdfast, time\nholdfast.init()\ntime.sleep(4)\nimport nonesuch\n"
    (tmp_path / "breaks.py").write_text(script)
    words = ("holdfast-run", "--nproc-per-node=1", str(tmp_path / "breaks.py"))
    job = make_job("breaks")
    budgets = {"noProgressRestarts": {"limit": 1}}
    job.create(manifest(*words, replicas=2, failurePolicy__budgets=budgets))
    watching = kubectl.start("wait", "ej/breaks", "--for=condition=QuorumReady", "--timeout=600s")
    try:
        reason = "WorldStarting"
        job.until(reason, lambda: job.condition("QuorumReady").get("reason") == reason)
        assert job.until_over()["phase"] == "Failed"
        assert watching.poll() is None, "it was told that the job trains"
    finally:
        watching.kill()
        watching.communicate()
    failed = job.condition("Failed")
    assert failed["reason"] == "NoProgress", job.seen()
    assert "raised ModuleNotFoundError: No module named 'nonesuch'" in failed["message"]
