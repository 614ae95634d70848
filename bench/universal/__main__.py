"""``python -m bench.universal``: time saves, loads and reshaping, write the results, show the page.

Each world is a run of its own; the ways that are compared take turns, in an order drawn by a seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.harness import record
from bench.universal.page import page_of
from bench.universal.plan import State, megatron, run, worlds, zero
from bench.universal.results import Timed

BENCH = record.Bench("universal", page_of, Timed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--turns", type=int, default=5, help="of each comparison")
    parser.add_argument("--width", type=int, default=1024, help="of a layer")
    parser.add_argument(
        "--layers", type=int, default=28, help="squares of the width; a layer of the GPT has 7"
    )
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 3], help="of ZeRO, that save")
    parser.add_argument(
        "--tensor", type=int, nargs="*", default=[1, 2], help="of Megatron, of the 4 ranks"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order in a turn")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    states = [*map(megatron, options.tensor), *map(zero, options.stages)]
    with record.recording(
        options.out,
        {},
        seed=options.seed,
        deepspeed=metadata.version("deepspeed"),
        megatron=metadata.version("megatron-core"),
    ) as note:
        for state in states:
            with tempfile.TemporaryDirectory() as folder:
                for line in _measured(state, options, Path(folder)):
                    note(line)


def _measured(state: State, options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    given = {name: getattr(options, name) for name in ("turns", "width", "layers", "seed")}
    given["folder"] = str(folder)
    for world in worlds(state, options.turns, options.seed):
        _read(folder)
        yield from run(world, given, folder / "log.jsonl")


def _read(folder: Path) -> None:
    """Read all files of a state once, so that they are in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(2**24):
                    pass


if __name__ == "__main__":
    sys.exit(main())
