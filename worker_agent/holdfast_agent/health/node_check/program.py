"""The child process of a node check: carries out tasks, one after another.

`process` starts it, and it waits for orders until their socket is closed; deadlines are `runner`'s.

The all-reduce over gloo runs between two ranks, of a pair of nodes or of one node with itself. Its
connections are those that a training script gets: gloo chooses the interface by
GLOO_SOCKET_IFNAME, or by the host's name.
"""

from __future__ import annotations

import datetime as dt
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast_agent.health.node_check import clock, compute, link, storage
from holdfast_agent.health.node_check.link import LinkSettings
from holdfast_agent.health.node_check.measured import (
    FigureReporter,
    NotMeasurableError,
    Order,
    TaskBegun,
    TaskEnded,
)
from holdfast_agent.policies.node_check import Reading
from holdfast_agent.zygote.process_tree import die_with_parent
from holdfast_wire import datagrams
from holdfast_wire.resources import Resource

IMPORT_OF_TORCH = "import of torch"
"""Subject while torch is imported, which has a deadline of its own."""
LOOPBACK = "loopback"
_ELEMENTS = 4 << 20
"""Elements of the float32 tensor, 16 MiB: one bucket of DDP has 25."""
_SECONDS = 0.3
_MOST_REPEATS = 50
_TIMEOUT = dt.timedelta(seconds=10)
"""For the connection of both ranks, and for one all-reduce."""


def main(words: Sequence[str]) -> None:
    """Carry out one order after another; the words are the parent's pid and their socket."""
    die_with_parent(int(words[0]))
    with socket.socket(fileno=int(words[1])) as orders:
        report = FigureReporter(orders)
        while (found := _next(orders)) is not None:
            _carry_out(report, *found)


def _next(orders: socket.socket) -> tuple[Order, list[int]] | None:
    """Return the next order with its descriptors; None: there will be none."""
    try:
        body, descriptors = datagrams.receive(orders)
    except EOFError:
        return None
    return datagrams.decode(body, (Order,)), descriptors


def _carry_out(report: FigureReporter, order: Order, descriptors: Sequence[int]) -> None:
    for at, task in enumerate(order.tasks):
        report.send(TaskBegun(at))
        arguments = dict(task.arguments)
        if "descriptor" in arguments:
            arguments["descriptor"] = descriptors[arguments["descriptor"]]
        if not task.torch or _has_torch(report, task.resources):
            TASKS[task.name](report, **arguments)
        report.send(TaskEnded(at, _peak_bytes()))


def _peak_bytes() -> int:
    """Return the most memory that this program has had resident.

    Not getrusage's: that keeps the peak of the process that was forked to become this one.
    """
    status = Path("/proc/self/status").read_text(errors="replace")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) << 10


def _has_torch(report: FigureReporter, resources: Sequence[Resource]) -> bool:
    """Import torch; where that fails, report it as the result of the task and return False."""
    report.begins(resources[0], IMPORT_OF_TORCH)
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        for one in resources:
            report.send(Reading(resource=one, skipped="torch is not installed in this Python"))
        return False
    except (ImportError, OSError, RuntimeError) as error:
        text = f"{IMPORT_OF_TORCH} failed: {type(error).__name__}: {error}"
        report.send(Reading(resource=resources[0], error=text))
        return False
    return True


def _loopback(report: FigureReporter) -> None:
    with report.measures(Resource.LINK_BANDWIDTH, LOOPBACK):
        found = link.over_loopback()
        report.figure(found.gigabits)
        report.begins(Resource.LINK_LATENCY, LOOPBACK)
        report.figure(found.latency_us)


def _allreduce(report: FigureReporter) -> None:
    with report.measures(Resource.ALLREDUCE, LOOPBACK):
        report.figure(_with_itself() / 1e9)


def _serve(report: FigureReporter, descriptor: int, settings: Mapping[str, Any]) -> None:
    with (
        report.measures(Resource.LINK_BANDWIDTH),
        socket.socket(fileno=descriptor) as listener,
        link.serve(listener, LinkSettings(**settings)) as (talk, measure),
    ):
        _pair(report, talk, measure(), serves=True)


