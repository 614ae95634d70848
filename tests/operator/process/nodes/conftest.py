"""Two real nodes and the product's image, for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.jobs import Job, Make
from cluster.kubectl import Kubectl
from cluster.real.images import image_values
from cluster.real.jobs import script
from cluster.real.node import RealNodes
from cluster.real.plane import RealPlane
from cluster.release import Release
from cluster.watched import watched


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPlane]:
    """A control plane that real nodes join, with Kubernetes' own times."""
    made = RealPlane(tmp_path_factory.mktemp("real"))
    with watched(made):
        yield made


@pytest.fixture(scope="module")
def nodes(plane: RealPlane) -> Iterator[RealNodes]:
    """Two nodes that take pods."""
    started = RealNodes(plane, 2)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def release(plane: RealPlane, nodes: RealNodes) -> Iterator[Release]:
    """The operator as helm installs it, from the image, on the first node."""
    installed = Release(plane.kubeconfig)
    installed.install(*image_values(), r"nodeSelector.kubernetes\.io/hostname=n1")
    yield installed
    installed.remove()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the job's ranks say which steps they make."""
    return tmp_path / "steps"


@pytest.fixture
def make_job(
    plane: RealPlane, nodes: RealNodes, release: Release, kubectl: Kubectl
) -> Iterator[Make]:
    """Names jobs in the test's namespace, which has the script; those that are left are deleted."""

    def log() -> str:
        return f"{release.operator_log()}\n{nodes.last_words()}"

    kubectl.run("create", "-f", "-", stdin=script())
    yield lambda name: Job(plane, kubectl, name, log)
    kubectl.run("delete", "ej", "--all", "--timeout=50s")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[str, float], None]:
    """Prints how long something took, also where the test passes."""

    def tell(what: str, seconds: float) -> None:
        with capsys.disabled():
            print(f"\n  real nodes: {what}: {seconds:.1f} s", end="", flush=True)

    return tell
