"""What `job.step(n, samples=…, loss=…)` costs a training loop: median and spread.

`python bench/sdk_step.py` prints nanoseconds of CPU time per call (so that other processes on the
machine do not count), the loop's own cost taken off, with a page and a lease as under an agent,
for an idle rank and for one that has an arm ahead. The bar is 2 µs.
"""

from __future__ import annotations

import json
import os
import statistics
import time

from holdfast.environment import Environment
from holdfast.job import Job
from holdfast.page import Page
from holdfast.slot import SlotWriter

CALLS = 20_000
REPEATS = 50
BAR_NS = 2000


def loop_ns(job: Job, first: int) -> float:
    """Return CPU nanoseconds per call of `job.step` with everything given."""
    begun = time.thread_time_ns()
    for n in range(first, first + CALLS):
        job.step(n, samples=32, loss=0.5)
    return (time.thread_time_ns() - begun) / CALLS


def empty_ns() -> float:
    """Return CPU nanoseconds per turn of the loop around it."""
    begun = time.thread_time_ns()
    for _n in range(CALLS):
        pass
    return (time.thread_time_ns() - begun) / CALLS


def measure(page: Page, *, agent: bool, armed: bool = False) -> dict[str, float]:
    """Return median, 10th and 90th percentile and maximum over the repeats, in ns."""
    page.reset(0, 1)
    job = Job(Environment(), SlotWriter(page, 0, 1) if agent else None)
    if armed:
        page.arm(0, 1, 2**60)
    costs = []
    for repeat in range(REPEATS):
        page.begin_lease(time.monotonic_ns())
        costs.append(loop_ns(job, 1 + repeat * CALLS) - empty_ns())
    tenths = statistics.quantiles(costs, n=10)
    return {
        "median": round(statistics.median(costs)),
        "p10": round(tenths[0]),
        "p90": round(tenths[-1]),
        "max": round(max(costs)),
    }


def main() -> None:
    """Measure and print one JSON line per case."""
    page = Page.create(1)
    cases = {
        "with agent": measure(page, agent=True),
        "with agent, armed": measure(page, agent=True, armed=True),
        "without agent": measure(page, agent=False),
    }
    for name, costs in cases.items():
        print(json.dumps({"case": name, "unit": "ns per step", **costs}))
    worst = max(costs["median"] for costs in cases.values())
    print(f"bar: {BAR_NS} ns, worst median: {worst:.0f} ns")
    os.close(page.fd)


if __name__ == "__main__":
    main()
