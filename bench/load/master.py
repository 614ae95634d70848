"""A real master process under load: its start and end, what it uses, how soon it answers."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from bench.harness import launch, venvs
from bench.load import usage
from bench.load.herd import LoadError
from bench.load.usage import Usage
from holdfast_wire import channel, codec
from holdfast_wire.authority import JobAuthority
from holdfast_wire.identity import Identity
from holdfast_wire.messages import GetJobRequest, GetJobResponse, JobEvent, ListEventsRequest

JOB = "load"
START_SECONDS = 30.0
PROBES_PER_SECOND = 20
TOLD = '"agents are told"'
"""The master's log line once gRPC has taken the last of many messages."""
_BUDGETS = ("FAILURES", "PREEMPTIONS", "RESCALES", "NO_PROGRESS")


class LoadedMaster:
    """One master of one job; after `kill` the next `start` is its successor on the same port."""

    def __init__(
        self,
        directory: Path,
        agents: int,
        core: dict[str, float],
        *,
        serves_metrics: bool = False,
    ) -> None:
        """Prepare a job of ``agents`` nodes; ``core`` are settings of the master's core."""
        self.key = os.urandom(32)
        self._directory = directory
        self._agents = agents
        self._core = core
        self._epoch = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._port = launch.free_port()
        self._metrics_port = launch.free_port() if serves_metrics else None
        self._tls = self._issue("master")
        self._user = channel.channel_credentials(self._issue("user"))

    @property
    def target(self) -> str:
        """Return host:port."""
        return f"127.0.0.1:{self._port}"

    @property
    def metrics(self) -> str:
        """Return the address of its metrics."""
        return f"http://127.0.0.1:{self._metrics_port}/metrics"

    @property
    def log(self) -> Path:
        """Return where it writes its log."""
        return self._directory / "master.log"

    def start(self) -> None:
        """Start the next master and wait until it serves."""
        self._epoch += 1
        endpoint = self._directory / f"endpoint-{self._epoch}"
        path = self._directory / f"config-{self._epoch}.json"
        path.write_text(json.dumps(self._config(endpoint)))
        command = [sys.executable, "-m", "holdfast_master.main", "--config", str(path)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, env=venvs.environment())
        end = time.monotonic() + START_SECONDS
        while not endpoint.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise LoadError(f"the master does not serve; its log is {self.log}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)

    def look(self) -> Usage:
        """Return its usage."""
        if self._process is None:
            raise LoadError("the master was not started")
        return usage.look(self._process.pid)

    def said(self, text: str) -> bool:
        """Return True if its log holds ``text``."""
        return text in self.log.read_text()

    def own_part(self, reason: str) -> float | None:
        """Return the seconds from the newest event of a reason until gRPC had all that it led to.

        None: fewer agents were told than the master says in its log.
        """
        with self.link() as link:
            events, _ = self.events(link, 0)
        began = max((e.unix_time for e in events if e.reason == reason), default=None)
        lines = [line for line in self.log.read_text().splitlines() if TOLD in line]
        if began is None or not lines:
            return None
        told = dt.datetime.fromisoformat(json.loads(lines[-1])["time"]).timestamp()
        # The log's times have three digits.
        return told - began if told + 0.001 > began else None

    @contextlib.contextmanager
    def link(self) -> Iterator[grpc.Channel]:
        """Open a user's connection."""
        options = channel.master_channel_options(JOB)
        with grpc.secure_channel(self.target, self._user, options=options) as made:
            yield made

    def events(self, link: grpc.Channel, after: int) -> tuple[list[JobEvent], int]:
        """Return the kept events after a sequence, and the newest sequence."""
        found: list[JobEvent] = []
        while True:
            answer = ask(link, "ListEvents", ListEventsRequest(after_sequence=after, limit=5_000))
            found += answer.events
            if len(answer.events) < 5_000:
                return found, answer.newest_sequence
            after = answer.events[-1].sequence

    def _config(self, endpoint: Path) -> dict[str, Any]:
        agents = self._agents
        spec = {
            "generation": 1,
            "replicas": agents,
            "min_replicas": 1,
            "max_replicas": agents,
            "node_unit": 1,
            "success_policy": "ALL_WORKERS",
            "join_window_seconds": 600,
            "scale_down_grace_seconds": 30,
            "below_min_timeout_seconds": 600,
            "budgets": [{"kind": kind, "limit": 100_000} for kind in _BUDGETS],
        }
        return {
            "job_name": JOB,
            "job_uid": JOB,
            "epoch": self._epoch,
            "port": self._port,
            "metrics_port": self._metrics_port,
            "tls_dir": str(self._tls),
            "endpoint_file": str(endpoint),
            "journal_dir": str(self._directory / "journal"),
            "initial_spec": spec,
            "die_with_parent": True,
            "core": self._core,
        }

    def _issue(self, role: str) -> Path:
        now = dt.datetime.now(dt.UTC)
        made = JobAuthority(self.key, JOB, now)
        path = self._directory / role
        identity = Identity(JOB, role)
        made.issue(identity, now, dt.timedelta(days=1), ["127.0.0.1"]).write(path)
        return path


def ask(link: grpc.Channel, method: str, request: object, seconds: float = 30.0) -> Any:
    """Call a method of JobService and return the response's twin."""
    call: Any = link.unary_unary(f"/holdfast.v1.JobService/{method}")
    data = call(codec.encode(request), timeout=seconds)
    return codec.from_proto(codec.proto_of(f"{method}Response").FromString(data))


class Probe:
    """Asks GetJob at a steady pace from a thread of its own and keeps how long each took, s.

    A probe that is late because the one before took long begins at once and counts from the moment
    at which it should have begun: a slow answer shall not hide those that it kept waiting.
    """

    def __init__(self, master: LoadedMaster) -> None:
        self.delays: list[float] = []
        self._master = master
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        with self._master.link() as link:
            call: Any = link.unary_unary("/holdfast.v1.JobService/GetJob")
            request = codec.encode(GetJobRequest())
            call(request, timeout=30)
            due = time.monotonic()
            while not self._stop.is_set():
                time.sleep(max(0.0, due - time.monotonic()))
                call(request, timeout=30)
                self.delays.append(time.monotonic() - due)
                due += 1 / PROBES_PER_SECOND


def heartbeat_effects(master: LoadedMaster, tell: Any, count: int) -> list[float]:
    """Return how long heartbeats took until GetJob showed what they said, s: an upper bound.

    The answer is asked for again and again, so that the last question's own way is part of it.
    """
    found = []
    with master.link() as link:
        for number in range(count):
            loss = 2.0 + number
            began = tell(loss)
            while shown(link) != loss:
                pass
            found.append(time.monotonic() - began)
            time.sleep(0.2)
    return found


def shown(link: grpc.Channel) -> float:
    """Return the loss that the job's status shows."""
    answer: GetJobResponse = ask(link, "GetJob", GetJobRequest())
    return answer.status.loss if answer.status is not None else 0.0
