"""Checks without agents: seconds of the parts of a check, and clusters from seeds.

Parts: each as the process of a node itself takes it. Two processes at the most measure at the same
time, one for each core: so the parts are those of nodes that are idle, where nothing else runs on
the machine. Clusters: the shipped policy judges figures that are drawn, round by round.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
from holdfast_master.policies.preflight.rounds import judge
from holdfast_wire import loopback
from holdfast_wire.resources import Resource
from nodes.simulated_nodes import COMPUTE, NETWORK, Cluster, Fault

ALONE = "alone"
AGAIN = "alone once more"
PAIR = "pair"
_PRESSURE = Path("/proc/pressure/cpu")
SEEDS: Mapping[int, int] = {16: 400, 256: 40, 4096: 4}
"""Clusters by number of nodes, for each fault and number of bad nodes."""
BAD: Mapping[int, tuple[int, ...]] = {16: (1, 3), 256: (1, 3, 16), 4096: (1, 3, 256)}
"""Numbers of bad nodes by number of nodes."""
MEMORY = frozenset({Resource.MEMORY_BANDWIDTH})
FAULTS: Mapping[str, Callable[[random.Random], Fault]] = {
    "slow CPU": lambda draw: Fault(COMPUTE, draw.uniform(0.25, 0.6)),
    "slow memory": lambda draw: Fault(MEMORY, draw.uniform(0.2, 0.55)),
    "slow network": lambda draw: Fault(NETWORK, draw.uniform(0.05, 0.3)),
    "dead": lambda draw: Fault(dead_from=draw.choice([0, 1])),
}
"""The rest of the speed, or the round from which the node is silent."""
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


def parts(trials: int) -> Iterator[Line]:
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
    with waiting() as share:
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


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the share of the block's time so far in which a task waited."""
    begin, before = time.monotonic(), _waited()
    yield lambda: round((_waited() - before) / max(1e-6, time.monotonic() - begin), 3)


def _waited() -> float:
    if not _PRESSURE.exists():
        return 0.0
    first = _PRESSURE.read_text(encoding="ascii").splitlines()[0]
    return int(first.rpartition("total=")[2]) / 1e6


def clusters(least: int = 1) -> Iterator[Line]:
    """Judge all clusters; yield a line for each size, fault and number of bad nodes.

    Args:
        least: Divides the number of seeds, for a short run.
    """
    for size, seeds in SEEDS.items():
        count = max(1, seeds // least)
        yield _tally(size, "none", 0, count)
        for fault in FAULTS:
            for bad in BAD[size]:
                yield _tally(size, fault, bad, count)


def _tally(size: int, fault: str, bad: int, seeds: int) -> Line:
    named = wrong = 0
    rounds = list[tuple[int, int]]()
    for seed in range(seeds):
        dice = random.Random(f"{size} {fault} {bad} {seed}")
        planted = {
            f"n{at}": FAULTS[fault](dice) for at in (dice.sample(range(size), bad) if bad else ())
        }
        cluster = Cluster(size, planted, seed)
        check = cluster.check()
        found = set(judge(check).bad())
        named += len(found & planted.keys())
        wrong += len(found - planted.keys())
        rounds.append((len(cluster.rounds) - check.pair_rounds, check.pair_rounds))
    return {
        "what": "simulated",
        "nodes": size,
        "fault": fault,
        "clusters": seeds,
        "bad": bad * seeds,
        "named": named,
        "healthy": (size - bad) * seeds,
        "wrong": wrong,
        "alone_rounds": max(alone for alone, _ in rounds),
        "pair_rounds": max(pairs for _, pairs in rounds),
    }
