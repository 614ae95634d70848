"""The process backend: processes where a cluster has pods.

Starts, ends and awaits processes; knows nothing of jobs. Nothing that it started, nor any
descendant, outlives `sweep`: this process is a subreaper, so orphans come to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LAUNCHER = Path(__file__).with_name("launch.py")
_SWEEP_S = 5.0
_POLL_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What to start. The environment is complete: nothing is inherited beside what stands here."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    passed: tuple[int, ...] = ()
    """Descriptors that it inherits under their numbers."""


class Running:
    """One process that was started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N for signal N, None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end; return the exit code, -N for signal N."""
        return await self._process.wait()

    async def end(self, grace_s: float) -> int:
        """Send SIGTERM, SIGKILL after `grace_s` seconds (0: at once); return the exit code."""
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._process.wait(), grace_s)
        self._signal(signal.SIGKILL)
        return await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def become_subreaper() -> None:
    """Make every orphaned descendant a child of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def start(command: Command) -> Running:
    """Start `command` in a session of its own, output appended to its log."""
    descriptor = await asyncio.to_thread(
        os.open, command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_LAUNCHER),
            str(os.getpid()),
            *command.argv,
            env=dict(command.env),
            cwd=command.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            pass_fds=command.passed,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    return Running(process)


async def wait_until(ready: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether `ready()` became true within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def sweep() -> list[int]:
    """SIGKILL and reap all descendants of this process; return the pids that would not end."""
    deadline = time.monotonic() + _SWEEP_S
    while time.monotonic() < deadline:
        found = descendants(os.getpid())
        if not found:
            return []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(_POLL_S)
    return descendants(os.getpid())


def descendants(pid: int) -> list[int]:
    """Return all living and dead-but-unreaped processes below `pid`."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                todo += children
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
