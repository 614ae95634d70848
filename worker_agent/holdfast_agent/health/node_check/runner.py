"""Runs the tasks of a node check in a child process, with a deadline for each figure.

`run` blocks: call it in a thread. The child dies with that thread, and `Interrupt.set` from another
thread ends it at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import selectors
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast_agent.config.cgroups import usable_cpus
from holdfast_agent.health.node_check.link import LinkSettings
from holdfast_agent.health.node_check.measured import (
    DeviceFound,
    Measuring,
    Task,
    TaskBegun,
    TaskEnded,
)
from holdfast_agent.health.node_check.process import Interrupt, KeptProcess, MeasuringProcess
from holdfast_agent.health.node_check.program import IMPORT_OF_TORCH
from holdfast_agent.policies.node_check import Reading
from holdfast_wire.resources import Resource, label

_START_SECONDS = 30.0
"""Until a child begins, s: Python and its modules may lie on a slow network."""
_IMPORT_SECONDS = 120.0
"""For the import of torch, s: several GB, from a cold disk."""
_CRASH_SECONDS = 2.0
"""From the end of a child's output to its own end, s: a core may be written. It is killed then."""
_MOST_WORDS = 2000
"""Characters of a crashed child's standard error that are looked at."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Figures of a node, as its tasks gave them."""

    figures: tuple[Reading, ...]
    kind: str
    """Hardware: nodes of one kind are comparable."""
    seconds: float
    peak_bytes: int
    """Most memory that a child had."""


def alone_tasks(*, storage: str = "", ntp: str = "", loopback: bool = True) -> list[Task]:
    """Return the tasks of a node without a partner.

    storage: Folder whose room and speed are measured; "": none.
    ntp: HOST or HOST:PORT of a reference clock; "": the clock is not measured.
    loopback: Measure the network of the node with itself, too.
    """
    disk = (Resource.DISK_ROOM, Resource.DISK_WRITE, Resource.DISK_READ)
    devices = (Resource.DEVICE_MATMUL,)
    link = (Resource.LINK_BANDWIDTH, Resource.LINK_LATENCY)
    chosen = [
        Task(name="memory", resources=(Resource.MEMORY_BANDWIDTH,)),
        Task(name="shm", resources=(Resource.SHM_ROOM, Resource.SHM_WRITE)),
        *([Task(name="loopback", resources=link)] if loopback else []),
        Task(name="matmul", resources=(Resource.CPU_MATMUL,), torch=True),
        *([_GLOO_ALONE] if loopback else []),
        # The first use of CUDA takes seconds, more of them with many devices.
        Task(name="cuda", resources=devices, torch=True, seconds=60.0),
    ]
    if storage:
        chosen.insert(2, Task(name="disk", resources=disk, arguments={"folder": storage}))
    if ntp:
        arguments = {"server": ntp}
        chosen.append(Task(name="clock", resources=(Resource.CLOCK_OFFSET,), arguments=arguments))
    return chosen


def import_task() -> Task:
    """Return the task that imports torch and measures nothing, for a process that is kept."""
    return Task(name="import", resources=(Resource.CPU_MATMUL,), torch=True)


_GLOO_ALONE = Task(name="allreduce", resources=(Resource.ALLREDUCE,), torch=True, seconds=15.0)
_PAIR = (Resource.LINK_BANDWIDTH, Resource.LINK_LATENCY, Resource.ALLREDUCE)
_PAIR_SECONDS = 60.0
"""For the partner to come and for each figure, s; both may have to import torch."""


def serve_task(settings: LinkSettings) -> Task:
    """Return the task of the node that listens; pass the listener's descriptor to `run`.

    settings: bounds and certificates, alike on both nodes.
    """
    return _pair_task("serve", settings, {"descriptor": 0})


def join_task(host: str, port: int, settings: LinkSettings) -> Task:
    """Return the task of the node that connects to the partner's listener; see `serve_task`."""
    return _pair_task("join", settings, {"host": host, "port": port})


def _pair_task(name: str, settings: LinkSettings, arguments: Mapping[str, Any]) -> Task:
    plain = {"settings": dataclasses.asdict(settings), **arguments}
    return Task(name=name, resources=_PAIR, seconds=_PAIR_SECONDS, arguments=plain)


def run(
    tasks: Sequence[Task],
    pass_fds: Collection[int] = (),
    *,
    seconds: float = math.inf,
    interrupt: Interrupt | None = None,
    kept: KeptProcess | None = None,
) -> CheckResult:
    """Carry out tasks and return their figures; a task that hangs or crashes is one of them.

    tasks: The tasks, in order.
    pass_fds: Descriptors that they use.
    seconds: Longest time for all of them, s. What is not measured by then is left out: that is
        no fault of its resource.
    interrupt: Ends the run before that.
    kept: With `interrupt`: has the child of the run before, and gets this one's if that did
        all of its tasks.
    """
    if interrupt is None:
        with contextlib.closing(Interrupt()) as own:
            return run(tasks, pass_fds, seconds=seconds, interrupt=own)
    begin, left, figures = time.monotonic(), list(tasks), list[Reading]()
    peak, devices = 0, list[str]()
    while left:
        child = _carry_out(left, pass_fds, begin + seconds, interrupt, kept)
        figures += child.figures
        devices += child.devices
        peak = max(peak, child.peak_bytes)
        left = left[child.finished :]
    took = time.monotonic() - begin
    return CheckResult(
        figures=tuple(figures), kind=hardware(devices), seconds=took, peak_bytes=peak
    )


