"""``python -m bench.start``: time until a small script's first collective, beside torchrun.

Read from the ranks' own clock, which is the launcher's: both are processes of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness import launch, machine, page, record
from bench.harness.launch import HOLDFAST, LAUNCHERS, TORCHRUN

SCRIPT = Path(__file__).with_name("script.py")
TIMEOUT_SECONDS = 120.0
BAR = 0.7


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """One start under one launcher."""

    launcher: str
    ranks: int
    pair: int
    first_collective_s: float
    """Seconds from the start of the launcher's process until the last rank had the sum."""
    over_s: float
    """Seconds until the launcher's process had ended."""
    load: float
    """Load average of the last minute, at the end."""


def page_of(about: Mapping[str, Any], results: Sequence[ScriptStart]) -> str:
    """Return the page's text."""
    head = ("ranks", "launcher", "starts", "first collective, s", "ended, s", "× torchrun", "bar")
    rows = []
    for ranks in sorted({one.ranks for one in results}):
        mine = [one for one in results if one.ranks == ranks]
        ratios = pair_ratios(mine)
        bar = f"≤ {BAR}: {page.kept(median(ratios) <= BAR)}"
        rows += [_row(TORCHRUN, mine, "1", ""), _row(HOLDFAST, mine, page.spread(ratios), bar)]
    said = f"{machine.sentence(about)} Load average {page.load_range(results)}."
    return page.fill("start/page", run=said, table=page.table(head, rows))


def _row(launcher: str, results: Sequence[ScriptStart], ratio: str, bar: str) -> list[str]:
    mine = [one for one in results if one.launcher == launcher]
    first = page.spread([one.first_collective_s for one in mine])
    over = page.spread([one.over_s for one in mine])
    return [str(mine[0].ranks), launcher, str(len(mine)), first, over, ratio, bar]


def pair_ratios(results: Sequence[ScriptStart]) -> list[float]:
    """Return, for each pair, our time to the first collective over torchrun's."""
    values = ((one.pair, one.launcher, one.first_collective_s) for one in results)
    return page.turn_ratios(values, HOLDFAST, TORCHRUN)


BENCH = record.Bench("start", page_of, ScriptStart)


def measure(pairs: int, ranks: int, folder: Path, note: record.Note) -> None:
    """Start the script in pairs, one under each launcher; each pair begins with the other one."""
    for launcher in LAUNCHERS:
        _start(launcher, ranks, -1, folder)  # bytecode and the page cache, for both alike
    for pair in range(pairs):
        for launcher in sorted(LAUNCHERS, reverse=bool(pair % 2)):
            note(_start(launcher, ranks, pair, folder))


def _start(launcher: str, ranks: int, pair: int, folder: Path) -> ScriptStart:
    log = folder / f"{launcher}.{ranks}.{pair}.jsonl"
    words = [*LAUNCHERS[launcher], f"--nproc-per-node={ranks}", str(SCRIPT), str(log)]
    begun = time.monotonic()
    launch.said([sys.executable, *words], launcher, TIMEOUT_SECONDS)
    over = time.monotonic()
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if [line["sum"] for line in lines] != [ranks] * ranks:
        raise RuntimeError(f"{launcher}: expected {ranks} sums over {ranks} ranks, found {lines}")
    return ScriptStart(
        launcher=launcher,
        ranks=ranks,
        pair=pair,
        first_collective_s=max(line["moment"] for line in lines) - begun,
        over_s=over - begun,
        load=os.getloadavg()[0],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="of starts, one by each launcher")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="of the node")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    with record.recording(options.out, {}) as note, tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            measure(options.pairs, ranks, Path(folder), note)


if __name__ == "__main__":
    sys.exit(main())
