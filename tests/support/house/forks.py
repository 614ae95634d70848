"""Python programs that find torch imported: forks of one process of this test process.

A start with torch takes two to four seconds of a core, and a suite has hundreds. Belongs here: the
process that has imported torch, and the programs as a test sees them. Not for a test about a start
itself, nor for what changes torch before its import (Megatron's shim for the CPU).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""1 in all forks, as an agent sets them before it imports torch."""
AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH")
"""What variables begin with that an interpreter or a library reads once."""
ANSWER_SECONDS = 60.0
_REQUEST_BYTES = 2**20
_KEPT: dict[int, psutil.Process] = {}


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
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self.pid)
            loop.add_reader(process, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(process)
                os.close(process)
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
    """The process that has imported torch, and what it has told of its forks."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    codes: dict[int, int] = field(default_factory=dict)
    cpu: float = 0.0
    """CPU seconds of the forks that have ended, with all that they have reaped."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a program; return its process.

        Raises:
            RuntimeError: The process that has imported torch has ended.
        """
        with self._lock:
            self.channel.settimeout(ANSWER_SECONDS)
            try:
                socket.send_fds(self.channel, [json.dumps(request).encode()], descriptors)
                while answer := self.channel.recv(_REQUEST_BYTES):
                    told = json.loads(answer)
                    if "started" in told:
                        self.codes.pop(told["started"], None)
                        return int(told["started"])
                    self._end(told)
            except ConnectionError:
                pass
            raise RuntimeError(f"the process of all forks ended with {self.process.wait()}")

    def take(self) -> None:
        """Read what there is to read, without waiting."""
        with self._lock:
            self.channel.setblocking(False)
            try:
                while told := self.channel.recv(_REQUEST_BYTES):
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
        self.process.kill()
        self.process.wait()

    def _end(self, told: Mapping[str, Any]) -> None:
        self.codes[told["ended"]] = told["code"]
        self.cpu += told["cpu"]


@functools.cache
def _server() -> _Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
    made = _Server(process, ours)
    atexit.register(made.close)
    return made


def server_pid() -> int:
    """Return the process of which all are forks, their parent; 0 before the first one."""
    return _server().process.pid if _server.cache_info().currsize else 0


def parent() -> int:
    """Return the same, and start it if it is not there yet."""
    return _server().process.pid


def keep(pid: int) -> None:
    """Say that a process stays for the whole run; its CPU counts while it runs."""
    _KEPT[pid] = psutil.Process(pid)


def kept() -> set[int]:
    """Return the processes that stay for the whole run."""
    return {server_pid(), *_KEPT}


def cpu() -> float:
    """Return the CPU seconds of all forks that have ended, and of all processes that are kept."""
    known = _server().cpu if _server.cache_info().currsize else 0.0
    for process in _KEPT.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            known += sum(process.cpu_times()[:4])  # with those of children that it has reaped
    return known


def forkable(environment: Mapping[str, str]) -> bool:
    """Tell whether a fork differs in nothing from a start with this environment."""
    return all(
        environment.get(name) == os.environ.get(name)
        for name in {*environment, *os.environ} - {*THREADS}
        if name.startswith(AT_START)
    )


def start(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    files: Sequence[int],
    cwd: Path | None = None,
    new_session: bool = False,
) -> Fork:
    """Start a program as `python ARGS…` would; `files` are its standard streams."""
    request = {
        "args": list(args),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "new_session": new_session,
    }
    server = _server()
    return Fork(server.start(request, files), args, server)


def run(
    args: Sequence[str], *, env: Mapping[str, str], timeout: float, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return what it wrote. `given` is its standard input.

    Raises:
        subprocess.TimeoutExpired: It did not end; it is killed.
    """
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        streams[0].write(given)
        streams[0].seek(0)
        made = start(args, env=env, files=[stream.fileno() for stream in streams])
        try:
            code = made.wait(timeout)
        finally:
            made.kill()
        for stream in streams[1:]:
            stream.seek(0)
        return subprocess.CompletedProcess(args, code, streams[1].read(), streams[2].read())


def run_ranks(
    args: Sequence[str], size: int, *, env: Mapping[str, str], timeout: float
) -> list[str]:
    """Run a program as every rank of one node; return what each wrote, errors among it.

    Raises:
        subprocess.TimeoutExpired: One did not end; all are killed.
    """
    until = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open())
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(size)]
        made = []
        for rank, file in enumerate(files):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            place |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size))
            streams = [one.fileno() for one in (nothing, file, file)]
            made.append(start(args, env={**env, **place}, files=streams))
            stack.callback(made[-1].kill)
        for one in made:
            one.wait(max(0.0, until - time.monotonic()))
        for file in files:
            file.seek(0)
        return [file.read() for file in files]


def _serve(channel: socket.socket) -> None:
    """Fork what is asked for, and tell of each end, until the test process has gone."""
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ, 0)
    while True:
        for key, _ in selector.select():
            if key.data:
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status, usage = os.wait4(key.data, 0)
                told = {"ended": key.data, "code": os.waitstatus_to_exitcode(status)}
                told["cpu"] = usage.ru_utime + usage.ru_stime
                channel.send(json.dumps(told).encode())
                continue
            asked, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 3)
            if not asked:
                return
            child = os.fork()
            if not child:
                selector.close()
                channel.close()
                _be(json.loads(asked), files)
            for one in files:
                os.close(one)
            selector.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            channel.send(json.dumps({"started": child}).encode())


def _be(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    code = 1
    try:
        _prepare(request, files)
        _run(request["args"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - as an interpreter does
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _prepare(request: Mapping[str, Any], files: Sequence[int]) -> None:
    _die_with(os.getppid())
    for number, one in enumerate(files):
        os.dup2(one, number)
    os.closerange(3, 2**20)
    _open_streams()
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # as TMPDIR says now
    sys.argv = list(request["args"])
    more = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    here = "" if sys.argv[0] == "-c" else str(Path(sys.argv[0]).parent)
    sys.path[:] = [here, *(one for one in more if one not in sys.path), *sys.path[1:]]
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    random.seed()


def _open_streams() -> None:
    """Make `sys.stdin` and the others anew, as an interpreter does: they close no file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, buffering = "w" if number else "r", 1 if number == 2 else -1
        made = open(number, mode, buffering, closefd=False)  # noqa: SIM115
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _run(args: Sequence[str]) -> None:
    if args[0] != "-c":
        runpy.run_path(args[0], run_name="__main__")
        return
    sys.argv = ["-c", *args[2:]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(args[1], "<string>", "exec"), vars(main))  # noqa: S102 - a test's own


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _main() -> None:
    # It ends when the test process has gone, since nobody else holds the channel's other end. A
    # signal at the parent's death would come at the end of the thread that started it.
    gc.disable()  # it takes a seventh of the imports to find nothing
    import torch
    import torch._dynamo  # what the first optimizer imports
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    # torch's pool of threads is made anew after a fork by who first asks for it: two threads of
    # autograd at once find none ("Invalid thread pool!"). So it is the main thread, in each fork.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    gc.freeze()  # forks share what they do not write
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    _main()
