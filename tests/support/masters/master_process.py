"""A real master process, as a runner starts one, and its log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from holdfast_wire import channel, codec
from holdfast_wire.identity import Identity
from house import forks
from house.patience import patience
from messages import certificates

JOB = "j1"
START_SECONDS = 20.0 * patience()
SPEC: dict[str, Any] = {
    "generation": 1,
    "replicas": 2,
    "min_replicas": 1,
    "max_replicas": 4,
    "node_unit": 1,
    "success_policy": "ALL_WORKERS",
    # Longer than any start on a busy machine: the first world has every agent that it wants.
    "join_window_seconds": 30,
    "scale_down_grace_seconds": 5,
    "below_min_timeout_seconds": 60,
    "budgets": [
        {"kind": "FAILURES", "limit": 3},
        {"kind": "PREEMPTIONS", "limit": 3},
        {"kind": "RESCALES", "limit": 10},
        {"kind": "NO_PROGRESS", "limit": 3},
    ],
}


class MasterProcess:
    """One `holdfast-master`."""

    def __init__(self, directory: Path, **settings: object) -> None:
        """Start it; `settings` are fields of its configuration."""
        self.directory = directory
        epoch = settings.setdefault("epoch", 1)
        self._endpoint = directory / f"endpoint-{epoch}"
        self._log = directory / f"master-{epoch}.log"
        tls = certificates.issue(directory, Identity(JOB, "master"))
        config = {"job_name": "job", "job_uid": JOB, "tls_dir": str(tls), "die_with_parent": True}
        config |= {"endpoint_file": str(self._endpoint), **settings}
        path = directory / f"config-{epoch}.json"
        path.write_text(json.dumps(config))
        with Path(os.devnull).open("rb") as nothing, self._log.open("ab") as log:
            self.process = forks.start(
                ["-m", "holdfast_master.main", "--config", str(path)],
                env=os.environ,
                files=[nothing.fileno(), log.fileno(), log.fileno()],
                imports=forks.Imports.SERVICES,
            )
        self.port = 0

    def wait_serving(self) -> None:
        """Wait until it answers."""
        self.wait_for(lambda: self._endpoint.exists() or self.process.poll() is not None)
        assert self._endpoint.exists(), self.text()
        self.port = json.loads(self._endpoint.read_text())["port"]

    def wait_for(self, look: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """Return what `look` gives once it is true; fail with the log at the deadline."""
        end = time.monotonic() + seconds
        while not (seen := look()):
            assert time.monotonic() < end, f"not within {seconds} s; the log:\n{self.text()}"
            time.sleep(0.01)
        return seen

    def text(self) -> str:
        """Return everything that it wrote to standard error."""
        return self._log.read_text()

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """Return the log's lines whose message contains `message`."""
        lines = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in lines if message in line["message"]]

    def channel(self, identity: Identity) -> grpc.Channel:
        """Return a new connection of `identity`."""
        credentials = channel.channel_credentials(certificates.issue(self.directory, identity))
        options = channel.master_channel_options(JOB)
        return grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options)

    def ask(self, method: str, request: object, role: str = "user") -> Any:
        """Call a method of JobService and return the response's twin."""
        with self.channel(Identity(JOB, role)) as made:
            call: Any = made.unary_unary(f"/holdfast.v1.JobService/{method}")
            data = call(codec.encode(request), timeout=10)
        return codec.from_proto(codec.proto_of(f"{method}Response").FromString(data))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=START_SECONDS)

    def end(self) -> None:
        """Kill it where it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait(timeout=START_SECONDS)


@contextlib.contextmanager
def master_process(directory: Path, **settings: object) -> Iterator[MasterProcess]:
    """Run a master until the block ends."""
    master = MasterProcess(directory, **settings)
    try:
        master.wait_serving()
        yield master
    finally:
        master.end()


def refused(directory: Path, **settings: object) -> tuple[int, str]:
    """Start a master that must not serve; return its exit code and what it said."""
    master = MasterProcess(directory, **settings)
    try:
        return master.process.wait(timeout=START_SECONDS), master.text()
    finally:
        master.end()
