"""Seconds of the parts of a check, each as the process of a node itself takes it.

Two processes at the most measure at the same time, one for each core: so the parts are those of
nodes that are idle, where nothing else runs on the machine.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.preflight import cpu_pressure
from holdfast_agent.health.node_check import link
from holdfast_agent.health.node_check.link import LinkSettings
from holdfast_agent.health.node_check.measured import Task
from holdfast_agent.health.node_check.process import Interrupt, KeptProcess
from holdfast_agent.health.node_check.runner import (
    CheckResult,
    alone_tasks,
    import_task,
    join_task,
    run,
    serve_task,
)
from holdfast_wire import loopback

ALONE = "alone"
AGAIN = "alone once more"
PAIR = "pair"
Line = dict[str, Any]


class Measurer:
    """The measuring process of one node, kept from part to part."""

    def __init__(self) -> None:
        self._interrupt = Interrupt()
        self._kept = KeptProcess()

    def run(self, task: Task | None = None, descriptors: tuple[int, ...] = ()) -> CheckResult:
        """Carry one task out, or all of a node alone."""
        tasks = alone_tasks(loopback=False) if task is None else [task]
        return run(tasks, descriptors, interrupt=self._interrupt, kept=self._kept)

    def close(self) -> None:
        """End the process."""
        self._kept.drop()
        self._interrupt.close()


def lines(trials: int) -> Iterator[Line]:
    """Measure every part so many times."""
    for _ in range(trials):
        with (
            contextlib.closing(Measurer()) as first,
            contextlib.closing(Measurer()) as second,
        ):
            for one in (first, second):
                one.run(import_task())
            yield _line(ALONE, first.run)
            yield _line(AGAIN, first.run)
            yield _line(PAIR, functools.partial(_pair, first, second))


def _line(part: str, measure: Callable[[], CheckResult]) -> Line:
    with cpu_pressure.measured() as share:
        result = measure()
    errors = [one.error for one in result.figures if one.error]
    line = {"what": "part", "part": part, "seconds": result.seconds, "waited": share()}
    return {**line, "error": errors[0] if errors else ""}


def _pair(first: Measurer, second: Measurer) -> CheckResult:
    settings = LinkSettings()
    with link.listen(loopback.address()) as listener:
        port = listener.getsockname()[1]
        begin, results = time.monotonic(), list[CheckResult]()

        def join() -> None:
            results.append(second.run(join_task(loopback.address(), port, settings)))

        thread = threading.Thread(target=join)
        thread.start()
        served = first.run(serve_task(settings), (listener.fileno(),))
        thread.join()
    ends = time.monotonic() - begin
    return CheckResult(
        figures=(*served.figures, *results[0].figures),
        kind=served.kind,
        seconds=ends,
        peak_bytes=served.peak_bytes,
    )
