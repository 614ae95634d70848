"""Ends of an agent: signals, orders, deaths of its parts; nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.agent_process import AgentProcess, StartAgent, eventually, wait_gone
from agents.scripted_node import Node
from holdfast_wire import keys
from holdfast_wire.messages import (
    DumpStacks,
    Goodbye,
    Heartbeat,
    Leave,
    LeaveOutcome,
    PeerAddress,
    RoundStarted,
    SetBarrier,
    Welcome,
)
from house.patience import patience
from masters.scripted_master import AgentStream, Identities, ScriptedMaster, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


FAMILY = """
import os, signal, subprocess, sys, time
def leave(number, _):
    print("got", signal.Signals(number).name, flush=True)
    time.sleep(0.2)
    sys.exit(0)
for name in ("SIGTERM", "SIGINT"):
    signal.signal(getattr(signal, name), leave)
# A grandchild in a session of its own, whose parent is gone: nothing but its ancestry tells.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "4321"])
    os._exit(0)
os.wait()
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""

STEPS = """
import os, time
import holdfast
job = holdfast.init()
print("ready", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.01)
for step in range(1, 10_000):
    time.sleep(0.02)
    if job.step(step) is holdfast.SAVE_AND_STOP:
        print("stopped after", step, flush=True)
        break
"""


async def _begin(stream: AgentStream, agent: AgentProcess, **fields: Any) -> None:
    """Start one worker, and wait until it says that it is ready."""
    await stream.warm()
    stream.send(assignment(await stream.prepare_store("s"), nproc=1, **fields), 1)
    await stream.wait(RoundStarted)
    await eventually(lambda: "ready" in agent.output())


async def _family(stream: AgentStream, agent: AgentProcess, **fields: Any) -> list[psutil.Process]:
    """Start one worker; return the agent's whole family."""
    await _begin(stream, agent, **fields)
    await eventually(lambda: _sleepers(agent.family()))
    return agent.family()


async def _run(
    node: Node, env: dict[str, str] | None = None
) -> tuple[AgentProcess, AgentStream, list[psutil.Process]]:
    """Start an agent and one worker; return it, its stream, and its whole family."""
    agent, stream = await node.start(FAMILY, env=env)
    return agent, stream, await _family(stream, agent)


def _peers(other: AgentStream) -> tuple[PeerAddress, ...]:
    return (PeerAddress(node_rank=1, address=other.hello.peer_address),)


