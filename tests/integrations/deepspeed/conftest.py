"""The process that forks worlds of DeepSpeed, once for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds


@pytest.fixture(scope="module")
def worlds() -> Iterator[DeepSpeedWorlds]:
    """Return the process that runs worlds."""
    with DeepSpeedWorlds() as started:
        yield started
