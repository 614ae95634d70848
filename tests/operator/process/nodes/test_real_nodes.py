"""A job on real nodes: kubelet, containerd, runc, CNI and the product's image.

What only real nodes show: kubelet's answers, images and their users, containers that start again
with the emptyDir of memory that they had, volumes, DNS and Services of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.jobs import Job
from cluster.kubectl import Kubectl
from cluster.real.images import lacking
from cluster.real.jobs import later_steps, next_step, real_job, steps
from cluster.real.node import RealNodes

pytestmark = [
    pytest.mark.node,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
Make = Callable[[str], Job]


@pytest.fixture
def holdfast(plane: ControlPlane, namespace: str, tmp_path: Path) -> Commands:
    """The command line."""
    return Commands(plane.kubeconfig, tmp_path, namespace)


def _tell(capsys: pytest.CaptureFixture[str], what: str, seconds: float) -> None:
    with capsys.disabled():
        print(f"\n  real nodes: {what}: {seconds:.1f} s", end="", flush=True)


def test_a_job_trains_through_the_end_of_containers_and_pods(
    make_job: Make,
    nodes: RealNodes,
    kubectl: Kubectl,
    holdfast: Commands,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A container, a pod and the master's pod are ended; kubectl and holdfast see it train."""
    job = make_job("real")
    since = time.time()
    job.create(real_job(folder))
    first = next_step(job, folder, since)
    _tell(capsys, "applied to first step", first.at - since)
    job.until_training(2)

    # Its first process is killed from outside: the kubelet starts it again in the same pod.
    pod = job.pods()[-1]
    since = time.time()
    (container,) = pod["status"]["containerStatuses"]
    nodes.of(pod).kill_container(container["containerID"])
    again = next_step(job, folder, since)
    _tell(capsys, "container killed to next step", again.at - since)
    assert again.begun > 0, "the round did not begin from a checkpoint"
    _tell(capsys, "and at full size", next_step(job, folder, since, 2).at - since)
    assert {one["metadata"]["uid"] for one in job.pods()} >= {pod["metadata"]["uid"]}
    job.until_training(2)

    since = time.time()
    kubectl.run("delete", "pod", job.pods()[-1]["metadata"]["name"], "--wait=false")
    again = next_step(job, folder, since)
    _tell(capsys, "pod deleted to next step", again.at - since)
    assert again.begun > 0
    _tell(capsys, "and at full size", next_step(job, folder, since, 2).at - since)

    since, made = time.time(), len(steps(folder))
    kubectl.run("delete", "pod", *(one["metadata"]["name"] for one in job.pods("master")))
    job.until("steps without a master", lambda: len(steps(folder)) > made + 20)
    assert later_steps(folder, since) == [], "the loss of the master held training up"
    job.until("the next master", lambda: holdfast.works("status", "real"))

    _look(job, kubectl, holdfast)
    (folder / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"
    assert "WorldTraining" in {event["reason"] for event in holdfast.json("events", "real")}


def _look(job: Job, kubectl: Kubectl, holdfast: Commands) -> None:
    """Ask kubelets for what people ask them."""
    job.until_training(2)
    assert holdfast.json("status", "real")["world_size"] == 2
    assert [node["node_rank"] for node in holdfast.json("nodes", "real")] == [0, 1]
    assert "train.py" in holdfast.run("stacks", "real")
    worker = job.live()[0]
    assert "begins after step" in kubectl.run("logs", worker)
    assert kubectl.run("exec", worker, "--", "id", "-u") == "65532\n"