def _sleepers(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return the orphaned grandchildren."""
    return [process for process in family if "4321" in process.cmdline()]


async def test_sigterm_is_a_notice_and_the_masters_leave_ends_it(node: Node) -> None:
    """Workers go on until the master has saved and moved the work."""
    agent, stream, family = await _run(node)
    agent.send(signal.SIGTERM)
    goodbye = await stream.wait(Goodbye)
    assert goodbye.terminated
    beats = len(stream.all(Heartbeat))
    await stream.wait(Heartbeat, lambda _: len(stream.all(Heartbeat)) > beats + 3)
    assert "got" not in agent.output()
    stream.send(Leave(grace_seconds=5.0, outcome=LeaveOutcome.RELEASED, reason="drained"))
    assert await asyncio.to_thread(agent.wait) == 143
    assert "got SIGTERM" in agent.output()
    assert wait_gone(family, 1.0) == []


async def test_without_an_answer_the_grace_ends_it(node: Node) -> None:
    """An agent without a Leave signals its workers in time for its own deadline."""
    agent, stream, family = await _run(node, {"HOLDFAST_GRACE_SECONDS": "3"})
    began = time.monotonic()
    agent.send(signal.SIGTERM)
    assert await asyncio.to_thread(agent.wait) == 143
    assert 1.4 <= time.monotonic() - began <= 3.0 + 5.0 * patience()
    assert "got SIGTERM" in agent.output()
    assert stream.all(Goodbye)[0].terminated
    assert wait_gone(family, 1.0) == []


async def test_a_second_signal_ends_it_at_once(node: Node) -> None:
    """Two SIGINTs: no grace, and still nothing is left."""
    agent, stream, family = await _run(node)
    agent.send(signal.SIGINT)
    await stream.wait(Goodbye)
    began = time.monotonic()
    agent.send(signal.SIGINT)
    assert await asyncio.to_thread(agent.wait) == 130
    assert time.monotonic() - began < 5 * patience()
    assert "got" not in agent.output()
    assert wait_gone(family, 1.0) == []


async def test_a_killed_agent_leaves_no_process(node: Node) -> None:
    """After kill -9 of the agent zygote, store, worker and its orphaned grandchild are gone."""
    agent, _, family = await _run(node)
    assert len(family) >= 4
    agent.send(signal.SIGKILL)
    assert await asyncio.to_thread(wait_gone, family, 3.0) == []


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        pytest.param(LeaveOutcome.SUCCEEDED, 0, id="succeeded"),
        pytest.param(LeaveOutcome.FAILED, 1, id="failed"),
        pytest.param(LeaveOutcome.REPLACED, 75, id="replaced"),
    ],
)
async def test_the_masters_leave_decides_the_exit_code(
    outcome: LeaveOutcome, code: int, node: Node
) -> None:
    """The outcome in the master's Leave decides the agent's exit code. Workers get their grace."""
    agent, stream, family = await _run(node)
    stream.send(Leave(command_id=5, grace_seconds=5.0, outcome=outcome, reason="because"))
    assert await asyncio.to_thread(agent.wait) == code
    assert "got SIGTERM" in agent.output()
    assert stream.all(Goodbye)[-1] == Goodbye(reason="because")
    assert wait_gone(family, 1.0) == []
    assert "because" in agent.errors()


async def test_an_agent_that_never_met_its_master_ends_at_once(node: Node) -> None:
    """SIGTERM before there is a master: nobody to tell, nothing to wait for."""
    agent = node.agent(FAMILY, endpoint="127.0.0.1:1")
    await eventually(lambda: "no master at 127.0.0.1:1 yet" in agent.errors(), 90)
    agent.send(signal.SIGTERM)
    assert await asyncio.to_thread(agent.wait, 10) == 143


async def test_certificates_of_another_job_are_told_and_tried_again(
    node: Node, tmp_path: Path
) -> None:
    """A handshake that fails is logged with what to look at; nothing is started."""
    stranger = Identities(tmp_path / "stranger", "another-job")
    agent = node.agent(FAMILY, env={keys.ENV_TLS_DIR: str(stranger.files(keys.ROLE_AGENT, 0))})
    await eventually(lambda: "no master at" in agent.errors(), 90)
    assert node.master.streams == []
    agent.send(signal.SIGINT)
    assert await asyncio.to_thread(agent.wait, 10) == 130


class TestWithoutAMaster:
    """The masterless rules, with the agents' own peer service."""

    async def test_workers_train_on_and_end_at_the_limit(self, node: Node) -> None:
        """Nothing happens when the master goes; at the declared limit the workers are killed."""
        node.master.welcome = Welcome(heartbeat_seconds=0.2, masterless_limit_seconds=12.0)
        agent, _, family = await _run(node)
        worker = _sleepers(family)
        gone_at = time.monotonic()
        await node.master.stop()
        assert await asyncio.to_thread(wait_gone, worker, 1.0) == worker
        assert await asyncio.to_thread(wait_gone, worker, 20.0) == []
        assert time.monotonic() - gone_at >= 11.5
        assert agent.process.poll() is None, "the agent waits for a master"

    async def test_a_peer_in_a_newer_round_ends_the_workers(
        self, node: Node, others: ScriptedMaster
    ) -> None:
        """The other node has moved on: what runs here is of the past."""
        ours, stream, theirs, other = await self._two(node, others, FAMILY)
        family = await _family(stream, ours, peers=_peers(other))
        await _family(other, theirs)
        await node.master.stop()
        workers = _sleepers(family)
        # The same round: they train on.
        assert await asyncio.to_thread(wait_gone, workers, 1.5) == workers
        other.send(assignment(await other.prepare_store("next"), nproc=1), 2)
        assert await asyncio.to_thread(wait_gone, workers, 5.0) == []
        await eventually(lambda: "a peer is in round 2" in ours.errors())

    async def test_a_stop_that_only_a_peer_heard_of_is_passed_on(
        self, node: Node, others: ScriptedMaster, tmp_path: Path
    ) -> None:
        """A master that ends while it tells the agents leaves no rank behind that goes on."""
        steps = STEPS.format(go=str(tmp_path / "go"))
        ours, stream, theirs, other = await self._two(node, others, steps)
        await _begin(stream, ours, peers=_peers(other))
        await _begin(other, theirs)
        other.send(SetBarrier(barrier_id=7, step=100), 1)
        other.send(DumpStacks(command_id=1))
        await other.done(1)  # what was sent before has arrived
        await node.master.stop()
        (tmp_path / "go").touch()
        await eventually(lambda: "stopped after 100" in ours.output())
        await eventually(lambda: "stopped after 100" in theirs.output())

    @pytest.fixture
    async def others(self, identities: Identities) -> AsyncIterator[ScriptedMaster]:
        """The master of the other node, of the same epoch: it tells what the first one would."""
        scripted = ScriptedMaster(identities, epoch=1, incarnation="one")
        await scripted.start()
        yield scripted
        await scripted.stop()

    @staticmethod
    async def _two(
        node: Node, others: ScriptedMaster, code: str
    ) -> tuple[AgentProcess, AgentStream, AgentProcess, AgentStream]:
        """Start an agent under each master; return each with its stream."""
        ours = node.agent(code)
        theirs = node.agent(code, node_rank=1, endpoint=others.endpoint)
        other = await others.stream(0, within=90)
        return ours, await node.master.stream(0, within=90), theirs, other


async def test_a_stopped_zygote_does_not_hold_the_agent(node: Node) -> None:
    """A zygote that takes no commands any more is killed at the end, and its workers with it."""
    agent, stream, family = await _run(node)
    agent.zygote().suspend()
    stream.send(Leave(grace_seconds=0.5, outcome=LeaveOutcome.SUCCEEDED, reason="done"))
    assert await asyncio.to_thread(agent.wait) == 0
    assert wait_gone(family, 3.0) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_a_signal_while_torch_is_imported_ends_it_quietly(
    number: signal.Signals, code: int, node: Node
) -> None:
    """A signal before anything runs: the code, no traceback, nothing left."""
    agent = node.agent(FAMILY, forked=False)
    maps = Path(f"/proc/{agent.pid}/maps")
    deadline = time.monotonic() + 60
    while "libtorch" not in maps.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    family = agent.family()
    agent.send(number)
    assert agent.wait(20) == code
    assert "Traceback" not in agent.errors()
    assert wait_gone(family, 3.0) == []


def test_bad_input_ends_with_2_before_anything_starts(
    start_agent: StartAgent, tmp_path: Path
) -> None:
    """The exit code and one line on stderr; no temporary files, no processes."""
    agent = start_agent("--nnodes=0", "train.py", env={"TMPDIR": str(tmp_path)})
    assert agent.wait(60) == 2
    assert agent.errors() == ("holdfast-run: --nnodes='0': expected MIN:MAX with 1 ≤ MIN ≤ MAX\n")
    assert not list(tmp_path.glob("holdfast*"))
