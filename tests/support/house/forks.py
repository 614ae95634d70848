"""Python programs that find imported what they need: forks of one process of this test process.

A start with torch takes two to four seconds of a core, one of a master, an operator or a command
half a second to a whole one, and a suite has hundreds. Belongs here: the programs as a test sees
them; what they are made by is `house.fork_server`. Not for a test about a start itself, nor for
what changes torch before its import (Megatron's shim for the CPU).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import enum
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from house import fork_server
from house.patience import patience

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""1 in all forks, as an agent sets them before it imports torch."""
AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH")
"""What variables begin with that an interpreter or a library reads once."""
ANSWER_SECONDS = 60.0 * patience()
SHARED = "HOLDFAST_TEST_FORKS"
"""Names the descriptors on which another process's forks are asked for: `torch=7,services=8`."""
_PATH = os.environ.get("PYTHONPATH")
"""At the start of this process: a test may change it, for a module that is imported at a start."""
_KEPT: dict[int, psutil.Process] = {}


class Imports(enum.Enum):
    """Modules that a program finds imported."""

    TORCH = (
        "torch",
        "torch._dynamo",  # what the first optimizer imports
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
    )
    """Of agents and ranks."""
    SERVICES = (
        "aiohttp",
        "kopf",
        "kubernetes.aio",
        "holdfast_cli.final_state",
        "holdfast_master.core",
        "holdfast_master.main",
        "holdfast_operator.kube.client",
        "holdfast_wire.codec",
    )
    """Of masters, operators and commands. Without grpc, which reads the environment when it is
    loaded, and without what imports it."""


@dataclass
class Fork:
    """A program that runs, with what `subprocess.Popen` has of it."""

    pid: int
    args: Sequence[str]
    _server: _Server
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, minus the signal that ended it, or None while it runs."""
        self._server.take()
        self.returncode = self._server.codes.get(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return as `poll` does.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._server.wait(left)
        return code

    async def ended(self) -> int:
        """Wait for its end as `wait` does, in an event loop."""
        with contextlib.suppress(ProcessLookupError):
            await gone(self.pid)
        while (code := self.poll()) is None:  # noqa: ASYNC110 - it is told a moment later
            await asyncio.sleep(0.001)
        return code

    def send_signal(self, sig: int) -> None:
        """Signal it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send it SIGKILL, if it runs."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send it SIGTERM, if it runs."""
        self.send_signal(signal.SIGTERM)


@dataclass
class _Server:
    """The process that has imported, and what it has told of its forks."""

    process: subprocess.Popen[bytes] | None
    """None: it is another process's."""
    channel: socket.socket
    codes: dict[int, int] = field(default_factory=dict)
    cpu: float = 0.0
    """CPU seconds of the forks that have ended, with all that they have reaped."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a program; return its process.

        Raises:
            RuntimeError: The process that has imported has ended.
        """
        with self._lock:
            self.channel.settimeout(ANSWER_SECONDS)
            try:
                socket.send_fds(self.channel, [json.dumps(request).encode()], descriptors)
                while answer := self.channel.recv(fork_server.REQUEST_BYTES):
                    told = json.loads(answer)
                    if "started" in told:
                        self.codes.pop(told["started"], None)
                        return int(told["started"])
                    self._end(told)
            except ConnectionError:
                pass
            code = self.process.wait() if self.process else "its test process"
            raise RuntimeError(f"the process of all forks ended with {code}")

    def share(self) -> socket.socket:
        """Return a channel on which another process may ask for forks.

        They are of a fork of this process, which ends, and they with it, when that one has gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.start({"serve": True}, [theirs.fileno()])
        return ours

    def take(self) -> None:
        """Read what there is to read, without waiting."""
        with self._lock:
            self.channel.setblocking(False)
            try:
                while told := self.channel.recv(fork_server.REQUEST_BYTES):
                    self._end(json.loads(told))
            except BlockingIOError:
                return

    def wait(self, seconds: float | None) -> None:
        """Wait for news; another thread may take them, so not for ever."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            selector.select(0.5 if seconds is None else min(0.5, seconds))

    def close(self) -> None:
        """End it, and with it every fork that still runs."""
        self.channel.close()
        if self.process:
            self.process.kill()
            self.process.wait()

    def _end(self, told: Mapping[str, Any]) -> None:
        if "started" in told:  # the answer to a request that was given up
            os.kill(told["started"], signal.SIGKILL)
            return
        self.codes[told["ended"]] = told["code"]
        self.cpu += told["cpu"]


