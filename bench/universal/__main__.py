"""``python -m bench.universal``: time saves, loads and reshaping, write the results, show the page.

Each world is a run of its own; the ways that are compared take turns inside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import machine, record
from bench.universal.page import page
from bench.universal.results import from_line
from bench.universal.worlds import WorldError, run

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world: the script that its ranks run, and the words that it gets."""

    script: str
    ranks: int
    words: tuple[str, ...]


def zero(stage: int, ranks: int, act: str, case: str) -> World:
    """Return a world of DeepSpeed engines."""
    words = ("--stage", str(stage), "--act", act, "--case", case)
    return World(script="zero_rank.py", ranks=ranks, words=words)


def worlds(stage: int) -> list[World]:
    """Return the worlds of one saved state, in their order."""
    case = f"ZeRO-{stage}, 4 ranks"
    return [
        zero(stage, 4, "save", case),
        zero(stage, 4, "load", case),
        *(zero(stage, ranks, act, case) for ranks in (2, 3) for act in ("reshape", "universal")),
        # DeepSpeed's universal files of one of these stages do not load in the other.
        zero(2 if stage == 3 else 3, 2, "reshape", case),
    ]


def _page(lines: Iterable[str]) -> str:
    return page(*record.read(lines, from_line))


RECORD = record.Record("universal", _page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = RECORD.parser(__doc__)
    parser.add_argument("--turns", type=int, default=5, help="of each comparison")
    parser.add_argument("--width", type=int, default=1024, help="of a layer")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3], help="that save")
    options = parser.parse_args(arguments)
    if options.page_of:
        return RECORD.show(options)
    return RECORD.make(options, lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    left_out: dict[str, str] = {}
    about = machine.about("record", left_out)
    with record.written(options.out, about) as add:
        for stage in options.stages:
            with tempfile.TemporaryDirectory() as folder:
                for world in worlds(stage):
                    for line in _measured(world, options, Path(folder)):
                        add(json.dumps(line))
                        print(json.dumps(line), flush=True)


def _measured(world: World, options: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    words = [*world.words, "--folder", str(folder), "--turns", str(options.turns)]
    words += ["--width", str(options.width), "--layers", str(options.layers)]
    try:
        return run(HERE / world.script, world.ranks, words, folder / "log.jsonl")
    except WorldError as error:
        print(f"bench.universal: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    finally:
        shutil.rmtree(folder / "universal", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
