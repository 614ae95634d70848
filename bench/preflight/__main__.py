"""``PYTHONPATH=tests/support python -m bench.preflight``: who is named, and how soon (30 minutes).

Clusters from seeds, the parts of a check one by one, and real agents on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence

from bench.harness import record
from bench.harness.record import Line
from bench.preflight import checks, nodes
from bench.preflight.page import page_of

TRIALS = 5
"""Of each number of nodes and each fault."""
PARTS = 7
KINDS = ("part", "simulated", "real")


BENCH = record.Bench("preflight", page_of)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of real nodes, each kind")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        help="measure these; the results of the others stay in the results file",
    )
    parser.add_argument("--fewer", type=int, default=1, help="divides the number of seeds")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    kept = _kept(options)
    with record.recording(options.out, [], plan="preflight") as note:
        for text in kept:
            note(text, "")
        for line in _lines(options):
            note({**line, "load": round(os.getloadavg()[0], 1)})


def _kept(options: argparse.Namespace) -> list[str]:
    """Return the lines of the results file that are not measured anew."""
    if not options.out.exists():
        return []
    lines = options.out.read_text().splitlines()[1:]
    return [text for text in lines if json.loads(text)["what"] not in options.only]


def _lines(options: argparse.Namespace) -> Iterator[Line]:
    if "part" in options.only:
        yield from checks.parts(PARTS)
    if "simulated" in options.only:
        yield from checks.clusters(options.fewer)
    if "real" in options.only:
        yield from nodes.lines(options.trials)


if __name__ == "__main__":
    sys.exit(main())
