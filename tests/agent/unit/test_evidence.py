"""Evidence of local ranks in every state of a process, without torch; the event loop runs on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast_agent.health import evidence, proc_samples
from holdfast_agent.health.evidence import (
    MAX_LATER_BYTES,
    MAX_MEMBERS,
    MAX_STACK_BYTES,
    TOTAL_SECONDS,
    LocalRank,
    collect,
    cut_stack,
    tails,
)
from holdfast_agent.health.stacks import StackQuestions
from holdfast_agent.health.worker_server import FlightEntry, FlightRecord
from holdfast_wire.messages import RankEvidence

SLEEP = "import time; print(flush=True); time.sleep(600)"
LOOP = "print(flush=True)\nwhile True: pass"


class Processes:
    """Processes of one test; all are ended."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, program: str) -> int:
        """Start a program of Python; return its pid once it has printed a line."""
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        assert process.stdout
        process.stdout.readline()
        return process.pid

    def sleeping(self) -> int:
        """Start one that sleeps; return its pid once it does."""
        pid = self.start(SLEEP)
        while (seen := proc_samples.sample(pid)) is None or seen.state != "S":
            time.sleep(0.01)  # the limit of the test ends it
        return pid

    def end(self) -> None:
        """End all."""
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes."""
    made = Processes()
    yield made
    made.end()


def local(pid: int, folder: Path, number: int = 0) -> LocalRank:
    """Return a rank of the second node."""
    path = folder / f"{number}.sock"
    return LocalRank(local_rank=number, rank=8 + number, pid=pid, socket_path=path)


async def _seen(folder: Path, *pids: int) -> tuple[RankEvidence, ...]:
    """Return the evidence of ranks with these processes, whose servers nobody has started."""
    ranks = [local(pid, folder, number) for number, pid in enumerate(pids)]
    return await collect(ranks, world_size=16, questions=StackQuestions())


async def test_each_state_of_a_process_is_reported(processes: Processes, tmp_path: Path) -> None:
    """Sleeping, running, stopped and gone ranks are told apart without any server."""
    pids = [processes.start(SLEEP), processes.start(LOOP), processes.start(SLEEP), 0]
    os.kill(pids[2], signal.SIGSTOP)
    ended = processes.start("print(flush=True)")
    await asyncio.to_thread(os.waitid, os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    found = await _seen(tmp_path, *pids, ended)
    assert [one.process_state for one in found] == ["S", "R", "T", "", "Z"]
    assert [one.rank for one in found] == [8, 9, 10, 11, 12]
    assert [one.pid for one in found] == [*pids, ended]
    assert not any(one.server_answered or one.gil_free for one in found)
    assert ['"<string>"' in one.stack for one in found] == [True, True, True, False, False]
    assert found[0].cpu_seconds == 0
    assert found[1].cpu_seconds > 0
    assert 0 < found[1].observed_seconds < TOTAL_SECONDS


async def test_the_kernel_function_of_a_sleeping_rank_is_reported(
    processes: Processes, tmp_path: Path
) -> None:
    """A sleep and a wait for a writer of a FIFO differ."""
    os.mkfifo(tmp_path / "fifo")
    waits = f"print(flush=True); open({str(tmp_path / 'fifo')!r})"
    pids = [processes.start(SLEEP), processes.start(waits)]
    sleeps, opens = await _seen(tmp_path, *pids)
    if not sleeps.kernel_function:
        pytest.skip("this kernel hides wchan")
    assert "nanosleep" in sleeps.kernel_function
    assert opens.kernel_function in {"wait_for_partner", "fifo_open"}


async def test_silent_servers_take_no_more_than_the_total_time(
    processes: Processes, tmp_path: Path
) -> None:
    """Eight ranks whose servers accept and say nothing are asked side by side."""
    pid = processes.start(SLEEP)
    ranks = [local(pid, tmp_path, number) for number in range(8)]
    listeners = []
    for rank in ranks:
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(str(rank.socket_path))
        listeners[-1].listen()

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    questions = StackQuestions()
    found = await collect(ranks, world_size=8, questions=questions)
    spent = time.monotonic() - began
    questions.keep([])
    ticking.cancel()
    for listener in listeners:
        listener.close()
    assert not any(one.server_answered or one.gil_free for one in found)
    assert [one.process_state for one in found] == ["S"] * 8
    assert spent < TOTAL_SECONDS + 1
    assert ticks > 20, "the event loop stood still"


SLOW_SAVE = """
import subprocess, sys
reads = "import os, time\\nwhile os.read(0, 16384): time.sleep(0.05)"
with subprocess.Popen([sys.executable, "-S", "-c", reads], stdin=subprocess.PIPE) as storage:
    print(flush=True)
    storage.stdin.write(bytes(1 << 26))