def hardware(devices: Sequence[str] = ()) -> str:
    """Return the words for a node's hardware: CPUs, and accelerators by name."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        if line.startswith(("model name", "CPU part"))
    ]
    cpu = f"{usable_cpus()} x {models[0] if models else os.uname().machine}"
    found = (f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    return ", ".join((cpu, *found))


def _carry_out(
    tasks: Sequence[Task],
    pass_fds: Collection[int],
    latest: float,
    interrupt: Interrupt,
    kept: KeptProcess | None,
) -> _Child:
    """Have one process do as many of the tasks as it can."""
    process = (kept.take() if kept is not None else None) or MeasuringProcess(interrupt)
    with contextlib.ExitStack() as ends:
        ends.callback(process.close)
        child = _Child(tasks, process, interrupt)
        process.order(tasks, pass_fds)
        child.work(latest)
        if child.whole and kept is not None:
            ends.pop_all()
            kept.keep(process)
    return child


class _Child:
    """One child process's reports about its tasks."""

    def __init__(
        self, tasks: Sequence[Task], process: MeasuringProcess, interrupt: Interrupt
    ) -> None:
        self._tasks = tasks
        self._process = process
        self._interrupt = interrupt
        self.figures: list[Reading] = []
        self.devices: list[str] = []
        self.peak_bytes = 0
        self.finished = 0
        """Tasks that need no other child: they ended, or broke this one."""
        self.whole = False
        """It did all tasks and waits for others."""
        self._running: int | None = None
        self._now: Measuring | None = None
        self._deadline = time.monotonic() + _START_SECONDS
        self._allowed = _START_SECONDS
        self._tail = b""

    def work(self, latest: float) -> None:
        """Take in what the child tells until all is done, or until a deadline has passed.

        latest: Monotonic time at which all tasks are over, done or not.
        """
        with selectors.DefaultSelector() as selector:
            for source in (self._interrupt, self._process.socket, self._process.output):
                selector.register(source, selectors.EVENT_READ)
            while self.finished < len(self._tasks) and len(selector.get_map()) > 1:
                until = min(self._deadline, latest)
                ready = [key for key, _ in selector.select(max(0.0, until - time.monotonic()))]
                if self._interrupt.is_set() or (not ready and until == latest):
                    self._process.end()
                    self.finished = len(self._tasks)
                    return
                if not ready:
                    end = self._process.end()
                    self._broken(f"no result in {self._allowed:g} s: it hangs{end}")
                    return
                for key in ready:
                    if not self._take_in(key.fileobj):
                        selector.unregister(key.fileobj)
        self.whole = self.finished == len(self._tasks)
        if not self.whole:
            self._process.end(_CRASH_SECONDS)
            self._broken(self._how_it_ended())

    def _take_in(self, source: object) -> bool:
        """Take in what the child has sent or written; False: this is its end."""
        if source is self._process.output:
            data = os.read(self._process.output.fileno(), 1 << 16)
            self._tail = (self._tail + data)[-_MOST_WORDS:]
            return bool(data)
        try:
            self._take(self._process.receive())
        except EOFError:
            return False
        return True

    def _take(self, report: object) -> None:
        match report:
            case TaskBegun(at):
                self._running, self._now = at, None
            case Measuring():
                self._now = report
            case Reading():
                self.figures.append(report)
            case DeviceFound(model):
                self.devices.append(model)
            case TaskEnded(at, peak):
                self.finished, self._running, self._now = at + 1, None, None
                self.peak_bytes = max(self.peak_bytes, peak)
        self._allowed = self._seconds()
        self._deadline = time.monotonic() + self._allowed

    def _seconds(self) -> float:
        if self._now is not None and self._now.subject == IMPORT_OF_TORCH:
            return _IMPORT_SECONDS
        return _START_SECONDS if self._running is None else self._tasks[self._running].seconds

    def _broken(self, error: str) -> None:
        """Blame the resource that was being measured; its task is over, the others are not."""
        at = self.finished if self._running is None else self._running
        task = self._tasks[at]
        now = self._now or Measuring(task.resources[0])
        resource, subject = now.resource, now.subject
        self.figures.append(Reading(resource=resource, subject=subject, error=error))
        told = {one.resource for one in self.figures}
        for one in task.resources:
            if one not in told:
                reason = f"{label(resource)} came first and did not end"
                self.figures.append(Reading(resource=one, subject=subject, skipped=reason))
        self.finished = at + 1

    def _how_it_ended(self) -> str:
        words = self._tail.decode(errors="replace").strip().splitlines()
        how = self._process.end_text()
        return f"its process ended by {how}" + (f": {words[-1]}" if words else "")
