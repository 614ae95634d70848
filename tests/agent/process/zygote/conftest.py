"""Fixtures: an agent with a small zygote, fresh for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.zygote_driver import Driver, agent, ready


@pytest.fixture(autouse=True)
def short_start() -> None:
    """Leave the environment alone: each driver says what its zygote imports."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """An agent of this test alone, whose zygote forks, without torch."""
    with agent(tmp_path) as running:
        yield ready(running)


@pytest.fixture(scope="module")
def small_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The same for a whole module."""
    with agent(tmp_path_factory.mktemp("agent")) as running:
        yield ready(running)


@pytest.fixture
def shared(small_agent: Driver) -> Iterator[Driver]:
    """The module's agent, without what the last test may have left running."""
    yield small_agent
    small_agent.settle()


@pytest.fixture(scope="module")
def torch_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """An agent whose zygote has imported the default preload list."""
    with agent(tmp_path_factory.mktemp("warm"), torch=True) as running:
        yield ready(running)


@pytest.fixture
def warm(torch_agent: Driver) -> Iterator[Driver]:
    """The module's agent with torch, without what the last test may have left running."""
    yield torch_agent
    torch_agent.settle()
