"""``PYTHONPATH=tests/support python -m bench.simulation``: how fast it is, and what it finds.

Judges the control plane's promises that need no network: seeds per minute, the time of the suite's
2,000 seeds, a world of 10,000 nodes, and how soon each planted bug is found. One core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import page, record
from bench.harness.record import Line
from simulation.crowd import told_seconds
from simulation.planted.bugs import BUGS, planted
from simulation.run import run
from simulation.scenario import draw
from simulation.shrink import report

SEEDS = 2_000
"""Of the suite."""
PARTS = 10
"""Windows of the rate: their spread is shown."""
PART_SEEDS = 30
NODES, FAULTS = 16, 30
CROWD = 10_000
CROWDS = 10
LIMIT_SECONDS = 120.0
"""Seconds in which a planted bug must be found."""


def _live(seed: int, **sizes: int) -> None:
    """Run a seed; one that breaks an invariant ends everything, with its smallest scenario."""
    outcome = run(draw(seed, **sizes))
    if not outcome.ok:
        raise SystemExit(report(outcome))


def rate() -> Iterator[Line]:
    """Measure seeds per minute of 16 nodes with 30 faults each."""
    rates = []
    for part in range(PARTS):
        begin = time.monotonic()
        for seed in range(part * PART_SEEDS, (part + 1) * PART_SEEDS):
            _live(seed, nodes=NODES, faults=FAULTS)
        rates.append(60 * PART_SEEDS / (time.monotonic() - begin))
    yield {"what": "rate", "per_minute": rates}


def suite() -> Iterator[Line]:
    """Measure the suite's seeds."""
    begin = time.monotonic()
    for seed in range(SEEDS):
        _live(seed)
    yield {"what": "suite", "seeds": SEEDS, "seconds": time.monotonic() - begin}


def crowd() -> Iterator[Line]:
    """Measure a world of 10,000."""
    yield {"what": "crowd", "nodes": CROWD, "seconds": [told_seconds(CROWD) for _ in range(CROWDS)]}


def bugs() -> Iterator[Line]:
    """Plant each bug, and look for it on the suite's own seeds."""
    for name, bug in BUGS.items():
        begin, seed = time.monotonic(), 0
        with planted(bug):
            while (outcome := run(bug.draw(seed))).ok and time.monotonic() - begin < LIMIT_SECONDS:
                seed += 1
        spent = time.monotonic() - begin
        yield {
            "what": "bug",
            "name": name,
            "text": bug.what,
            "seed": seed,
            "seconds": spent,
            "found": not outcome.ok,
        }


_FACTS = ("date", "commit", "cores", "cpu", "memory_gib", "kernel", "python")
"""Of the machine, that the page names."""


def page_of(about: Mapping[str, Any], results: Sequence[Line]) -> str:
    """Return the page of a run."""
    found = [one for one in results if one["what"] == "bug"]
    rows = "\n".join(
        f"| {one['name']} | {one['text']} | {one['seed']} | {one['seconds']:.1f} |"
        for one in sorted(found, key=lambda one: one["seconds"])
    )
    promises = "\n".join(_promises(results, found))
    facts = {name: str(about[name]) for name in _FACTS}
    return page.fill("simulation", promises=promises, rows=rows, **facts)


def _promises(results: Sequence[Line], found: Sequence[Line]) -> Iterator[str]:
    by = {one["what"]: one for one in results}
    if "rate" in by:
        yield _row(
            "seeds per minute, 16 nodes, 30 faults each", "≥ 1,000", by["rate"]["per_minute"]
        )
    if "suite" in by:
        yield _row("the suite's 2,000 seeds, s", "≤ 120", [by["suite"]["seconds"]])
    if "crowd" in by:
        what = "a failure among 10,000 nodes decided and delivered, s"
        yield _row(what, "≤ 1", by["crowd"]["seconds"])
    if found:
        count = sum(one["found"] for one in found)
        yield f"| planted bugs found | all | {count} of {len(found)} |"
        yield _row("… each within, s", "≤ 120", [one["seconds"] for one in found])
    for one in results:
        if one["what"] == "soak":
            yield (
                f"| {one['minutes']:g} minutes of random seeds from {one['first']} on "
                f"| nothing found, every reachable pair reached "
                f"| {one['runs']:,} runs; {one['summary']}; {one['failures']} findings |"
            )


def _row(what: str, must: str, values: Sequence[float]) -> str:
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    digits = 0 if middle >= 100 else 2
    spread = f" ({ordered[0]:,.{digits}f}–{ordered[-1]:,.{digits}f})" if len(ordered) > 1 else ""
    return f"| {what} | {must} | {middle:,.{digits}f}{spread} |"


BENCH = record.Bench("simulation", page_of)
_PARTS: dict[str, Callable[[], Iterator[Line]]] = {
    "rate": rate,
    "suite": suite,
    "crowd": crowd,
    "bugs": bugs,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--parts", default=",".join(_PARTS), help="what to measure")
    parser.add_argument("--soak", type=Path, help="what `python -m soak --record` has written")
    return BENCH.main(parser.parse_args(arguments), _measure)


def _measure(options: argparse.Namespace) -> None:
    with record.recording(options.out, [], plan="simulation") as note:
        for line in options.soak.read_text().splitlines() if options.soak else []:
            note(line, "")
        for name in options.parts.split(","):
            for result in _PARTS[name]():
                note(result)


if __name__ == "__main__":
    sys.exit(main())
