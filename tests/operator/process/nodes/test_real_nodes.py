"""A job on real nodes: kubelet, containerd, runc, CNI and the product's image.

What only real nodes show: kubelet's answers, images and their users, containers that start again
with the emptyDir of memory that they had, volumes, DNS and Services of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.jobs import Job
from cluster.kubectl import Kubectl
from cluster.real.images import lacking
from cluster.real.jobs import Step, real_job, script, steps
from cluster.real.node import RealNode
from cluster.release import Release

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the job's ranks say which steps they make."""
    return tmp_path / "steps"


@pytest.fixture
def make_job(
    plane: ControlPlane, nodes: list[RealNode], release: Release, kubectl: Kubectl
) -> Iterator[Callable[[str], Job]]:
    """Names jobs in the test's namespace, which has the script; those that are left are deleted."""

    def log() -> str:
        return "\n".join([release.operator_log(), *(node.last_words() for node in nodes)])

    kubectl.run("create", "-f", "-", stdin=script())
    yield lambda name: Job(plane, kubectl, name, log)
    kubectl.run("delete", "ej", "--all", "--wait=false")


def _after(folder: Path, since: float, size: int = 0) -> list[Step]:
    """Steps of rounds that began after a moment, in worlds of a size."""
    made = steps(folder)
    before = max((one.round for one in made if one.at <= since), default=-1)
    return [one for one in made if one.round > before and (not size or one.world == size)]


def _next(job: Job, folder: Path, since: float, size: int = 0) -> Step:
    """Wait for the first step of a round that began after a moment."""
    job.until(
        f"a step in a world of {size or 'any size'}", lambda: bool(_after(folder, since, size))
    )
    return _after(folder, since, size)[0]


def _tell(capsys: pytest.CaptureFixture[str], what: str, seconds: float) -> None:
    with capsys.disabled():
        print(f"\n  real nodes: {what}: {seconds:.1f} s", end="", flush=True)


def _node_of(nodes: list[RealNode], pod: dict[str, Any]) -> RealNode:
    return next(node for node in nodes if node.name == pod["spec"]["nodeName"])


def test_a_job_trains_through_the_end_of_containers_and_pods(
    make_job: Make,
    nodes: list[RealNode],
    kubectl: Kubectl,
    holdfast: Commands,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A container, a pod and the master's pod are ended; kubectl and holdfast see a job that trains."""
    job = make_job("real")
    since = time.time()
    job.create(real_job(folder))
    first = _next(job, folder, since)
    _tell(capsys, "applied to first step", first.at - since)
    job.until_training(2)

    # Its first process is killed from outside: the kubelet starts it again in the same pod.
    pod = job.pods()[-1]
    since = time.time()
    (container,) = pod["status"]["containerStatuses"]
    _node_of(nodes, pod).kill_container(container["containerID"])
    again = _next(job, folder, since)
    _tell(capsys, "container killed to next step", again.at - since)
    assert again.begun > 0, "the round did not begin from a checkpoint"
    _tell(capsys, "and at full size", _next(job, folder, since, 2).at - since)
    assert {one["metadata"]["uid"] for one in job.pods()} >= {pod["metadata"]["uid"]}
    job.until_training(2)

    since = time.time()
    kubectl.run("delete", "pod", job.pods()[-1]["metadata"]["name"], "--wait=false")
    again = _next(job, folder, since)
    _tell(capsys, "pod deleted to next step", again.at - since)
    assert again.begun > 0
    _tell(capsys, "and at full size", _next(job, folder, since, 2).at - since)

    since, made = time.time(), len(steps(folder))
    kubectl.run("delete", "pod", *(one["metadata"]["name"] for one in job.pods("master")))
    job.until("steps without a master", lambda: len(steps(folder)) > made + 20)
    assert _after(folder, since) == [], "the loss of the master held training up"
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
    assert "/dev/shm" in kubectl.run("exec", worker, "--", "df", "/dev/shm")
