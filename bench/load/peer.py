"""DLRover 0.6.1's master under its own clients' messages, for comparison.

Its "local" master, which has no cluster to watch: what is measured is its calls. It has no TLS.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import launch, venvs
from bench.load import figures, usage
from bench.load.herd import LoadError
from bench.load.results import PEER, STEADY, LoadResult
from bench.load.usage import Usage

HEARTBEAT = "heartbeat"
POLL = "poll"
TRANSPORTS = ("grpc", "http")
MESSAGES = (HEARTBEAT, POLL)
START_SECONDS = 60.0
_CLIENTS = Path(__file__).with_name("dlrover_clients.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """The load on the peer: all clients together send as many messages as Holdfast's agents do."""

    clients: int
    rate: float
    seconds: float = 15.0
    repetitions: int = 3


@dataclass(frozen=True, slots=True)
class _Turn:
    """The figures of one repetition."""

    message_us: float
    rate: float
    delays: list[float]
    errors: list[str]
    seen: Usage
    """The master while its clients are still connected."""


def run(python: str, plan: PeerPlan, directory: Path) -> Iterator[LoadResult]:
    """Measure each transport and message."""
    for transport in TRANSPORTS:
        with _master(python, transport, plan.clients, directory) as (pid, address):
            for message in MESSAGES:
                yield _measure(python, plan, directory, (transport, message, pid, address))


def _measure(
    python: str, plan: PeerPlan, directory: Path, what: tuple[str, str, int, str]
) -> LoadResult:
    transport, message, _, _ = what
    load = os.getloadavg()[0]
    turns = [_once(python, plan, directory, what) for _ in range(plan.repetitions)]
    costs = [turn.message_us for turn in turns]
    delays = [delay for turn in turns for delay in turn.delays]
    errors = [error for turn in turns for error in turn.errors]
    found = figures.spread(delays, "answer_ms", 1000) | {
        "message_us": figures.percentile(costs, 50),
        "messages_per_s": figures.percentile([turn.rate for turn in turns], 50),
        "rss_mb": turns[-1].seen.rss_mb,
        "files": turns[-1].seen.files,
        "errors": float(len(errors)),
    }
    return LoadResult(
        system=PEER,
        scenario=STEADY,
        clients=plan.clients,
        variant=f"{transport} {message}",
        figures=found,
        samples={"message_us": costs},
        load=load,
        limits=errors[0] if errors else "",
    )


def _once(python: str, plan: PeerPlan, directory: Path, what: tuple[str, str, int, str]) -> _Turn:
    transport, message, pid, address = what
    order: dict[str, Any] = {"address": address, "transport": transport, "message": message}
    order |= {"clients": plan.clients, "rate": plan.rate, "seconds": plan.seconds}
    command = [python, "-W", "ignore", str(_CLIENTS), json.dumps(order)]
    with (directory / "dlrover-clients.log").open("ab") as log:
        clients = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=venvs.environment(),
        )
    try:
        if not _line(clients, b"connected\n"):
            raise LoadError(f"DLRover's clients did not connect; their log is {log.name}")
        before, began = usage.look(pid).cpu_s, time.monotonic()
        if clients.stdin is not None:
            clients.stdin.write(b"go\n")
            clients.stdin.flush()
        said = json.loads(_line(clients, b"{"))
        seen, passed = usage.look(pid), time.monotonic() - began
    finally:
        clients.kill()
        clients.communicate()
    count = len(said["delays"])
    cost = 1e6 * (seen.cpu_s - before) / max(1, count)
    return _Turn(cost, count / passed, said["delays"], said["errors"], seen)


def _line(process: subprocess.Popen[bytes], begin: bytes) -> bytes:
    """Return the next line that begins with `begin`, or nothing where the process has ended.

    DLRover's code prints other lines too.
    """
    for line in process.stdout or ():
        if line.startswith(begin):
            return line
    return b""


@contextlib.contextmanager
def _master(python: str, transport: str, nodes: int, directory: Path) -> Iterator[tuple[int, str]]:
    port = launch.free_port()
    command = launch.dlrover_master(python, nodes, port, "--service_type", transport)
    with (directory / "dlrover-master.log").open("ab") as log:
        master = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=directory, env=venvs.environment()
        )
    try:
        _await_port(master, port)
        time.sleep(3.0)  # its own start goes on for a moment
        yield master.pid, f"localhost:{port}"
    finally:
        master.send_signal(signal.SIGKILL)
        master.wait(timeout=30)


def _await_port(master: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and master.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 1):
            return
        time.sleep(0.1)
    raise LoadError(f"DLRover's master does not listen on port {port}")
