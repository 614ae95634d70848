"""What tests of a real `Checkpointer` share: a quiet torch, a process that forks worlds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from checkpoints.flash_world import Worlds


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torch warns about what is its own business."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        yield


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """One process with torch for all tests of a file."""
    with Worlds() as started:
        yield started
