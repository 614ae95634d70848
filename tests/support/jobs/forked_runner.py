"""`holdfast run` whose agents are forks of a process that has imported torch.

An agent's start is 2 to 3 s of a core, and a job of two that loses both starts four. Runs as a fork
itself (`house.forks`): before anything else it forks a second process, which later forks the
agents, and hands them over: the runner is a subreaper, so that a process whose parent has ended
becomes its child. All else is the runner's own. Belongs here: the hand-over. Not for a test about
a start.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from house import fork_server, forks

del sys.path[1]

_AGENT = Path(sys.executable).with_name("holdfast-run")
_LAUNCHER = "launch.py"
_start_process = asyncio.create_subprocess_exec


class Adopted:
    """An agent that is a child of this process by adoption; what the runner wants of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.create_task(self._wait())

    async def wait(self) -> int:
        """Wait for its end; return the exit code, -N for signal N."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, if it runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    async def _wait(self) -> int:
        await forks.gone(self.pid)
        self.returncode = self._reap()
        return self.returncode

    def _reap(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, os.WNOHANG)[1])
        except ChildProcessError:  # a sweep was first
            return -signal.SIGKILL


def main() -> None:
    """Run the command line that the arguments are."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    runner = os.getpid()
    if not os.fork():
        here.close()
        _serve(there, runner)
    there.close()
    one_at_a_time = asyncio.Lock()

    async def start(*words: Any, **options: Any) -> Any:
        command = words[5:]  # after the interpreter, its flags, the launcher and its parent
        if not (
            len(words) > 5 and Path(words[3]).name == _LAUNCHER and _is_agent(command, options)
        ):
            return await _start_process(*words, **options)
        request = {"args": [str(_AGENT), *command[1:]], "env": options["env"]}
        request |= {"cwd": str(options["cwd"]), "passed": list(options["pass_fds"])}
        files = [options["stdout"], *options["pass_fds"]]
        async with one_at_a_time:  # answers come in order
            socket.send_fds(here, [json.dumps(request).encode()], files)
            return Adopted(int(await asyncio.to_thread(here.recv, 64)))

    asyncio.create_subprocess_exec = start
    sys.argv = ["holdfast", *sys.argv[1:]]
    runpy.run_module("holdfast_cli.main", run_name="__main__", alter_sys=True)


def _is_agent(command: Sequence[str], options: Mapping[str, Any]) -> bool:
    env = options["env"]
    found = shutil.which(command[0], path=env["PATH"]) == str(_AGENT)
    return found and Path(options["cwd"]).is_dir() and forks.forkable(env)


def _serve(channel: socket.socket, runner: int) -> NoReturn:
    """Fork agents until the runner has gone, and hand them over."""
    fork_server.die_with(runner)
    while True:
        words, files, _, _ = socket.recv_fds(channel, fork_server.REQUEST_BYTES, 16)
        if not words:
            os._exit(0)
        between = os.fork()
        if not between:
            agent = os.fork()
            if not agent:
                channel.close()
                _be_adopted(json.loads(words), files, runner)
            channel.send(str(agent).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for one in files:
            os.close(one)


def _be_adopted(request: dict[str, Any], files: Sequence[int], runner: int) -> NoReturn:
    while os.getppid() != runner:
        if not Path(f"/proc/{runner}").exists():
            os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output, *passed = files
    kept = dict(zip(request.pop("passed"), passed, strict=True))
    fork_server.become({**request, "new_session": True}, [nothing, output, output], kept)


if __name__ == "__main__":
    main()
