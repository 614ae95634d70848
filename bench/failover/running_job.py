"""One job under a real `holdfast run` whose master is killed: asked, hurt, read, ended for certain.

Belongs here: processes, files and calls. Does not belong here: when what is done (`play`), and what
is right (`verdict`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.failover.verdict import RankStart
from holdfast_cli.client import JobClient
from holdfast_cli.job_directory import Endpoint
from holdfast_cli.runner.processes import descendants
from holdfast_wire.keys import ENV_STEP_LOG
from jobs.local_job import RunningJob, elastic_job

NAME = "failover"
NODES = 3
END_SECONDS = 60.0
ASK_SECONDS = 10.0
_Answer = TypeVar("_Answer")
_BUDGETS = {"failures": {"limit": 10000}, "noProgressRestarts": {"limit": 1000}}
"""Wide, because faults are dense here."""


class StuckError(Exception):
    """Processes outlive their job."""


class KilledJob(RunningJob):
    """One `holdfast run` in the foreground of a process of its own, as a user starts it."""

    poll_seconds = 0.02

    def __init__(self, folder: Path, script: Sequence[str], nodes: int = NODES) -> None:
        """Start the job; its files and output lie in `folder`."""
        self.steps_folder = folder / "steps"
        policy = {"budgets": _BUDGETS}
        job = elastic_job(NAME, script, replicas=nodes, maxReplicas=nodes, failurePolicy=policy)
        (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
        container["env"] = [{"name": ENV_STEP_LOG, "value": str(self.steps_folder)}]
        super().__init__(job, folder, cold=True)

    def __exit__(self, *_: object) -> None:
        """Interrupt it; kill what is left after a while."""
        family = [self.process.pid, *descendants(self.process.pid)]
        os.kill(self.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        super().__exit__()
        left = [pid for pid in family if Path(f"/proc/{pid}/cmdline").exists()]
        if left:
            raise StuckError(f"processes are left: {left}")

    def ask(self, request: Any, answer: type[Any] | None = None) -> Any:
        """Send a request to the master, on a connection of its own: two threads ask."""
        del answer
        with JobClient(self.home) as client:
            return client.call(request, ASK_SECONDS)

    def wait_for(self, what: str, true: Callable[[], _Answer], timeout_s: float = 180.0) -> _Answer:
        """Wait until `true()` returns something true, and return it."""
        return super().wait_for(what, true, timeout_s)

    def pids(self) -> dict[int, int]:
        """Return the pid of each rank that runs."""
        return {
            rank.rank: rank.pid for node in self.nodes().values() for rank in node.ranks if rank.pid
        }

    def starts(self) -> list[RankStart]:
        """Return every training process that began so far, one that took a step at least."""
        file = self.directory / "starts"
        if not file.exists():  # a script that does not say so
            places = {(at, rank) for rank, lines in self.steps().items() for at, _ in lines}
            return [RankStart(at, rank, 0) for at, rank in sorted(places)]
        return [RankStart(*map(int, line.split())) for line in file.read_text().splitlines()]

    def steps(self) -> dict[int, list[tuple[int, int]]]:
        """Return (round, step) of each rank so far, in the order in which they were done."""
        found = {}
        for file in self.steps_folder.glob("rank-*.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            rank = int(file.stem.removeprefix("rank-"))
            found[rank] = [(line["round"], line["step"]) for line in lines]
        return found

    def kill_master(self, *, keep_journal: bool) -> Endpoint:
        """SIGKILL the master; its successor finds the journal or none. Returns who it was."""
        victim = self.wait_for("a master that serves", self.home.endpoint)
        assert victim is not None  # noqa: S101 - waited for
        # Stopped first, so that nothing is written between the journal's removal and the kill,
        # and no successor starts before it is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGSTOP)
            if not keep_journal:
                shutil.rmtree(self.home.journal, ignore_errors=True)
            os.kill(victim.pid, signal.SIGKILL)
        return victim


def newest(steps: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, int]:
    """Return the last step of each rank."""
    return {rank: lines[-1][1] for rank, lines in steps.items() if lines}