"""


async def test_a_slow_save_is_seen_to_move(processes: Processes, tmp_path: Path) -> None:
    """One write of many megabytes counts nothing before its end; who reads it does."""
    saves, sleeps = await _seen(tmp_path, processes.start(SLOW_SAVE), processes.sleeping())
    assert saves.moved_bytes > 1 << 16
    assert saves.wakes > 3
    (child,) = saves.children
    assert "os.read(0, 16384)" in child.command
    assert "in <module>" in child.stack
    assert (sleeps.moved_bytes, sleeps.wakes, sleeps.children) == (0, 0, ())


LOGGING_THREAD = """
import os, threading, time
def log():
    while True:
        os.write(null, bytes(1 << 16)); time.sleep(0.01)
null = os.open(os.devnull, os.O_WRONLY)
threading.Thread(target=log, daemon=True).start()
print(flush=True)
time.sleep(600)
"""
MAIN_THREAD = LOGGING_THREAD.replace(
    "threading.Thread(target=log, daemon=True).start()", ""
).replace("time.sleep(600)", "log()")


async def test_the_bytes_of_a_thread_that_logs_are_told_apart(
    processes: Processes, tmp_path: Path
) -> None:
    """A rank that waits for its data beside such a thread is stuck all the same."""
    pids = [processes.start(LOGGING_THREAD), processes.start(MAIN_THREAD)]
    logs, works = await _seen(tmp_path, *pids)
    assert logs.moved_beside_bytes == logs.moved_bytes > 0
    assert works.moved_beside_bytes == 0 < works.moved_bytes


def test_the_end_of_a_long_dump_is_kept() -> None:
    """The main thread stands last in faulthandler's dumps."""
    kept = cut_stack('Thread 0x1:\n  File "ä.py", line 1 in f\n' * 5000 + "Thread 0x2:\n  main")
    assert len(kept.encode()) <= MAX_STACK_BYTES
    assert kept.endswith("Thread 0x2:\n  main")
    assert kept.startswith(("Thread 0x1:\n", "  File"))


class Dumps(StackQuestions):
    """Answers at once, and then no more: no clock decides how many dumps there are."""

    def __init__(self, *dumps: str) -> None:
        super().__init__()
        self._dumps = iter(dumps)

    def traceback(self, path: Path, seconds: float) -> str:
        """Return the next dump."""
        return next(self._dumps, "")


async def test_a_rank_that_dumps_its_stack_is_looked_at_again(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs from the first dump is kept, its end: who computes is now here and now there."""
    stands = SimpleNamespace(monotonic=lambda: 0.0, time_ns=time.time_ns)
    monkeypatch.setattr(evidence, "time", stands)  # on a busy machine no time is left
    dumps = Dumps("first", "first", "x" * MAX_LATER_BYTES + "later")
    rank = local(processes.start(LOOP), tmp_path)
    (found,) = await collect([rank], world_size=1, questions=dumps)
    assert found.stack == "first"
    (later,) = found.later_stacks
    assert later.endswith("xlater")
    assert len(later) == MAX_LATER_BYTES


async def test_a_node_without_ranks_has_no_evidence() -> None:
    """A standby node is asked, too."""
    assert await collect([], world_size=4, questions=StackQuestions()) == ()


def entry(number: int, group: str = "0", *, p2p: bool = False, at_ns: int = 0) -> FlightEntry:
    """Return an entry of the flight recorder."""
    return FlightEntry(
        group=group,
        description="default_pg" if group == "0" else "undefined",
        sequence=number,
        operation="gloo:send" if p2p else "gloo:all_reduce",
        sizes=((2, 3),),
        dtypes=("Float",),
        created_ns=at_ns,
        is_p2p=p2p,
    )


def test_the_newest_collective_of_a_group_is_its_last_entry() -> None:
    """Sends count under the collective before them; a group that is made anew counts from 1."""
    record = FlightRecord(
        entries=(entry(7), entry(1, "3"), entry(1), entry(2), entry(2, p2p=True)),
        ranks={"3": (1, 4)},
    )
    default, other = tails(record, 4, 2_000_000_000)
    assert (default.group, default.sequence, default.operation) == ("0", 2, "gloo:all_reduce")
    assert default.ranks == (0, 1, 2, 3)
    assert (other.group, other.sequence, other.ranks) == ("3", 1, (1, 4))
    assert default.age_seconds == pytest.approx(2.0)


def test_the_ranks_of_a_large_group_are_not_listed() -> None:
    """Ten thousand ranks with ten thousand numbers each would be a flood for the master."""
    record = FlightRecord(entries=(entry(7), entry(1, "3")), ranks={"3": tuple(range(600))})
    assert [tail.ranks for tail in tails(record, MAX_MEMBERS + 1, 0)] == [(), ()]
    assert len(tails(record, MAX_MEMBERS, 0)[0].ranks) == MAX_MEMBERS


def test_a_collective_from_the_future_has_no_age() -> None:
    """The clock of a node may be set back."""
    (tail,) = tails(FlightRecord(entries=(entry(1, at_ns=10**18),)), 1, 10**9)
    assert tail.age_seconds == 0.0
