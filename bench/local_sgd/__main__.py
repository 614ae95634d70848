"""``python -m bench.local_sgd``: run the rows, write the results, show the page.

Each world is a run of its own. The ways that are compared take turns in it, in an order drawn by a
seed. Rows that want networks are left out, by name, where the machine gives none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench import machine, record
from bench.local_sgd import results as r
from bench.local_sgd.network import NetworkError
from bench.local_sgd.page import page
from bench.local_sgd.plan import worlds
from bench.local_sgd.worlds import WorldError, run

_PORT: Final = 29_650


def _page(lines: Iterable[str]) -> str:
    return page(*record.read(lines, r.from_line))


RECORD = record.Record("local_sgd", _page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = RECORD.parser(__doc__)
    parser.add_argument("--rows", nargs="*", choices=r.ROWS, default=list(r.ROWS))
    parser.add_argument("--turns", type=int, default=3, help="of each comparison; seeds of losses")
    parser.add_argument("--seed", type=int, default=1, help="of the order in a turn")
    parser.add_argument(
        "--with", dest="earlier", type=Path, nargs="*", default=[],
        help="results files of the same commit whose rows are added to the page",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.page_of:
        return RECORD.show(options)
    return RECORD.make(options, lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    about = machine.about("record", {}) | {"seed": options.seed}
    with record.written(options.out, about) as add:
        for earlier in options.earlier:
            for line in earlier.read_text().splitlines()[1:]:
                add(line)
        for number, world in enumerate(worlds(tuple(options.rows), options.turns, options.seed)):
            try:
                found = run(world, _PORT + number)
            except NetworkError as error:
                said = f"bench.local_sgd: {world.row}, {world.group} is left out: {error}"
                print(said, file=sys.stderr)
                continue
            except WorldError as error:
                print(f"bench.local_sgd: {error}", file=sys.stderr)
                raise SystemExit(1) from error
            for line in map(json.dumps, found):
                add(line)
                print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
