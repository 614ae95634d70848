"""Worlds that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from local_sgd.replica_world import ReplicaWorlds


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One process with torch for all tests of a file: its `Worlds`, else worlds of replicas."""
    with getattr(request.module, "Worlds", ReplicaWorlds)() as started:
        yield started


@pytest.fixture(scope="module")
def training(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One process with torch for all tests of a file: its `Training`."""
    with request.module.Training() as started:
        yield started
