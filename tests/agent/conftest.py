"""A scripted master and real agents for these tests; everything is ended afterwards."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from agents.agent_process import AgentProcess, Script, StartAgent, clean_environment, environment
from agents.scripted_node import Node
from masters.scripted_master import Identities, ScriptedMaster


@pytest.fixture(autouse=True)
def short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents import nothing but torch before the first fork: half of their start.

    No script here has an optimizer, which is what the other modules are for.
    """
    monkeypatch.setenv("HOLDFAST_PRELOAD", "-torch")


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    """Certificates of a job."""
    return Identities(tmp_path / "tls", f"uid-{uuid.uuid4().hex[:8]}")


@pytest.fixture
async def master(identities: Identities) -> AsyncIterator[ScriptedMaster]:
    """A master that listens and does nothing by itself."""
    scripted = ScriptedMaster(identities)
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
def start_agent(
    identities: Identities, master: ScriptedMaster, tmp_path: Path
) -> Iterator[StartAgent]:
    """Start holdfast-run with arguments; `env=` adds variables, `node_rank=` picks the node.

    `wrap=` is a command that becomes the agent. Agents begin with torch imported, as forks, unless
    a test says `forked=False`.
    """
    started: list[AgentProcess] = []

    def start(
        *args: str,
        node_rank: int = 0,
        env: dict[str, str] | None = None,
        endpoint: str = "",
        wrap: Sequence[str] = (),
        forked: bool = True,
    ) -> AgentProcess:
        variables = environment(identities, endpoint or master.endpoint, node_rank)
        name = f"agent-{len(started)}"
        given = {**variables, **(env or {})}
        agent = AgentProcess(args, given, tmp_path, name, wrap, forked=forked)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        agent.end()


@pytest.fixture
def start_alone(tmp_path: Path) -> Iterator[StartAgent]:
    """Start holdfast-run without a master; its temporary files lie in tmp_path/tmp.

    It begins with torch imported, as a fork, unless a test says `forked=False`.
    """
    (tmp_path / "tmp").mkdir()
    started: list[AgentProcess] = []

    def start(*args: str, forked: bool = True) -> AgentProcess:
        env = {**clean_environment(), "TMPDIR": str(tmp_path / "tmp")}
        started.append(AgentProcess(args, env, tmp_path, forked=forked))
        return started[-1]

    yield start
    for agent in started:
        agent.end()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a training script and return its path."""

    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def node(master: ScriptedMaster, start_agent: StartAgent, script: Script) -> Node:
    """The master and what starts agents under it, in one."""
    return Node(master, start_agent, script)


@pytest.fixture
def managed(tmp_path: Path) -> dict[str, str]:
    """The environment that an operator gives an agent."""
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
    return {
        "HOLDFAST_MASTER": "10.0.0.7:7777",
        "HOLDFAST_JOB": "gpt",
        "HOLDFAST_JOB_UID": "6f1e",
        "HOLDFAST_NODE_RANK": "3",
        "HOLDFAST_TLS_DIR": str(tmp_path),
    }
