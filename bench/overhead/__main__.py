"""``python -m bench.overhead``: measure, write the results, show or publish the page."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import machine, record
from bench.overhead import sdk, step
from bench.overhead.page import page
from bench.overhead.results import SdkCost, Trial, from_line


def _page(lines: Iterable[str]) -> str:
    return page(*record.read(lines, from_line))


RECORD = record.Record("overhead", _page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = RECORD.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="of runs, one under each launcher")
    parser.add_argument("--steps", type=int, default=500, help="of each run")
    options = parser.parse_args(arguments)
    if options.page_of:
        return RECORD.show(options)
    return RECORD.make(options, lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    about = machine.about("record", {})
    with record.written(options.out, about) as add, tempfile.TemporaryDirectory() as folder:

        def note(result: SdkCost | Trial) -> None:
            line = record.to_line(result)
            add(line)
            print(line, flush=True)

        sdk.measure(note)
        step.measure(options.pairs, options.steps, Path(folder), note)


if __name__ == "__main__":
    sys.exit(main())
