"""``python -m bench.start``: time the start of a script, write the results, show the page."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import machine, record
from bench.start.measure import Start, from_line, measure
from bench.start.page import page


def _page(lines: Iterable[str]) -> str:
    return page(*record.read(lines, from_line))


RECORD = record.Record("start", _page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = RECORD.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="of starts, one by each launcher")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="of the node")
    options = parser.parse_args(arguments)
    if options.page_of:
        return RECORD.show(options)
    return RECORD.make(options, lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    about = machine.about("record", {})
    with record.written(options.out, about) as add, tempfile.TemporaryDirectory() as folder:

        def note(result: Start) -> None:
            line = record.to_line(result)
            add(line)
            print(line, flush=True)

        for ranks in options.ranks:
            measure(options.pairs, ranks, Path(folder), note)


if __name__ == "__main__":
    sys.exit(main())
