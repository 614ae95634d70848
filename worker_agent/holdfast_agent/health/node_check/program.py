"""The child process of a node check: carries out tasks, one after another.

`process` starts it, and it waits for orders until their socket is closed. Belongs here: the table
of tasks, the import of torch, the order of a pair's measurements. Does not belong here: deadlines
(`runner`).
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast_agent.health.node_check import (
    allreduce,
    clock,
    cuda,
    link,
    matmul,
    memory,
    storage,
)
from holdfast_agent.health.node_check.measured import (
    FigureReporter,
    MeasuredFigures,
    NotMeasurableError,
)
from holdfast_agent.zygote.process_tree import die_with_parent
from holdfast_wire.resources import Resource

IMPORT_OF_TORCH = "import of torch"
"""Subject while torch is imported, which has a deadline of its own."""
LOOPBACK = "loopback"
_MOST_ORDER = 1 << 16
_MOST_DESCRIPTORS = 4
_Arguments = Mapping[str, Any]


def main(words: Sequence[str]) -> None:
    """Carry out one order after another; the words are the parent's pid and their socket."""
    die_with_parent(int(words[0]))
    # Libraries may print. Standard output is for the runner alone.
    report = FigureReporter(os.dup(1))
    os.dup2(2, 1)
    with socket.socket(fileno=int(words[1])) as orders:
        while (order := _next(orders)) is not None:
            _carry_out(report, *order)


def _next(orders: socket.socket) -> tuple[Sequence[_Arguments], Mapping[int, int]] | None:
    """Return the tasks of the next order, and its descriptors by the parent's numbers for them."""
    data, received, _, _ = socket.recv_fds(orders, _MOST_ORDER, _MOST_DESCRIPTORS)
    if not data:
        return None
    order = json.loads(data)
    return order["tasks"], dict(zip(order["descriptors"], received, strict=True))


def _carry_out(
    report: FigureReporter, tasks: Sequence[_Arguments], descriptors: Mapping[int, int]
) -> None:
    for at, task in enumerate(tasks):
        report.say(begin=at)
        first = [Resource(name) for name in task["resources"]]
        arguments = dict(task["arguments"])
        if "descriptor" in arguments:
            arguments["descriptor"] = descriptors[arguments["descriptor"]]
        if not task["torch"] or _has_torch(report, first):
            TASKS[task["name"]](report, arguments)
        report.say(end=at, peak=_peak_bytes())


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
            skipped = MeasuredFigures(resource=one, skipped="torch is not installed in this Python")
            report.say(figure=skipped.to_plain())
        return False
    except (ImportError, OSError, RuntimeError) as error:
        text = f"{IMPORT_OF_TORCH} failed: {type(error).__name__}: {error}"
        report.say(figure=MeasuredFigures(resource=resources[0], error=text).to_plain())
        return False
    return True


def _memory(report: FigureReporter, _: _Arguments) -> None:
    memory.measure(report)


def _shm(report: FigureReporter, _: _Arguments) -> None:
    storage.measure_shm(report)


def _disk(report: FigureReporter, arguments: _Arguments) -> None:
    storage.measure_disk(report, str(arguments["folder"]))


def _clock(report: FigureReporter, arguments: _Arguments) -> None:
    clock.measure(report, str(arguments["server"]))


def _loopback(report: FigureReporter, _: _Arguments) -> None:
    with report.measures(Resource.LINK_BANDWIDTH, LOOPBACK):
        found = link.over_loopback()
        report.figure(found.gigabits)
        report.begins(Resource.LINK_LATENCY, LOOPBACK)
        report.figure(found.latency_us)


def _nothing(_: FigureReporter, __: _Arguments) -> None:
    """Measure nothing: torch is imported before each task that needs it."""


def _matmul(report: FigureReporter, _: _Arguments) -> None:
    matmul.measure(report)


def _allreduce(report: FigureReporter, _: _Arguments) -> None:
    with report.measures(Resource.ALLREDUCE, LOOPBACK):
        report.figure(allreduce.with_itself() / 1e9)


def _cuda(report: FigureReporter, _: _Arguments) -> None:
    cuda.measure(report)


def _serve(report: FigureReporter, arguments: _Arguments) -> None:
    with report.measures(Resource.LINK_BANDWIDTH):
        listener = socket.socket(fileno=int(arguments["descriptor"]))
        with listener, link.serve(listener, _settings(arguments)) as (talk, measure):
            _pair(report, talk, measure(), gloo=arguments["gloo"], serves=True)


def _join(report: FigureReporter, arguments: _Arguments) -> None:
    with report.measures(Resource.LINK_BANDWIDTH):
        host, port = str(arguments["host"]), int(arguments["port"])
        with link.join(host, port, _settings(arguments)) as (talk, measure):
            _pair(report, talk, measure(), gloo=arguments["gloo"], serves=False)


def _settings(arguments: _Arguments) -> link.LinkSettings:
    return link.LinkSettings(**arguments["settings"])


def _pair(
    report: FigureReporter,
    talk: link.Conversation,
    found: link.LinkFigures,
    *,
    gloo: bool,
    serves: bool,
) -> None:
    report.figure(found.gigabits)
    report.begins(Resource.LINK_LATENCY)
    report.figure(found.latency_us)
    with report.measures(Resource.ALLREDUCE):
        lacks = _lacks_gloo() if gloo else "it was not asked for"
        talk.send(lacks=lacks)
        if reason := lacks or str(talk.hear().get("lacks")):
            raise NotMeasurableError(reason)
        report.figure(_reduce(talk, serves=serves) / 1e9)


def _lacks_gloo() -> str:
    """Return the reason why this node cannot take part in an all-reduce, or ""."""
    try:
        importlib.import_module("torch")
        allreduce.require_gloo()
    except (ImportError, NotMeasurableError) as error:
        return str(error)
    return ""


def _reduce(talk: link.Conversation, *, serves: bool) -> float:
    if serves:
        store, port = allreduce.host_store(talk.local_host)
        talk.send(store=port)
    else:
        store = allreduce.join_store(talk.partner_host, int(talk.number("store")))
    found = allreduce.bytes_per_second(store, 0 if serves else 1)
    # The store must live until the partner has read from it for the last time.
    talk.send(done=True)
    talk.hear()
    return found


TASKS: Mapping[str, Callable[[FigureReporter, _Arguments], None]] = {
    "import": _nothing,
    "memory": _memory,
    "shm": _shm,
    "disk": _disk,
    "clock": _clock,
    "loopback": _loopback,
    "matmul": _matmul,
    "allreduce": _allreduce,
    "cuda": _cuda,
    "serve": _serve,
    "join": _join,
}

if __name__ == "__main__":
    main(sys.argv[1:])
    # Nothing is left to be written, and the orderly end of an interpreter with torch takes seconds.
    os._exit(0)
