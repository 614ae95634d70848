"""NetworkPolicies on real nodes, enforced by kube-router: who gets a connection, and who gets none.

The policies' words are tested pair by pair in `jobs/test_network_policies`; here packets pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.jobs import Job, Make, pod_spec
from cluster.kubectl import Kubectl
from cluster.real.firewall import NOT_BUILT, Firewall, firewall_folder
from cluster.real.images import image_values, lacking, training_image
from cluster.real.jobs import real_job, steps
from cluster.real.node import RealNodes
from cluster.real.plane import RealPlane
from cluster.release import Release

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
    pytest.mark.skipif(firewall_folder() is None, reason=NOT_BUILT),
]
MASTER: Final = 50051
OPERATOR_METRICS: Final = 8080
MASTER_METRICS: Final = 9464
_CONNECT: Final = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5.0)
    print("made")
except OSError as error:
    print(error)
"""
_LISTENS: Final = """
for line in open("/proc/net/tcp").readlines()[1:]:
    words = line.split()
    address, port = words[1].split(":")
    if words[3] == "0A" and not address.endswith("7F"):
        print(int(port, 16))
"""
"""Prints the ports on which a pod listens to others."""


@pytest.fixture(scope="module")
def release(plane: RealPlane, nodes: RealNodes) -> Iterator[Release]:
    """An operator with a NetworkPolicy that makes one for each job."""
    installed = Release(plane.kubeconfig)
    policies = ("networkPolicy.enabled=true", "networkPolicy.jobs=true")
    installed.install(*image_values(), *policies, r"nodeSelector.kubernetes\.io/hostname=n1")
    yield installed
    installed.remove()


@pytest.fixture(scope="module")
def firewall(plane: RealPlane, nodes: RealNodes) -> Firewall:
    """What enforces policies, from before the operator and the first job on."""
    return Firewall(plane, nodes)


def _stranger(kubectl: Kubectl, **labels: str) -> dict[str, Any]:
    """Start a pod that belongs to no job; return it with its address."""
    sleeps = ["python3", "-c", "import time; time.sleep(3600)"]
    image = {"image": training_image(), "imagePullPolicy": "Never"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "labels": labels},
        "spec": {
            "containers": [{"name": "worker", "command": sleeps, **image}],
            "terminationGracePeriodSeconds": 1,
        },
    }
    kubectl.run("create", "-f", "-", stdin=pod)
    kubectl.run("wait", "pod/stranger", "--for=condition=Ready", "--timeout=50s")
    found: dict[str, Any] = kubectl.json("get", "pod", "stranger")
    return found


def _connects(plane: RealPlane, source: dict[str, Any], target: dict[str, Any], port: int) -> bool:
    """Return whether a connection from one pod to a port of another is made."""
    kubectl = Kubectl(plane.kubeconfig, source["metadata"]["namespace"])
    words = ("exec", source["metadata"]["name"], "--", "python3", "-c", _CONNECT)
    return kubectl.run(*words, target["status"]["podIP"], str(port)).strip() == "made"


def _spread(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Have each worker of a job of this name on a node of its own; return the job."""
    chosen = {"holdfast.dev/job": name, "holdfast.dev/role": "worker"}
    pod_spec(body)["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": chosen},
        }
    ]
    return body


def _workers(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    one, other = job.pods()
    assert one["spec"]["nodeName"] != other["spec"]["nodeName"], "no packet leaves a node"
    return one, other


@pytest.fixture
def elsewhere(plane: RealPlane) -> Iterator[Kubectl]:
    """Another namespace."""
    there = Kubectl(plane.kubeconfig, "elsewhere")
    there.run("create", "namespace", "elsewhere")
    yield there
    there.run("delete", "namespace", "elsewhere", "--timeout=50s")


def test_packets_pass_where_policies_allow_it_and_nowhere_else(
    firewall: Firewall,
    make_job: Make,
    plane: RealPlane,
    release: Release,
    kubectl: Kubectl,
    elsewhere: Kubectl,
    folder: Path,
) -> None:
    """A job trains over two nodes, and its pods hear nobody but each other and the operator."""
    job, foreign = make_job("guarded"), make_job("foreign")
    job.create(_spread(real_job(folder), "guarded"))
    alone = real_job(folder.with_name("foreign"))
    alone["spec"]["replicas"] = 1
    foreign.create(alone)
    job.until_training(2)
    foreign.until_training(1)
    worker, peer = _workers(job)
    (other,), (master,), (operator,) = (
        foreign.pods(),
        job.pods("master"),
        release.kubectl.json("get", "pods")["items"],
    )
    stranger = _stranger(kubectl)
    twin = _stranger(elsewhere, **peer["metadata"]["labels"])
    likeness = _stranger(
        Kubectl(plane.kubeconfig, "default"),
        **operator["metadata"]["labels"],
    )
    for pod in (worker, master, operator):
        firewall.until_guards(pod["status"]["podIP"])
    ports = kubectl.run("exec", worker["metadata"]["name"], "--", "python3", "-c", _LISTENS).split()
    assert ports, "it listens to nobody"
    port = int(ports[0])
    pairs = {
        "worker to worker": (peer, worker, port, True),
        "worker to its master": (worker, master, MASTER, True),
        "master to worker": (master, worker, port, True),
        "operator to master": (operator, master, MASTER, True),
        "operator to worker": (operator, worker, port, True),
        "scraper to master": (stranger, master, MASTER_METRICS, True),
        "scraper to operator": (stranger, operator, OPERATOR_METRICS, True),
        "a pod of no job to worker": (stranger, worker, port, False),
        "a pod of no job to master": (stranger, master, MASTER, False),
        "another job's worker to worker": (other, worker, port, False),
        "another job's worker to master": (other, master, MASTER, False),
        "a namesake elsewhere to worker": (twin, worker, port, False),
        "a namesake elsewhere to master": (twin, master, MASTER, False),
        "one that looks like the operator to master": (likeness, master, MASTER, False),
    }
    found = {what: _connects(plane, *pair[:3]) for what, pair in pairs.items()}
    assert found == {what: pair[3] for what, pair in pairs.items()}
    made = len(steps(folder))
    job.until("more steps", lambda: len(steps(folder)) > made + 20)
    assert {one.world for one in steps(folder)[-10:]} == {2}
    for one in (folder, folder.with_name("foreign")):
        (one / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"
