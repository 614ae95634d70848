"""Two real nodes and the product's image, for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.real.images import image_name
from cluster.real.node import RealNode
from cluster.real.plane import RealPlane
from cluster.release import Release
from cluster.watched import watched


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPlane]:
    """A control plane that real nodes join, with Kubernetes' own times."""
    made = RealPlane(tmp_path_factory.mktemp("real"))
    with watched(made):
        yield made


@pytest.fixture(scope="session")
def nodes(plane: RealPlane) -> Iterator[list[RealNode]]:
    """Two nodes that take pods."""
    started: list[RealNode] = []
    try:
        started += [RealNode(plane, 1), RealNode(plane, 2)]
        for node in started:
            node.ready()
        yield started
    finally:
        for node in started:
            node.stop()


@pytest.fixture(scope="session")
def release(plane: RealPlane, nodes: list[RealNode]) -> Iterator[Release]:
    """The operator as helm installs it, from the image, on the first node."""
    repository, _, tag = image_name().rpartition(":")
    installed = Release(plane.kubeconfig)
    installed.install(
        f"image.repository={repository}",
        f"image.tag={tag}",
        "image.pullPolicy=Never",
        r"nodeSelector.kubernetes\.io/hostname=n1",
    )
    yield installed
    installed.remove()
