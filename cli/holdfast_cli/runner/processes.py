"""Process backend: processes in place of a cluster's pods.

Starts, ends and awaits processes; knows nothing of jobs. No process that it started, and no
descendant, outlives `sweep`: this process is a subreaper, so orphans become its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast_cli.job_directory import process_fields

_log = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36
_LAUNCHER = Path(__file__).with_name("launch.py")
_SWEEP_SECONDS = 5.0
_POLL_SECONDS = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """Process to start. The environment is complete: nothing else is inherited."""

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
        self._killed_at = -math.inf
        """Monotonic time until which what was asked to end may live, s."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N for signal N, None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end; return the exit code, -N for signal N.

        What is left of its session ends too, as in a container whose first process ends: an agent
        that a killed shell waited for would train on beside its successor. Where `end` gave a
        grace, what is left gets SIGTERM, and the rest of the grace.
        """
        code = await self._process.wait()
        try:
            await self._end_session()
        except OSError as error:
            # An end that nobody hears of would keep the job waiting for ever.
            _log.error("what process %d has left cannot be ended: %s", self.pid, error)
        return code

    async def _end_session(self) -> None:
        asked: set[int] = set()
        while time.monotonic() < self._killed_at:
            left = await asyncio.to_thread(_orphans, self.pid)
            if not left:
                break
            for pid in left - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            asked |= left
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.to_thread(_kill_session, self.pid)

    async def end(self, grace_s: float) -> int:
        """Send SIGTERM, SIGKILL after `grace_s` seconds (0: at once); return the exit code.

        The newest call decides about what a process leaves in its session, see `wait`.
        """
        self._killed_at = time.monotonic() + grace_s
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            # Python 3.11's wait_for loses a cancellation that comes with the process's end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    return await self._process.wait()
        self._signal(signal.SIGKILL)
        return await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end this program's work in order.

    `nohup` ignores SIGHUP before it starts a program: a signal that was ignored stays ignored.
    SIGINT is the exception: a shell ignores it for every command of a script that ends with `&`.
    """
    chosen = (signal.SIGTERM, signal.SIGHUP)
    kept = (number for number in chosen if signal.getsignal(number) is not signal.SIG_IGN)
    return (signal.SIGINT, *kept)


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
    """Return True if `ready()` became true within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


def sweep() -> list[int]:
    """SIGKILL and reap all descendants of this process; return the pids that did not end."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < deadline:
        found = descendants(os.getpid())
        if not found:
            return []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(_POLL_SECONDS)
    return descendants(os.getpid())


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`, zombies included."""
    found: list[int] = []
    todo = [pid]
    while todo:
        children = _children(todo.pop())
        found += children
        todo += children
    return found


def _children(pid: int) -> list[int]:
    """Return a process's children; none of one that ends meanwhile."""
    found: list[int] = []
    tasks = Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError):
        for task in os.listdir(tasks):  # noqa: PTH208 - pathlib looks twice, and it may go between
            with contextlib.suppress(OSError):
                found += [int(child) for child in (tasks / task / "children").read_text().split()]
    return found


def _orphans(session: int) -> set[int]:
    """Return the living processes of a session whose parents have ended.

    They alone are asked to end: a parent that lives passes the signal on as it thinks right, and
    an agent takes a second SIGTERM for haste.
    """
    found = {pid: process_fields(pid) for pid in _children(os.getpid())}
    living = {pid: fields for pid, fields in found.items() if fields and fields[0] not in "ZX"}
    return {pid for pid, fields in living.items() if int(fields[3]) == session}


def _kill_session(session: int) -> None:
    """SIGKILL what is below this process in a session whose leader has ended."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
