"""Ordinary jobs under Report and under Act: what acting on stragglers and hangs costs, and gains.

Run as a script: `act_or_report.py --jobs 200` simulates that many jobs without a fault, and as many
with one, each of them twice, by the master's own rules. It prints both sums of node-seconds. It
fails where a job without a fault had an action, or where the others cost more under Act.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from simulation.ordinary.habits import Trouble, draw
from simulation.ordinary.job import Comparison, compare


def faultless(seed: int) -> Comparison:
    """Compare the job of a seed that has no fault."""
    return compare(draw(seed))


def faulty(seed: int) -> Comparison:
    """Compare the job of a seed that has one."""
    return compare(draw(seed, troubled=True))


def judged(quiet: Sequence[Comparison], ill: Sequence[Comparison]) -> list[str]:
    """Return what must not be, as texts; none: Act was never worse."""
    faults = [
        f"seed {one.habits.seed}, without a fault: {dict(one.act.actions)}: {one.act.said[:2]}"
        for one in quiet
        if one.act.actions
    ]
    report, act = _sums(ill)
    if act > report:
        faults.append(f"with a fault Act cost {act:.0f} node-seconds, Report {report:.0f}")
    return faults


def summary(name: str, found: Sequence[Comparison]) -> str:
    """Return both sums of some jobs, the actions, and the job that lost most by them."""
    report, act = _sums(found)
    actions = sum((one.act.actions for one in found), Counter[str]())
    worst = max(found, key=lambda one: one.more, default=None)
    said = f"{name}: {len(found)} jobs, Report {report:.0f}, Act {act:.0f} node-seconds"
    said += f" ({100 * (act / report - 1):+.1f} %), actions {dict(actions) or 'none'}"
    unended = sum(not one.report.ended for one in found), sum(not one.act.ended for one in found)
    said += f", given up {unended[0]} and {unended[1]}"
    if worst is not None and worst.more > 0:
        said += f"; worst seed {worst.habits.seed}: {worst.more:+.0f}"
    return said


def _sums(found: Iterable[Comparison]) -> tuple[float, float]:
    there = list(found)
    return (
        math.fsum(one.report.node_seconds for one in there),
        math.fsum(one.act.node_seconds for one in there),
    )


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.jobs)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        quiet = list(pool.imap(faultless, seeds, chunksize=5))
        print(summary("without a fault", quiet), flush=True)
        ill = list(pool.imap(faulty, seeds, chunksize=5))
    for trouble in Trouble:
        some = [one for one in ill if one.habits.trouble is trouble]
        if some:
            print(summary(trouble.value, some))
    print(summary("with a fault", ill))
    faults = judged(quiet, ill)
    print("\n".join(faults) or "Act was never worse")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
