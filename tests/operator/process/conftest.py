"""One cluster for all tests of a run, a namespace for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from cluster.churn import Witness
from cluster.control_plane import ControlPlane
from cluster.jobs import Job, Make
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import HISTORY, Release
from cluster.watched import watched
from holdfast_operator.kube.client import KubeClient

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane with the CRD, without nodes."""
    with watched(ControlPlane(tmp_path_factory.mktemp("cluster"))) as started:
        yield started


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, gone after it."""
    name = f"test-{next(_NUMBERS)}"
    answer = plane.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert answer.ok, answer.message
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    """The admin's kubectl in the test's namespace."""
    return Kubectl(plane.kubeconfig, namespace)


@pytest.fixture
def witness(kubectl: Kubectl) -> Iterator[Witness]:
    """Sees every pod of the test's namespace; what must never be fails the test."""
    made = Witness(kubectl)
    yield made
    made.stop()
    assert made.faults == []
    assert len(made.pods) > 2, "it has not seen the pods of the test"


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    """Two nodes."""
    with Nodes(plane) as started:
        yield started


@pytest.fixture(scope="module")
def release(plane: ControlPlane, nodes: Nodes) -> Iterator[Release]:
    """The operator as helm installs it: a pod under its own account."""
    installed = Release(plane.kubeconfig)
    installed.clear()
    # Jobs of an earlier module failed on these nodes on purpose: none is avoided for that.
    installed.kubectl.run("delete", "configmap", HISTORY, "--ignore-not-found")
    installed.install()
    yield installed
    installed.remove()


@pytest.fixture
async def client(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The API server, as the admin."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    made = KubeClient(100.0, 100)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def make_job(
    plane: ControlPlane, nodes: Nodes, release: Release, kubectl: Kubectl
) -> Iterator[Make]:
    """Names jobs in the test's namespace; after it they are deleted, and leave nothing."""
    made: list[Job] = []

    def log() -> str:
        return f"{release.operator_log()}\n--- kubelet\n{nodes.log}"

    def make(name: str) -> Job:
        made.append(Job(plane, kubectl, name, log))
        return made[-1]

    yield make
    kubectl.run("delete", "ej", "--all", "--wait=false")
    for job in made:
        job.until_gone()
