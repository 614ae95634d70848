"""Processes that the recovery benchmark starts, it also ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from bench import ROOT
from bench.harness import sandbox
from bench.recovery import processes
from house.patience import patience

DEADLINE_SECONDS = 20.0

ESCAPES = """
import os, signal, time
if os.fork() == 0:
    os.setsid()              # a session of its own
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)              # its child is an orphan, and stopped
time.sleep(3600)
"""


@pytest.fixture(autouse=True, scope="module")
def _possible() -> None:
    """Skip where this machine lets nobody make a PID namespace."""
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))


def _marked(mark: str) -> list[int]:
    """The living processes of this machine that have ``mark`` in their environment."""
    found = []
    for pid in psutil.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment and processes.alive(pid):
            found.append(pid)
    return found


def _wait_for(count: int, mark: str) -> list[int]:
    until = time.monotonic() + DEADLINE_SECONDS
    while len(found := _marked(mark)) != count:
        assert time.monotonic() < until, f"expected {count} processes, there are {found}"
        time.sleep(0.02)
    return found


def test_nothing_outlives_its_sandbox() -> None:
    """A stopped orphan in a session of its own ends when whoever started the sandbox lets go."""
    mark = f"MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    started = subprocess.Popen(
        sandbox.enter([sys.executable, "-c", ESCAPES]),
        stdin=subprocess.PIPE,
        env={**os.environ, name: value},
        cwd=ROOT,
    )
    with started:
        _wait_for(4, mark)  # unshare, the namespace's first process, the script, its orphan
        assert started.stdin is not None
        started.stdin.close()
        started.wait(DEADLINE_SECONDS)
        _wait_for(0, mark)


def test_a_sandbox_ends_with_its_command() -> None:
    """The exit code is the command's."""
    command = sandbox.enter([sys.executable, "-c", "import os; os._exit(7)"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as started:
        assert started.wait(DEADLINE_SECONDS) == 7


def test_a_tree_is_found_and_its_end_is_noted() -> None:
    """Descendants come after their parents; the watch sees the death of one process."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as started:
        until = time.monotonic() + DEADLINE_SECONDS
        while len(pids := processes.tree(started.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert pids[0] == started.pid
        assert processes.ancestors(pids[1])[:3] == [pids[1], started.pid, os.getpid()]
        watch = processes.DeathWatch(pids[1])
        killed_at = processes.send(reversed(pids), signal.SIGKILL)
        while watch.died_at is None and time.monotonic() < until:
            time.sleep(0.01)
        assert watch.died_at is not None
        assert killed_at <= watch.died_at < killed_at + DEADLINE_SECONDS * patience()
