"""`holdfast-run` as a process under test, and what a test wants to know of its family."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast_wire import keys
from house import forks
from house.patience import patience
from masters.scripted_master import Identities

_MAIN = (
    "import sys; from holdfast_agent.zygote.process_tree import die_with_parent;"
    "die_with_parent(int(sys.argv.pop(1))); from holdfast_agent.main import main; main()"
)
RUN = (sys.executable, "-c", _MAIN, str(os.getpid()))
"""holdfast-run without needing the console script on PATH; it dies with the test run."""


StartAgent = Callable[..., "AgentProcess"]
"""Starts an agent, see the fixtures of tests/agent."""
Script = Callable[[str], str]
"""Writes a training script and returns its path."""


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables of a launcher."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "PET_", "TORCHELASTIC_"))
    }


def environment(identities: Identities, endpoint: str, node_rank: int = 0) -> dict[str, str]:
    """Return the environment that an operator gives an agent."""
    clean = {
        name: value
        for name, value in clean_environment().items()
        if not name.startswith("COVERAGE_")
        and name not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")
    }
    return {
        **clean,
        keys.ENV_MASTER: endpoint,
        keys.ENV_JOB: "job",
        keys.ENV_JOB_UID: identities.job_uid,
        keys.ENV_NODE_RANK: str(node_rank),
        keys.ENV_TLS_DIR: str(identities.files(keys.ROLE_AGENT, node_rank)),
    }


class AgentProcess:
    """One running agent."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        name: str = "agent",
        wrap: Sequence[str] = (),
        *,
        forked: bool = False,
    ) -> None:
        """Start it.

        Args:
            args: Its command line.
            env: Its environment.
            folder: Its working directory, for its output too.
            name: Of the files with its output.
            wrap: A command that becomes the agent by exec of its arguments.
            forked: As a fork of a process that has imported torch, where that changes nothing.
        """
        self.stdout = folder / f"{name}.out"
        self.stderr = folder / f"{name}.err"
        self.process: forks.Fork | subprocess.Popen[bytes]
        with (
            Path(os.devnull).open("rb") as nothing,
            self.stdout.open("wb") as out,
            self.stderr.open("wb") as err,
        ):
            files = [nothing.fileno(), out.fileno(), err.fileno()]
            if forked and not wrap and forks.forkable(env):
                self.process = forks.start(
                    ["-c", _MAIN, str(forks.parent()), *args],
                    env=env,
                    files=files,
                    cwd=folder,
                    new_session=True,
                )
            else:
                self.process = subprocess.Popen(
                    [*wrap, *RUN, *args],
                    env=dict(env),
                    cwd=folder,
                    stdin=files[0],
                    stdout=files[1],
                    stderr=files[2],
                    start_new_session=True,
                )
        self.pid = self.process.pid

    def family(self) -> list[psutil.Process]:
        """Return the living descendants."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def zygote(self) -> psutil.Process:
        """Return its zygote, which must be there."""
        found = self.find_zygote()
        assert found is not None
        return found

    def find_zygote(self) -> psutil.Process | None:
        """Return its zygote; None: it has none now."""
        return next((one for one in self.family() if one.name() == "hf-zygote"), None)

    def until(self, look: Callable[[], object], within: float = 90.0 * patience()) -> None:
        """Wait for what a running agent does; fail, with its stderr, if it ends before."""
        deadline = time.monotonic() + within
        while not look():
            assert time.monotonic() < deadline, self.errors()
            assert self.process.poll() is None, self.errors()
            time.sleep(0.02)

    def send(self, sig: int) -> None:
        """Signal the agent."""
        os.kill(self.pid, sig)

    def wait(self, within: float = 60.0 * patience()) -> int:
        """Return the exit code."""
        return self.process.wait(within)

    def errors(self) -> str:
        """Return what it wrote to stderr."""
        return self.stderr.read_text(errors="replace")

    def output(self) -> str:
        """Return what it and its workers wrote to stdout."""
        return self.stdout.read_text(errors="replace")

    def end(self) -> None:
        """End it and everything below it, for a test's teardown."""
        family = self.family()
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        for process in family:
            try:
                process.send_signal(signal.SIGCONT)
                process.kill()
            except psutil.NoSuchProcess:
                continue


async def eventually(look: Callable[[], Any], within: float = 60.0 * patience()) -> Any:
    """Return what `look` gives once it is true; fail at the deadline with what it gave last."""
    deadline = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < deadline, f"still {seen!r} after {within} s"
        await asyncio.sleep(0.02)
    return seen


def wait_gone(processes: Iterable[psutil.Process], within: float) -> list[psutil.Process]:
    """Wait until processes are gone; return those that are not (zombies count as gone).

    within: Seconds, on a machine of the usual speed.
    """
    deadline = time.monotonic() + within * patience()
    left = list(processes)
    while left and time.monotonic() < deadline:
        left = [process for process in left if is_alive(process)]
        time.sleep(0.01)
    return left


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs (or is stopped), and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