_SERVERS: dict[Imports, _Server] = {}


def _server(imports: Imports) -> _Server:
    if imports not in _SERVERS:
        _SERVERS[imports] = _found(imports) or _made(imports)
    return _SERVERS[imports]


def _found(imports: Imports) -> _Server | None:
    """Return that of another process, if it shares it with this one."""
    shared = dict(one.split("=") for one in os.environ.get(SHARED, "").split(",") if one)
    name = imports.name.lower()
    return _Server(None, socket.socket(fileno=int(shared[name]))) if name in shared else None


def _made(imports: Imports) -> _Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONHASHSEED": "0"}
    own.pop("PYTHONPATH", None)  # each fork adds its own
    with theirs:
        process = subprocess.Popen(
            [sys.executable, fork_server.__file__, str(theirs.fileno()), *imports.value],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=own,
            start_new_session=True,
        )
    made = _Server(process, ours)
    atexit.register(made.close)
    return made


def parent(imports: Imports = Imports.TORCH) -> int:
    """Return the process of which all are forks, their parent; start it if it is not there yet."""
    process = _server(imports).process
    assert process is not None, "only the test process itself starts what wants its parent's id"
    return process.pid


@contextlib.contextmanager
def shared() -> Iterator[tuple[dict[str, str], list[int]]]:
    """Have another process start forks as this one does: with these variables and open files."""
    with contextlib.ExitStack() as stack:
        channels = {one: stack.enter_context(_server(one).share()) for one in Imports}
        words = (f"{one.name.lower()}={channel.fileno()}" for one, channel in channels.items())
        yield {SHARED: ",".join(words)}, [channel.fileno() for channel in channels.values()]


def keep(pid: int) -> None:
    """Say that a process stays for the whole run; its CPU counts while it runs."""
    _KEPT[pid] = psutil.Process(pid)


def kept() -> set[int]:
    """Return the processes that stay for the whole run."""
    return {*(one.process.pid for one in _SERVERS.values() if one.process), *_KEPT}


def cpu() -> float:
    """Return the CPU seconds of all forks that have ended, and of all processes that are kept."""
    known = sum(one.cpu for one in _SERVERS.values())
    for process in _KEPT.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            known += sum(process.cpu_times()[:4])  # with those of children that it has reaped
    return known


def forkable(environment: Mapping[str, str]) -> bool:
    """Tell whether a fork differs in nothing from a start with this environment."""
    return environment.get("PYTHONPATH") in (None, _PATH) and all(
        environment.get(name) == os.environ.get(name)
        for name in {*environment, *os.environ} - {*THREADS, "PYTHONPATH"}
        if name.startswith(AT_START)
    )


async def gone(pid: int) -> None:
    """Wait, in an event loop, until a process has ended; it is not reaped.

    Raises:
        ProcessLookupError: It has been reaped already.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def start(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    files: Sequence[int],
    cwd: Path | None = None,
    new_session: bool = False,
    imports: Imports = Imports.TORCH,
) -> Fork:
    """Start a program as `python ARGS…` would; `files` are its standard streams."""
    request = {
        "args": list(args),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "new_session": new_session,
    }
    server = _server(imports)
    return Fork(server.start(request, files), args, server)


def run(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    given: str = "",
    cwd: Path | None = None,
    imports: Imports = Imports.TORCH,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return what it wrote. `given` is its standard input.

    `timeout` is multiplied by `patience`.

    Raises:
        subprocess.TimeoutExpired: It did not end; it is killed.
    """
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        streams[0].write(given)
        streams[0].seek(0)
        files = [stream.fileno() for stream in streams]
        made = start(args, env=env, files=files, cwd=cwd, imports=imports)
        try:
            code = made.wait(timeout * patience())
        finally:
            made.kill()
        for stream in streams[1:]:
            stream.seek(0)
        return subprocess.CompletedProcess(args, code, streams[1].read(), streams[2].read())
