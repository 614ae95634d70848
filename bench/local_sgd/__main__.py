"""``python -m bench.local_sgd``: run the rows, write the results, show the page.

Each world is a run of its own. The ways that are compared take turns in it, in an order drawn by a
seed. Rows that want networks are left out, by name, where the machine gives none.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness import record
from bench.local_sgd import elastic, torchft_ways
from bench.local_sgd import results as r
from bench.local_sgd.page import page_of
from bench.local_sgd.plan import without, worlds
from bench.local_sgd.worlds import NetworkError, run

_PORT: Final = 29_650
_ELASTIC: Final = ("losses", "grow", "kills")


BENCH = record.Bench("local_sgd", page_of, r.Measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--rows", nargs="*", choices=r.ROWS, default=list(r.ROWS))
    parser.add_argument("--turns", type=int, default=3, help="of each comparison; seeds of losses")
    parser.add_argument("--first-turn", type=int, default=0, help="where a run is made in parts")
    parser.add_argument("--seed", type=int, default=1, help="of the order in a turn")
    parser.add_argument("--elastic", nargs="*", choices=_ELASTIC, default=list(_ELASTIC))
    parser.add_argument("--kill-seconds", type=float, default=600.0, help="of the row of kills")
    parser.add_argument(
        "--with", dest="earlier", type=Path, nargs="*", default=[],
        help="results files of the same commit whose rows are added to the page",
    )  # fmt: skip
    parser.add_argument("--remark", default="", help="a sentence about the run, for the page")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    facts = {"seed": options.seed, "torchft": torchft_ways.version(), "remark": options.remark}
    facts = {name: one for name, one in facts.items() if one}
    with record.recording(options.out, {}, **facts) as note:
        for earlier in options.earlier:
            for line in earlier.read_text().splitlines()[1:]:
                note(line, "")
        for found in itertools.chain(_worlds(options), _elastic(options)):
            for one in found:
                note(one)


def _turns(options: argparse.Namespace) -> range:
    return range(options.first_turn, options.first_turn + options.turns)


def _worlds(options: argparse.Namespace) -> Iterator[Iterable[Any]]:
    if left_out := torchft_ways.missing():
        print(f"bench.local_sgd: torchft's ways are left out: {left_out}", file=sys.stderr)
    for number, world in enumerate(worlds(tuple(options.rows), _turns(options), options.seed)):
        whole = without(world, "torchft") if left_out else world
        try:
            yield run(whole, _PORT + 100 * options.first_turn + number)
        except NetworkError as error:
            said = f"bench.local_sgd: {world.row}, {world.group} is left out: {error}"
            print(said, file=sys.stderr)


def _elastic(options: argparse.Namespace) -> Iterator[Iterable[Any]]:
    groups: Mapping[str, Callable[[int], Iterator[tuple[str, elastic.Values]]]] = {
        "losses": elastic.losses,
        "grow": elastic.grow,
        "kills": functools.partial(elastic.kills, seconds=options.kill_seconds),
    }
    wanted = options.elastic if r.ELASTIC in options.rows else ()
    for turn, group in itertools.product(_turns(options), wanted):
        if group != "kills" or turn == options.first_turn:  # once: it is as long as all else
            for way, values in groups[group](options.seed + turn):
                load = os.getloadavg()[0]
                key = {"row": r.ELASTIC, "group": group, "way": way, "turn": turn}
                yield [r.Measured(**key, values=values, load=load)]


if __name__ == "__main__":
    sys.exit(main())