def _join(report: FigureReporter, host: str, port: int, settings: Mapping[str, Any]) -> None:
    with (
        report.measures(Resource.LINK_BANDWIDTH),
        link.join(host, port, LinkSettings(**settings)) as (talk, measure),
    ):
        _pair(report, talk, measure(), serves=False)


def _pair(
    report: FigureReporter, talk: link.Conversation, found: link.LinkFigures, *, serves: bool
) -> None:
    report.figure(found.gigabits)
    report.begins(Resource.LINK_LATENCY)
    report.figure(found.latency_us)
    with report.measures(Resource.ALLREDUCE):
        lacks = _lacks_gloo()
        talk.send(lacks=lacks)
        if reason := lacks or str(talk.receive().get("lacks")):
            raise NotMeasurableError(reason)
        report.figure(_reduce(talk, serves=serves) / 1e9)


def _lacks_gloo() -> str:
    """Return the reason why this node cannot take part in an all-reduce, or ""."""
    try:
        importlib.import_module("torch")
        _require_gloo()
    except (ImportError, NotMeasurableError) as error:
        return str(error)
    return ""


def _reduce(talk: link.Conversation, *, serves: bool) -> float:
    from torch.distributed import TCPStore

    if serves:
        host = talk.local_host
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        talk.send(store=int(store.port))
    else:
        host, port = talk.partner_host, int(talk.number("store"))
        store = TCPStore(host, port, is_master=False, timeout=_TIMEOUT)
    found = _bytes_per_second(store, 0 if serves else 1)
    # The store must live until the partner has read from it for the last time.
    talk.send(done=True)
    talk.receive()
    return found


def _bytes_per_second(store: Any, rank: int) -> float:
    """Return the bytes of the tensor that two ranks reduce in a second.

    store: One store for both ranks.
    rank: 0 or 1.
    """
    import torch
    from torch.distributed import ProcessGroupGloo

    group: Any = ProcessGroupGloo(store, rank, 2, _TIMEOUT)
    tensor = torch.ones(_ELEMENTS)
    group.allreduce([tensor]).wait()
    begin = time.monotonic()
    group.allreduce([tensor]).wait()
    # Both ranks must make as many calls: rank 0 says how many fit.
    if rank == 0:
        once = max(time.monotonic() - begin, 1e-6)
        store.set("repeats", str(max(1, min(_MOST_REPEATS, int(_SECONDS / once)))))
    repeats = int(store.get("repeats"))
    tensor.fill_(1.0)
    begin = time.monotonic()
    for _ in range(repeats):
        group.allreduce([tensor]).wait()
    passed = time.monotonic() - begin
    expected = 2.0**repeats
    if not bool(torch.isclose(tensor[[0, -1]], torch.tensor(expected)).all()):
        raise RuntimeError(f"the sum is {tensor[0].item()}, and {expected} is right")
    return tensor.nbytes * repeats / passed


def _with_itself() -> float:
    """Return the bytes per second of two ranks in this process, over the node's own addresses."""
    _require_gloo()
    from torch.distributed import HashStore

    store = HashStore()
    with ThreadPoolExecutor(2) as ranks:
        return min(ranks.map(lambda rank: _bytes_per_second(store, rank), range(2)))


def _require_gloo() -> None:
    """Raise NotMeasurableError where this torch has no gloo."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_gloo_available()):
        raise NotMeasurableError("this torch has no gloo")


TASKS: Mapping[str, Callable[..., None]] = {
    # Torch is imported before each task that needs it: this one measures nothing.
    "import": lambda _: None,
    "memory": compute.measure_memory,
    "shm": storage.measure_shm,
    "disk": storage.measure_disk,
    "clock": clock.measure,
    "loopback": _loopback,
    "matmul": compute.measure_cpu,
    "allreduce": _allreduce,
    "cuda": compute.measure_devices,
    "serve": _serve,
    "join": _join,
}
"""Functions by the names of tasks; each takes the reporter, and the task's arguments."""

if __name__ == "__main__":
    main(sys.argv[1:])
    # Nothing is left to be written, and the orderly end of an interpreter with torch takes seconds.
    os._exit(0)
