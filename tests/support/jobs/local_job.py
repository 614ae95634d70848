"""A real job under a real `holdfast run`, for tests: started, watched, hurt, and ended for certain.

Everything goes through the public ways in: the command line, the master's gRPC API and signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from holdfast_cli.chaos.proxy import Proxy
from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import Endpoint, JobHome, job_home
from holdfast_cli.runner.processes import descendants
from holdfast_wire.messages import (
    BudgetKind,
    GetGoodputRequest,
    GetJobRequest,
    JobEvent,
    JobPhase,
    JobStatus,
    ListEventsRequest,
    ListNodesRequest,
    NodeInfo,
)
from house import forks
from house.patience import patience

ROOT = Path(__file__).resolve().parents[3]
FORKED_RUNNER = Path(__file__).with_name("forked_runner.py")
TRAIN = ["examples/train_gpt.py", "--batch=4", "--log-every=1000", "--save-every=10"]
STEPS = 120
"""Steps of a job whose losses are compared with the unbroken run's."""
_Answer = TypeVar("_Answer")


def elastic_job(
    name: str,
    script: Sequence[str],
    *,
    flags: Sequence[str] = ("--nproc-per-node=1",),
    standbys: int = 0,
    through: Sequence[Proxy] = (),
    model: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """Return an ElasticJob that runs `holdfast-run FLAGS SCRIPT`; `spec` is laid over its spec.

    `through`: proxies that the agents take for their master, by node rank; the last one is for
    all further nodes. `model`: False: the script has none, and its agents import only torch itself,
    which is half of their start.
    """
    command = ["holdfast-run", *flags, *script]
    if through:
        command = ["sh", "-c", _routes(through), "route", *command]
    container: dict[str, Any] = {"name": "worker", "command": command}
    if not model:
        container["env"] = [{"name": "HOLDFAST_PRELOAD", "value": "-torch"}]
    worker: dict[str, Any] = {"template": {"spec": {"containers": [container]}}}
    if standbys:
        worker["standbys"] = standbys
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "minReplicas": 1, **spec, "worker": worker},
    }


def _routes(proxies: Sequence[Proxy]) -> str:
    cases = [f"{rank}) port={proxy.port} ;;" for rank, proxy in enumerate(proxies)]
    otherwise = f"*) port={proxies[-1].port} ;;"
    choice = " ".join([*cases, otherwise])
    return f'case $HOLDFAST_NODE_RANK in {choice} esac; HOLDFAST_MASTER=127.0.0.1:$port exec "$@"'


