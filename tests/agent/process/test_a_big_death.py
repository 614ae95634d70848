"""A rank with much memory takes long to die: what the agent does before the kernel is done."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from pathlib import Path

import pytest

from agents.scripted_node import Node
from holdfast_wire.messages import Heartbeat, RoundStarted, WorkerExited
from masters.scripted_master import AgentStream, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

GIB = 6
"""The kernel gives 2 GiB back in 0.1 s; beside other tests an agent may hear of it as late."""
TRAIN = f"""
import mmap, os, time
import holdfast
job = holdfast.init()
if os.environ["RANK"] == "1" and job.restart_count == 0:
    memory = mmap.mmap(-1, {GIB} << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[::4096] = bytes(len(memory) // 4096)
for n in range(1, 100_000):
    time.sleep(0.02)
    job.step(n)
"""


def _now() -> float:
    """Return the time that /proc gives as a process's start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[19]) / os.sysconf("SC_CLK_TCK")


def gone(pid: int) -> asyncio.Future[float]:
    """Return the time at which a process, threads and memory and all, will be gone."""
    pidfd = os.pidfd_open(pid)

    def wait() -> float:
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            assert poll.poll(60_000), "it lives"
            return _now()
        finally:
            os.close(pidfd)

    return asyncio.ensure_future(asyncio.to_thread(wait))


async def _pids(stream: AgentStream, number: int) -> list[int]:
    def complete(beat: Heartbeat) -> bool:
        return len(beat.ranks) == 2 and all(r.pid and r.round == number for r in beat.ranks)

    await stream.wait(RoundStarted, lambda m: m.first_step)
    return [rank.pid for rank in (await stream.wait(Heartbeat, complete)).ranks]


async def test_a_big_ranks_death_is_told_while_its_memory_is_given_back(node: Node) -> None:
    """Its peer dies at the master's word before it does; the next round waits for both."""
    _, stream = await node.start(TRAIN, nproc=2)
    stream.send(assignment(await stream.prepare_store("one")), 1)
    small, big = await _pids(stream, 1)
    second = await stream.prepare_store("two")
    ends = gone(small), gone(big)

    os.kill(big, signal.SIGKILL)
    killed = _now()
    exited = await stream.wait(WorkerExited)
    told = _now()
    stream.send(assignment(second, restart_count=1), 2)
    small_gone, big_gone = await asyncio.gather(*ends)
    print(f"told {told - killed:.4f} s, peer gone {small_gone - killed:.4f} s, "
          f"gone itself {big_gone - killed:.4f} s")  # fmt: skip
    assert (exited.rank, exited.exit_code, exited.pid) == (1, -signal.SIGKILL, big)
    assert told < big_gone
    assert small_gone < big_gone

    new = await _pids(stream, 2)
    # A poll may be told of the end some ms after the zygote; starts are rounded down to 10 ms.
    assert all(_started(pid) > big_gone - 0.05 for pid in new)
    assert stream.all(WorkerExited) == [exited], "told once, and the peer's end was ordered"
