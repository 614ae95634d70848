"""The page of a results file. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import machine
from bench.recovery.report import table
from bench.universal.results import COPY, FLASH, Timed

_INTRO = """\
# Saves, loads and reshaping of DeepSpeed's and Megatron's state

Generated from [universal.jsonl](universal.jsonl) by `python -m bench.universal --publish`.

Real engines and optimizers on CPU with gloo, one thread a rank. The ways take turns in one world;
of a call the slowest rank counts. × is a call's time over Holdfast's of the same turn, median and
range: above 1 Holdfast is faster. A save's time is what training waits. Loads read files that are
in the page cache. A collective is a call of a function of `torch.distributed` in Holdfast's save.
"""


def page(about: Mapping[str, Any], results: Sequence[Timed]) -> str:
    """Return the page's text."""
    head = ("case", "MiB", "system", "calls", "s", "× Holdfast")
    rows = []
    for case in dict.fromkeys(one.case for one in results):
        mine = [one for one in results if one.case == case]
        rows += [_row(case, mine, system) for system in dict.fromkeys(one.system for one in mine)]
    load = [one.load for one in results] or [0.0]
    said = f"{machine.sentence(about)} Load average {min(load):.1f}–{max(load):.1f}.\n"
    return "\n".join([_INTRO, said, table(head, rows), "", _copies(results), _collectives(results)])


def _row(case: str, results: Sequence[Timed], system: str) -> list[str]:
    mine = [one for one in results if one.system == system]
    ratio = "1" if system == FLASH else _spread(ratios(results, system, FLASH))
    seconds = _spread([one.seconds for one in mine])
    return [case, f"{mine[0].mib:.0f}", system, str(len(mine)), seconds, ratio]


def ratios(results: Sequence[Timed], system: str, other: str) -> list[float]:
    """Return, for each turn of one case, a system's time over another's."""
    turns: dict[int, dict[str, float]] = {}
    for one in results:
        turns.setdefault(one.turn, {})[one.system] = one.seconds
    return [turn[system] / turn[other] for turn in turns.values() if {system, other} <= turn.keys()]


def _copies(results: Sequence[Timed]) -> str:
    lines = []
    for case in dict.fromkeys(one.case for one in results if one.system == COPY):
        mine = [one for one in results if one.case == case]
        found = ratios(mine, FLASH, COPY)
        lines.append(f"{case}: Holdfast takes {_spread(found)} of the streaming copy.")
    return "\n".join(lines)


def _collectives(results: Sequence[Timed]) -> str:
    found = [one.collectives for one in results if one.collectives >= 0]
    return f"\nCollectives in {len(found)} saves: {sum(found)}.\n" if found else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"
