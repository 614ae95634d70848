"""The page of a results file. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import machine
from bench.overhead.step import HOLDFAST, TORCHRUN
from bench.recovery.report import table
from bench.start.measure import Start

BAR = 0.7

_INTRO = """\
# How soon a script starts

Generated from [start.jsonl](start.jsonl) by `python -m bench.start --publish`.

From the start of the launcher's process to the end of the script's first `all_reduce` on every
rank: one node, gloo, the default options, in turns under `torchrun --standalone` and under
`holdfast-run`, which starts a job master of its own. A script that imports no more than torch.
"""


def page(about: Mapping[str, Any], results: Sequence[Start]) -> str:
    """Return the page's text."""
    head = ("ranks", "launcher", "starts", "first collective, s", "ended, s", "× torchrun", "bar")
    rows = []
    for ranks in sorted({one.ranks for one in results}):
        mine = [one for one in results if one.ranks == ranks]
        rows += [_row(TORCHRUN, mine, "1", ""), _row(HOLDFAST, mine, *_judged(mine))]
    load = [one.load for one in results]
    said = f"{machine.sentence(about)} Load average {min(load):.1f}–{max(load):.1f}.\n"
    return "\n".join([_INTRO, said, table(head, rows)])


def _row(launcher: str, results: Sequence[Start], ratio: str, bar: str) -> list[str]:
    mine = [one for one in results if one.launcher == launcher]
    first = _spread([one.first_collective_s for one in mine])
    over = _spread([one.over_s for one in mine])
    return [str(mine[0].ranks), launcher, str(len(mine)), first, over, ratio, bar]


def _judged(results: Sequence[Start]) -> tuple[str, str]:
    ratios = pair_ratios(results)
    held = "yes" if statistics.median(ratios) <= BAR else "**no**"
    return _spread(ratios), f"≤ {BAR}: {held}"


def pair_ratios(results: Sequence[Start]) -> list[float]:
    """Return, for each pair, our time to the first collective over torchrun's."""
    by_pair: dict[int, dict[str, float]] = {}
    for one in results:
        by_pair.setdefault(one.pair, {})[one.launcher] = one.first_collective_s
    return [pair[HOLDFAST] / pair[TORCHRUN] for pair in by_pair.values() if len(pair) == 2]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"
