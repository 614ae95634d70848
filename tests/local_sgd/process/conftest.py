"""Worlds that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local_sgd.replica_world import ReplicaWorlds


@pytest.fixture(scope="module")
def worlds() -> Iterator[ReplicaWorlds]:
    """One process with torch for all tests of a file."""
    with ReplicaWorlds() as started:
        yield started
