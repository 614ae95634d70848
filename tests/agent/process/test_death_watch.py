"""The agent's watch over the marks of dying workers: what it tells the runner, and what not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agents.agent_process import eventually
from agents.page_worker import python
from holdfast.page import Page
from holdfast.robust_mark import OWNER_DIED, RobustMark
from holdfast_agent.policies.round_phases import Orders, RoundPhase
from holdfast_agent.workers import rounds
from holdfast_agent.workers.log_files import RankFiles, RoundLogs
from holdfast_agent.workers.page_watch import DeathWatch
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.zygote.protocol import WorkerExitedEvent
from holdfast_wire.messages import WorkerExited, WorldAssignment

HOLD = """
import os, sys
from holdfast.robust_mark import RobustMark
page, slot = map(int, os.environ["HOLDFAST_PAGE"].split(":")[:2])
mark = RobustMark(page, slot)
print(mark.hold(), flush=True)
sys.stdin.readline()
"""
SIZE = 2


class Node:
    """A runner whose round has one worker, a child of this process, in slot 1."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.reports: list[WorkerExited] = []
        tools = SimpleNamespace(page=page, process=SimpleNamespace(send=lambda _: None))
        self.runner = RoundRunner(
            cast("Any", tools), lambda message, _: self.reports.append(message), lambda: None
        )
        files = {
            rank: RankFiles(stdout=None, stderr=None, error=None, server=folder) for rank in (0, 1)
        }
        world = WorldAssignment(local_world_size=SIZE)
        self.round = Round(number=1, assignment=world, logs=RoundLogs(files, lambda: None))
        self.runner.current, self.runner.phase = self.round, RoundPhase.RUNNING
        self.deaths = DeathWatch(page, os.getpid, self.runner)

    def start(self, process: subprocess.Popen[str]) -> None:
        """The worker runs and holds its mark."""
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        self.round.pids = {0: os.getpid(), 1: process.pid}

    def told(self, code: int) -> None:
        """The zygote says that the worker is gone."""
        self.runner.on_exited(WorkerExitedEvent(1, 1, self.round.pids[1], code, mono_ns=1))

    async def reported(self) -> list[int]:
        """Return the exit codes that the master has been told of."""
        await self.runner.close()
        return [message.exit_code for message in self.reports]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose watch runs."""
    page = Page.create(SIZE)
    page.begin_lease(time.monotonic_ns())
    made = Node(page, tmp_path)
    made.deaths.start()
    yield made
    made.deaths.stop()
    os.close(page.fd)


async def _die(node: Node, end: Callable[[subprocess.Popen[str]], Any], then: str = "") -> None:
    """Start the worker, end it as told, and wait for its mark and what follows from it."""
    with python(node.page, 1, HOLD + then) as process:
        node.start(process)
        end(process)
        mark = RobustMark(node.page.fd, 1)
        await eventually(lambda: mark.word() & OWNER_DIED)
        await asyncio.sleep(0.1)  # what is not to come cannot be waited for


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


async def test_a_killed_worker_is_reported_before_it_is_gone(node: Node) -> None:
    """Nobody has waited for it yet; when the zygote tells of it nothing is said twice."""
    await _die(node, subprocess.Popen.kill)
    assert node.round.exits == {1: -9}
    assert node.round.dying == {1}
    node.told(-signal.SIGKILL)
    assert node.round.dying == set()
    assert await node.reported() == [-9]
    assert not node.round.dead


async def test_a_worker_that_raises_is_reported_early_with_its_code(node: Node) -> None:
    """Its error file was written long before."""
    await _die(node, _go_on, "raise SystemExit(3)")
    node.told(3)
    assert await node.reported() == [3]


@pytest.mark.parametrize(
    ("then", "code"), [("os._exit(0)", 0), ("os.execvp('sleep', ['sleep', '60'])", 5)]
)
async def test_what_is_no_failure_or_no_death_waits_for_the_zygote(
    node: Node, then: str, code: int
) -> None:
    """A clean end, and a worker that has become another program."""
    await _die(node, _go_on, then)
    assert node.round.exits == {}
    node.told(code)
    assert await node.reported() == [code]


@pytest.mark.parametrize("orders", list(Orders))
async def test_what_the_agent_ended_is_not_reported(node: Node, orders: Orders) -> None:
    """Its own SIGKILL is no failure, however early it is seen."""
    node.round.orders = orders
    await _die(node, subprocess.Popen.kill)
    assert node.round.exits == {}
    node.told(-signal.SIGKILL)
    assert await node.reported() == []


async def test_a_stale_lease_waits_for_the_zygote(node: Node) -> None:
    """Workers that kill themselves because their agent stood still have not failed."""
    node.page.begin_lease(1)
    await _die(node, subprocess.Popen.kill)
    assert node.round.exits == {}


async def test_a_round_without_living_workers_has_ended_as_ever(node: Node) -> None:
    """The last one's early report moves the phase; processes may still be dying."""
    node.round.exits[0] = 0
    await _die(node, subprocess.Popen.kill)
    assert node.runner.phase is RoundPhase.ENDED
    assert not node.round.dead


async def test_a_dying_worker_does_not_make_its_node_stuck_at_once(node: Node) -> None:
    """The kernel takes 0.1 s for each GiB. Where that does not end, the node is stuck after all."""
    node.round.pids = {0: 1, 1: 2}
    node.runner.on_dying(1, -9)
    node.runner.kill("test")
    assert node.round.killed_at
    late = node.round.killed_at + rounds.STUCK_SECONDS + 1
    assert node.runner.stuck(late) == ""
    assert node.runner.stuck(node.round.killed_at + rounds.DYING_SECONDS + 1)
    node.told(-signal.SIGKILL)
    assert node.runner.stuck(late)


async def test_the_zygotes_word_on_an_exit_code_is_the_last(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """A difference would be a defect: it is logged, and no second failure of the same worker."""
    node.round.pids = {0: 1, 1: 2}
    node.runner.on_dying(1, -9)
    node.told(1)
    assert node.round.exits == {1: 1}
    assert "rank 1 ended with 1 and not, as told, -9" in caplog.text
    assert await node.reported() == [-9]
