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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from bench.failover.verdict import Start
from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import Endpoint, JobHome, job_home
from holdfast_cli.runner.processes import descendants
from holdfast_wire.keys import ENV_STEP_LOG
from holdfast_wire.messages import (
    GetJobRequest,
    JobEvent,
    JobStatus,
    ListNodesRequest,
    NodeInfo,
)

ROOT = Path(__file__).resolve().parents[2]
NAME = "failover"
NODES = 3
POLL_SECONDS = 0.02
END_SECONDS = 60.0
_Answer = TypeVar("_Answer")


def document(script: Sequence[str], nodes: int) -> dict[str, Any]:
    """Return the ElasticJob; the budgets are wide because faults are dense here."""
    command = ["holdfast-run", "--nproc-per-node=1", *script]
    budgets = {"failures": {"limit": 10000}, "noProgressRestarts": {"limit": 1000}}
    template = {"spec": {"containers": [{"name": "worker", "command": command}]}}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": nodes,
            "minReplicas": 1,
            "maxReplicas": nodes,
            "failurePolicy": {"budgets": budgets},
            "worker": {"template": template},
        },
    }


class StuckError(Exception):
    """Something did not happen within its deadline."""


class RunningJob:
    """One `holdfast run` in the foreground of a process of its own."""

    def __init__(self, folder: Path, script: Sequence[str], nodes: int = NODES) -> None:
        """Start the job; its files and output lie in `folder`."""
        self.folder = folder
        self.steps_folder = folder / "steps"
        environ = {**os.environ, "HOLDFAST_HOME": str(folder / "home")}
        self.home: JobHome = job_home(environ, NAME)
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(document(script, nodes)))
        self.output = folder / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast_cli.main", "run", str(file)],
                cwd=ROOT,
                env={**environ, ENV_STEP_LOG: str(self.steps_folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt it; kill what is left after a while."""
        family = [self.process.pid, *descendants(self.process.pid)]
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        left = [pid for pid in family if Path(f"/proc/{pid}/cmdline").exists()]
        if left:
            raise StuckError(f"processes are left: {left}")

    def ask(self, request: Any, timeout_s: float = 10.0) -> Any:
        """Send a request to the master."""
        with JobClient(self.home) as client:
            return client.call(request, timeout_s)

    def status(self) -> JobStatus:
        """Return where the job is."""
        status: JobStatus = self.ask(GetJobRequest()).status
        return status

    def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the known nodes."""
        found: tuple[NodeInfo, ...] = self.ask(ListNodesRequest()).nodes
        return found

    def events(self, after: int = 0) -> list[JobEvent]:
        """Return the events after a sequence."""
        with JobClient(self.home) as client:
            return list(client.events(after).events)

    def pids(self) -> dict[int, int]:
        """Return the pid of each rank that runs."""
        return {rank.rank: rank.pid for node in self.nodes() for rank in node.ranks if rank.pid}

    def starts(self) -> list[Start]:
        """Return every training process that began so far, one that took a step at least."""
        file = self.folder / "starts"
        if not file.exists():  # a script that does not say so
            places = {(at, rank) for rank, lines in self.steps().items() for at, _ in lines}
            return [Start(at, rank, 0) for at, rank in sorted(places)]
        return [Start(*map(int, line.split())) for line in file.read_text().splitlines()]

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
        # Stopped first, so that nothing is written between the journal's removal and the kill,
        # and no successor starts before it is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGSTOP)
            if not keep_journal:
                shutil.rmtree(self.home.journal, ignore_errors=True)
            os.kill(victim.pid, signal.SIGKILL)
        return victim

    def wait_for(
        self, what: str, true: Callable[[], _Answer | None], limit_s: float = 180.0
    ) -> _Answer:
        """Wait until `true()` returns something true, and return it.

        Raises:
            StuckError: not in time, or the job has ended.
        """
        deadline = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(CliError):
                found = true()
                if found:
                    return found
            if self.process.poll() is not None or time.monotonic() > deadline:
                ended = self.process.poll() is not None
                why = "the job ended before" if ended else f"not within {limit_s:g} s"
                raise StuckError(f"{why}: {what}\n{self.evidence()}")
            time.sleep(POLL_SECONDS)

    def evidence(self) -> str:
        """Return the end of everything that was printed and logged."""
        logs = sorted(self.home.logs.glob("*.log")) if self.home.logs.exists() else []
        parts = [f"== output\n{self.output.read_text(errors='replace')[-6000:]}"]
        parts += [f"== {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs]
        return "\n".join(parts)


def newest(steps: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, int]:
    """Return the last step of each rank."""
    return {rank: lines[-1][1] for rank, lines in steps.items() if lines}
