"""CPU time of `job.step(n, samples=…, loss=…)` in a training loop.

CPU time of the calling thread, so that other processes on the machine do not count, with the
loop's own cost taken off: for a rank under an agent (page and lease), for one that has a barrier
ahead (armed), and for a script that runs without an agent.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from bench.overhead.results import SdkCost
from holdfast.environment import Environment
from holdfast.job import Job
from holdfast.page import Page
from holdfast.page_slot import SlotWriter

CALLS = 20_000
REPEATS = 50


def measure(add: Callable[[SdkCost], None]) -> None:
    """Measure the three cases."""
    page = Page.create(1)
    try:
        add(_cost(page, "under an agent"))
        add(_cost(page, "under an agent, a barrier ahead", armed=True))
        add(_cost(page, "without an agent", agent=False))
    finally:
        os.close(page.fd)


def _cost(page: Page, case: str, *, agent: bool = True, armed: bool = False) -> SdkCost:
    page.reset(0, 1)
    job = Job(Environment(), SlotWriter(page, 0, 1) if agent else None)
    if armed:
        page.set_barrier(0, 1, 2**60)
    costs = []
    for repeat in range(REPEATS):
        page.begin_lease(time.monotonic_ns())
        costs.append(_loop_ns(job, 1 + repeat * CALLS) - _empty_ns())
    tenths = statistics.quantiles(costs, n=10)
    return SdkCost(case, statistics.median(costs), tenths[0], tenths[-1], max(costs))


def _loop_ns(job: Job, first: int) -> float:
    """Return CPU nanoseconds per call of `job.step` with everything given."""
    begun = time.thread_time_ns()
    for n in range(first, first + CALLS):
        job.step(n, samples=32, loss=0.5)
    return (time.thread_time_ns() - begun) / CALLS


def _empty_ns() -> float:
    """Return CPU nanoseconds per turn of the loop around it."""
    begun = time.thread_time_ns()
    for _n in range(CALLS):
        pass
    return (time.thread_time_ns() - begun) / CALLS
