"""A job on real nodes: kubelet, containerd, runc, CNI and the product's image.

What only real nodes show: kubelet's answers, images and their users, containers that start again
with the emptyDir of memory that they had, volumes, DNS and Services of the cluster.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.forwarded import Forward
from cluster.jobs import Job, Make
from cluster.kubectl import Kubectl
from cluster.real.images import lacking
from cluster.real.jobs import later_steps, next_step, real_job, steps
from cluster.real.node import RealNodes

pytestmark = [
    pytest.mark.node,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
Told = Callable[[str, float], None]


@pytest.fixture
def holdfast(plane: ControlPlane, namespace: str, tmp_path: Path) -> Commands:
    """The command line."""
    return Commands(plane.kubeconfig, tmp_path, namespace)


def test_a_job_trains_through_the_end_of_containers_and_pods(
    make_job: Make, nodes: RealNodes, kubectl: Kubectl, holdfast: Commands, folder: Path, told: Told
) -> None:
    """A container, a pod and the master's pod are ended; kubectl and holdfast see it train."""
    job, since = make_job("real"), time.time()
    job.create(real_job(folder))
    told("applied to first step", next_step(job, folder, since).at - since)
    job.until_training(2)
    _look(job, kubectl, holdfast)

    # Its first process is killed from outside: the kubelet starts it again in the same pod.
    pod, since = job.pods()[-1], time.time()
    nodes.kill_container(pod)
    _goes_on(job, folder, since, "container killed", told)
    assert pod["metadata"]["uid"] in {one["metadata"]["uid"] for one in job.pods()}

    since = time.time()
    kubectl.run("delete", "pod", job.pods()[-1]["metadata"]["name"], "--wait=false")
    _goes_on(job, folder, since, "pod deleted", told)

    since, made = time.time(), len(steps(folder))
    kubectl.run("delete", "pod", *(one["metadata"]["name"] for one in job.pods("master")))
    job.until("steps without a master", lambda: len(steps(folder)) > made + 20)
    assert later_steps(folder, since) == [], "the loss of the master held training up"
    job.until("the next master", lambda: holdfast.works("status", "real"))
    (folder / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"
    assert "WorldTraining" in {event["reason"] for event in holdfast.json("events", "real")}


def _goes_on(job: Job, folder: Path, since: float, what: str, told: Told) -> None:
    """Wait until it trains again at full size; every step is from a checkpoint in memory."""
    again = next_step(job, folder, since)
    told(f"{what} to next step", again.at - since)
    assert again.begun > 0, "the round began anew"
    told("and at full size", next_step(job, folder, since, 2).at - since)
    job.until_training(2)


def _look(job: Job, kubectl: Kubectl, holdfast: Commands) -> None:
    """Ask kubelets for what people ask them."""
    assert holdfast.json("status", job.name)["world_size"] == 2
    assert [node["node_rank"] for node in holdfast.json("nodes", job.name)] == [0, 1]
    assert "train.py" in holdfast.run("stacks", job.name)
    worker = job.live()[0]
    assert "begins after step" in kubectl.run("logs", worker)
    assert kubectl.run("exec", worker, "--", "id", "-u") == "65532\n"


@pytest.mark.slow
def test_commands_change_a_job_on_real_nodes(
    make_job: Make, kubectl: Kubectl, holdfast: Commands, folder: Path
) -> None:
    """Follow, scale, drain and stop it; a checkpoint in memory is what each world begins from."""
    job = make_job("asked")
    job.create(real_job(folder, maxReplicas=3))
    job.until_training(2)
    watch = holdfast.start("watch", "asked", "-o", "json")
    try:
        holdfast.run("scale", "asked", "3")
        job.until_training(3)
        assert "node 2" in holdfast.json("drain", "asked", "2")["text"]
        job.until("the next world", lambda: {one.world for one in steps(folder)[-2:]} == {2})
        with Forward(kubectl, "svc/asked-master", 50051) as forward:
            assert "CERTIFICATE" in ssl.get_server_certificate(("127.0.0.1", forward.port))
        holdfast.run("stop", "asked", "--now")
        lines, _ = watch.communicate(timeout=60)
    finally:
        watch.kill()
        watch.communicate()
    reasons = {
        one["event"]["reason"] for one in map(json.loads, lines.splitlines()) if "event" in one
    }
    assert {"NodeDraining", "JobStopped"} <= reasons
    assert all(one.begun > 0 for one in steps(folder) if one.world == 3)
