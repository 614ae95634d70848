"""The process that runs worlds of Megatron ranks, one for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megatron_worlds.worlds import Worlds


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """Start the process; a world of it costs a second."""
    with Worlds() as running:
        yield running
