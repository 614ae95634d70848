"""Runs random seeds for as long as it is told, then says what was covered: `make soak`.

Fails at once on a broken invariant, with its shrunk scenario; at the end on a reachable pair of
phase and input, or step of the state machine, that no run has come to. Each process takes every
n-th seed; the first seed is printed and can be given.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

from simulation.coverage import Coverage
from simulation.run import run
from simulation.scenario import acting, ailing, announced, draw
from simulation.shrink import report

LOG_SECONDS = 60.0
LARGE_EVERY = 50
"""Each so many seeds one is of a hundred nodes."""
AILING_EVERY = 10
"""Each so many seeds one is of slow and hanging nodes, which takes as long as five others. In every
second one of them masters act."""
NOTICED = 3
"""Remainder of the seeds whose evictions a cloud announces."""

Seen = tuple[int, Counter[tuple[str, str]], Counter[tuple[str, str]], str]


def soak(first: int, step: int, until: float) -> Seen:
    """Run every `step`-th seed from `first` until a monotonic time or the first failure."""
    coverage, runs, seed, told = Coverage(), 0, first, time.monotonic()
    with coverage.steps_counted():
        while time.monotonic() < until:
            nodes = 100 if seed % LARGE_EVERY == 0 else None
            scenario = draw(seed, nodes=nodes)
            ill = seed % AILING_EVERY == 1 and nodes is None
            if ill:
                scenario = acting(scenario) if seed % (2 * AILING_EVERY) == 1 else ailing(scenario)
            elif seed % AILING_EVERY == NOTICED:
                scenario = announced(scenario)
            outcome = run(scenario)
            coverage.add(outcome.seen)
            runs, seed = runs + 1, seed + step
            if not outcome.ok:
                return runs, coverage.pairs, coverage.steps, report(outcome)
            if time.monotonic() - told > LOG_SECONDS:
                told = time.monotonic()
                print(f"{runs} runs, at seed {seed}: {coverage.summary()}", flush=True)
    return runs, coverage.pairs, coverage.steps, ""


def _soak(work: tuple[int, int, float]) -> Seen:
    return soak(*work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m campaigns.soak", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=120.0)
    parser.add_argument("--processes", type=_count, default=2)
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="first seed")
    parser.add_argument("--record", type=_file, help="add what came of it to a file of JSON lines")
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not (math.isfinite(minutes) and minutes > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: use minutes, more than 0")
    return minutes


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a whole number from 1")
    return int(text)


def _file(text: str) -> Path:
    if not Path(text).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such directory; make it first")
    return Path(text)


def main() -> int:
    """Run on all cores that are given; return the exit code."""
    options = _parser().parse_args()
    print(f"soak: seeds from {options.first}, {options.minutes:g} minutes", flush=True)
    until = time.monotonic() + options.minutes * 60
    work = [(options.first + n, options.processes, until) for n in range(options.processes)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        found = []
        for one in pool.imap_unordered(_soak, work):
            found.append(one)
            if one[-1]:
                break  # what the others have seen is of no interest any more
    coverage = Coverage()
    for _, pairs, steps, _ in found:
        coverage.pairs += pairs
        coverage.steps += steps
    runs = sum(runs for runs, *_ in found)
    print(f"soak: {runs} runs; {coverage.summary()}")
    failures = [failure for *_, failure in found if failure]
    if not failures:
        failures += [f"unreached: {phase} × {what}" for phase, what in coverage.missing()]
    failures += [f"impossible: {phase} × {what}" for phase, what in coverage.impossible()]
    # Before the record: hours of work are worth more than a file that cannot be written.
    print("\n\n".join(failures) or "soak: every invariant held, every reachable pair was reached")
    if options.record is not None:
        said = {"what": "soak", "minutes": options.minutes, "first": options.first, "runs": runs}
        said |= {"summary": coverage.summary(), "failures": len(failures)}
        with options.record.open("a") as out:
            out.write(json.dumps(said) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
