"""The process that measures, as the agent sees it: started, given tasks, ended for certain.

A process that is kept has imported torch already. So the rounds of a check pay for that once.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from typing import IO, Any

from holdfast_agent.health.node_check.measured import REPORTS, Order, Task
from holdfast_wire import datagrams

_PROGRAM = "holdfast_agent.health.node_check.program"
_KILL_SECONDS = 2.0
"""From SIGKILL to the process's end, s. One that waits for a device or NFS may not end at all."""


class Interrupt:
    """Ends a run from another thread, and tells whose child processes are its own."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pids: set[int] = set()
        """Children of the run: nobody else may wait for them, or end them."""

    def fileno(self) -> int:
        """Return a descriptor that is readable once the run is to end."""
        return self._descriptor

    def set(self) -> None:
        """Have the run end soon; what it has measured so far stays."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Prepare for the next run."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def is_set(self) -> bool:
        """Return True if the run is to end."""
        return bool(select.select([self._descriptor], [], [], 0.0)[0])

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


class MeasuringProcess:
    """One child process. It carries out an order at a time and waits for the next one."""

    def __init__(self, interrupt: Interrupt) -> None:
        """Start it; the kernel ends it with the thread that calls this."""
        self._interrupt = interrupt
        self.socket, theirs = datagrams.pair()
        """Readable when `receive` has a report."""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
            )
        interrupt.pids.add(self._process.pid)

    @property
    def output(self) -> IO[bytes]:
        """Standard output and standard error of it, and of the libraries in it."""
        assert self._process.stdout is not None, "it is a pipe"  # noqa: S101
        return self._process.stdout

    def order(self, tasks: Sequence[Task], descriptors: Collection[int]) -> None:
        """Give it tasks, and the descriptors that they use."""
        # It has just ended: the end of its output tells more.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            body = datagrams.encode(Order(tuple(tasks)))
            datagrams.send(self.socket, body, list(descriptors))

    def receive(self) -> Any:
        """Return its next report, one of `REPORTS`; raises EOFError at its end."""
        return datagrams.decode(datagrams.receive(self.socket)[0], REPORTS)

    def lives(self) -> bool:
        """Return True if it runs."""
        return self._process.poll() is None

    def end(self, grace: float = 0.0) -> str:
        """Kill it unless it ends within the grace; return a note if it cannot be killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
            return ""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
            return ""
        return f" in the kernel, which does not end process {self._process.pid}"

    def end_text(self) -> str:
        """Return how it ended: "signal 9"."""
        code = self._process.returncode
        return f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"

    def close(self) -> None:
        """End it and give everything back."""
        self.end()
        self._interrupt.pids.discard(self._process.pid)
        self.socket.close()
        self.output.close()


class KeptProcess:
    """Place of the process that waits for the next order; of one at a time."""

    def __init__(self) -> None:
        self._process: MeasuringProcess | None = None
        self._lock = threading.Lock()

    def take(self) -> MeasuringProcess | None:
        """Return the process and keep it no more; None: there is none that lives."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and not process.lives():
            process.close()
            return None
        return process

    def keep(self, process: MeasuringProcess) -> None:
        """Keep a process that has done all that it was told."""
        with self._lock:
            before, self._process = self._process, process
        if before is not None:
            before.close()

    def drop(self) -> None:
        """End the process that is kept, if there is one."""
        process = self.take()
        if process is not None:
            process.close()
