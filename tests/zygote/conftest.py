"""Fixtures: an agent with a small zygote, fresh for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zygote_driver import Driver, agent, ready


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """An agent of this test alone, whose zygote forks, without torch."""
    with agent(tmp_path) as running:
        yield ready(running)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The same, shared by the tests of a module that leave it as they found it."""
    with agent(tmp_path_factory.mktemp("agent")) as running:
        yield ready(running)
