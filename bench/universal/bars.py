"""Bars of saves and loads of framework state, and the judgement of a run by them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.universal import results as r
from bench.universal.results import Timed


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one promise by a run, for one saved state."""

    text: str
    state: str
    promised: str
    reached: str
    kept: bool


def ratios(results: Sequence[Timed], system: str, other: str) -> list[float]:
    """Return, for each turn of one act of one state, a system's time over another's."""
    turns: dict[int, dict[str, float]] = {}
    for one in results:
        turns.setdefault(one.turn, {})[one.system] = one.seconds
    return [turn[system] / turn[other] for turn in turns.values() if {system, other} <= turn.keys()]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return median and range in words."""
    if not values:
        return "–"
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def judge(results: Sequence[Timed]) -> list[Verdict]:
    """Hold the results against every promise; medians count."""
    megatron = [one for one in results if one.state.startswith("Megatron")]
    zero = [one for one in results if one.state.startswith("ZeRO")]
    return [
        *_at_most("a save stops training, × warm copy", megatron, r.SAVE, 1.1),
        *_below("… below a gather on rank 0 and torch.save", megatron, r.SAVE, r.GATHER, 20),
        *_no_collectives(megatron),
        *_below("load from storage, below torch.load", megatron, r.LOAD, r.TORCH, 3),
        *_at_most("load from memory, × warm copy", megatron, r.RESTART, 1.35),
        *_without_gather("… without Megatron's gather of the weights", megatron, 1.35),
        *_below("reshaping, below ds_to_universal and load", zero, r.RESHAPE, r.UNIVERSAL, 3),
    ]


def _cases(results: Sequence[Timed], act: str) -> dict[str, list[Timed]]:
    """Return the results of an act, or of all acts with that begin, by state and act."""
    found: dict[str, list[Timed]] = {}
    for one in results:
        if one.act == act or (act == r.RESHAPE and one.act.startswith(act)):
            name = one.state if one.act == act else f"{one.state}, {one.act}"
            found.setdefault(name, []).append(one)
    return found


def _verdicts(
    text: str,
    promised: str,
    cases: dict[str, list[float]],
    kept: Callable[[float], bool],
) -> list[Verdict]:
    return [
        Verdict(text, name, promised, spread(found), kept(statistics.median(found)))
        for name, found in cases.items()
        if found
    ]


def _at_most(text: str, results: Sequence[Timed], act: str, limit: float) -> list[Verdict]:
    cases = {name: ratios(mine, r.FLASH, r.COPY) for name, mine in _cases(results, act).items()}
    return _verdicts(text, f"≤ {limit:g}", cases, lambda found: found <= limit)


def _without_gather(text: str, results: Sequence[Timed], limit: float) -> list[Verdict]:
    """Judge loads from memory less what Megatron's own gather takes, which no copy has in it."""
    cases = {}
    for name, mine in _cases(results, r.RESTART).items():
        whole, gather = ratios(mine, r.FLASH, r.COPY), ratios(mine, r.SYNC, r.COPY)
        if len(whole) == len(gather):
            cases[name] = [one - other for one, other in zip(whole, gather, strict=True)]
    return _verdicts(text, f"≤ {limit:g}", cases, lambda found: found <= limit)


def _below(
    text: str, results: Sequence[Timed], act: str, other: str, times: float
) -> list[Verdict]:
    cases = {name: ratios(mine, other, r.FLASH) for name, mine in _cases(results, act).items()}
    return _verdicts(text, f"≥ {times:g}×", cases, lambda found: found >= times)


def _no_collectives(results: Sequence[Timed]) -> list[Verdict]:
    found = []
    for name, mine in _cases(results, r.SAVE).items():
        counts = [one.collectives for one in mine if one.system == r.FLASH]
        if counts:
            said = f"{sum(counts)} in {len(counts)} saves"
            found.append(Verdict("collectives of a save", name, "0", said, not any(counts)))
    return found