class RunningJob:
    """One `holdfast run` in the foreground of a process of its own."""

    poll_seconds = 0.05

    def __init__(
        self,
        job: Mapping[str, Any],
        directory: Path,
        *,
        cold: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        """Start the job; its files and output lie in `directory`.

        `cold`: its agents import torch themselves, as a user's do: the test is about how long a
        node is away. Those of other jobs are forks that find it imported. `flags`: of `holdfast
        run`.
        """
        self.directory = directory
        self.name: str = job["metadata"]["name"]
        self.environ = {**os.environ, "HOLDFAST_HOME": str(directory / "home")}
        self.home: JobHome = job_home(self.environ, self.name)
        self._client: tuple[Endpoint | None, JobClient] | None = None
        self._output = directory / "output.txt"
        self._flags = flags
        file = directory / "job.yaml"
        file.write_text(yaml.safe_dump(dict(job)))
        self.process = self._start(file, forked=not cold and forks.forkable(self.environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left, for certain."""
        self._hang_up()
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def output(self) -> str:
        """Return the output of `holdfast run` so far."""
        return self._output.read_text(errors="replace")

    def _start(self, file: Path, *, forked: bool) -> forks.Fork | subprocess.Popen[bytes]:
        with Path(os.devnull).open("rb") as nothing, self._output.open("wb") as output:
            if forked:
                return forks.start(
                    [str(FORKED_RUNNER), "run", str(file), *self._flags],
                    env=self.environ,
                    files=[nothing.fileno(), output.fileno(), output.fileno()],
                    cwd=ROOT,
                    new_session=True,
                )
            return subprocess.Popen(
                [sys.executable, "-m", "holdfast_cli.main", "run", str(file), *self._flags],
                cwd=ROOT,
                env=self.environ,
                stdin=nothing,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    # --- asking ---------------------------------------------------------------------------------
    def ask(self, request: Any, answer: type[_Answer] | None = None) -> Any:
        """Send a request to the master, on the connection of the call before if it can be."""
        where = self.home.endpoint()
        if self._client is None or self._client[0] != where:
            self._hang_up()
            self._client = where, JobClient(self.home)
        try:
            return self._client[1].call(request)
        except CliError:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client[1].close()
        self._client = None

    def status(self) -> JobStatus:
        """Return where the job is."""
        status: JobStatus = self.ask(GetJobRequest()).status
        return status

    def nodes(self) -> dict[int, NodeInfo]:
        """Return the nodes by node rank."""
        return {node.node_rank: node for node in self.ask(ListNodesRequest()).nodes}

    def events(self, after: int = 0) -> list[JobEvent]:
        """Return every event so far, or those after this sequence."""
        return list(self.ask(ListEventsRequest(after_sequence=after, limit=10_000)).events)

    def newest_event(self) -> int:
        """Return the sequence of the newest event."""
        newest: int = self.ask(ListEventsRequest(limit=1)).newest_sequence
        return newest

    def goodput(self) -> Any:
        """Return the goodput ledger with its incidents."""
        return self.ask(GetGoodputRequest())

    def charged(self) -> dict[BudgetKind, int]:
        """Return what every budget has paid, once nothing that has happened may still be charged.

        An incident is charged some seconds after its first step: until then a test that compares
        two readings would find the charge of what came before it.
        """
        self.wait_for("the ends of all incidents", self.all_closed)
        return {budget.kind: budget.used for budget in self.status().budgets}

    def all_closed(self) -> bool:
        """Return whether no incident is open."""
        return not any(incident.open for incident in self.goodput().incidents)

    def rank_pid(self, rank: int) -> int:
        """Return the pid of a global rank in the current world."""
        return self.wait_for(f"the pid of rank {rank}", lambda: self._pids()[rank])

    def _pids(self) -> dict[int, int]:
        return {r.rank: r.pid for node in self.nodes().values() for r in node.ranks if r.pid}

    def agent_pid(self, node: int) -> int:
        """Return the pid of a node's agent, once it has joined: a signal to 0 is one to all."""

        def there() -> int:
            return self.nodes()[node].agent_pid

        return self.wait_for(f"the agent of node {node}", there)

    def cli(
        self, *words: str, timeout_s: float = 60.0 * patience()
    ) -> subprocess.CompletedProcess[str]:
        """Run a `holdfast` command against this job's home."""
        return forks.run(
            ["-m", "holdfast_cli.main", *words],
            cwd=ROOT,
            env=self.environ,
            timeout=timeout_s,
            imports=forks.Imports.SERVICES,
        )

    def address(self) -> tuple[str, int] | None:
        """Return where the master serves now: a proxy's target."""
        endpoint = self.home.endpoint()
        return (endpoint.host, endpoint.port) if endpoint else None

    # --- waiting --------------------------------------------------------------------------------
    def wait_for(
        self, what: str, true: Callable[[], _Answer], timeout_s: float = 90.0 * patience()
    ) -> _Answer:
        """Wait until `true()` returns something true, and return it."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(CliError, KeyError):
                found = true()
                if found:
                    return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.evidence()}")
            if self.process.poll() is not None:
                raise AssertionError(f"the job ended before: {what}\n{self.evidence()}")
            time.sleep(self.poll_seconds)

    def wait_step(
        self, step: int, *, round_above: int = 0, timeout_s: float = 90.0 * patience()
    ) -> JobStatus:
        """Wait until a world newer than `round_above` trains and has completed `step` steps."""

        def there() -> JobStatus | None:
            status = self.status()
            trains = status.phase is JobPhase.TRAINING and status.round > round_above
            return status if trains and status.step >= step else None

        status = self.wait_for(f"step {step} in a round above {round_above}", there, timeout_s)
        assert status is not None
        return status

    def wait_event(
        self, reason: str, *, text: str = "", after: int = 0, timeout_s: float = 60.0 * patience()
    ) -> JobEvent:
        """Wait for the first event of a reason whose text contains `text`, after a sequence."""

        def there() -> JobEvent | None:
            found = [e for e in self.events(after) if e.reason == reason and text in e.text]
            return found[0] if found else None

        event = self.wait_for(f"event {reason} {text!r}", there, timeout_s)
        assert event is not None
        return event

    def finish(self, timeout_s: float = 120.0 * patience()) -> int:
        """Wait for the end of the job; return the exit code of `holdfast run`."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running:\n{self.evidence()}") from error

    def evidence(self) -> str:
        """Return everything that was printed and logged, for a failing test's message."""
        logs = sorted(self.home.logs.glob("*.log")) if self.home.logs.exists() else []
        parts = [f"== output\n{self.output[-6000:]}"]
        parts += [f"== {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs]
        return "\n".join(parts)


StartJob = Callable[..., RunningJob]
"""`start_job(*flags_of_the_script, steps=…, **spec)`: the fixture of tests/recovery."""


def event_times(output: str, reason: str) -> list[str]:
    """Return the lines of plain output that show events of a reason."""
    return [line for line in output.splitlines() if re.search(rf"  {reason}  ", line)]


def slow(milliseconds: int) -> str:
    """Return the flag by which each step takes so long, and longer on a slow machine.

    What a test does meanwhile takes longer there too, and the job must not end before it.
    """
    return f"--extra-work-ms={milliseconds / 2 * patience():.0f}"


def losses(file: Path) -> dict[int, float]:
    """Return the loss of each step from a loss log; of a step done again, the last one."""
    return {line["step"]: line["loss"] for line in loss_lines(file)}


def loss_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a loss log; a torn last line (a killed rank's) is left out."""
    for line in file.read_text().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def assert_same_curve(got: Mapping[int, float], unbroken: Mapping[int, float], steps: int) -> None:
    """Assert that every step from 1 to `steps` was done and has the unbroken run's loss."""
    assert sorted(got) == list(range(1, steps + 1))
    # Sums over ranks are added in another order in another world: float32, so 1e-3 after a while.
    worst = max(range(1, steps + 1), key=lambda step: abs(got[step] - unbroken[step]))
    assert abs(got[worst] - unbroken[worst]) < 5e-3, (
        f"step {worst}: loss {got[worst]:.5f}, unbroken run {unbroken[worst]:.5f}"
    )


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
