"""Bars of the flash checkpoint, and the judgement of a run by them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.flash import results as r
from bench.flash.results import Figures, Result, figures, times

SIGNATURE_SECONDS: Final = 0.015
"""What comparing 20,000 tensors with those that were planned for may take."""
RESPAWN_SECONDS: Final = 0.35


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one promise by a run."""

    text: str
    promised: str
    reached: str
    kept: bool | None
    """None where the run did not measure it."""
    times: int
    """How often it was measured."""


def judge(found: Sequence[Result]) -> list[Verdict]:
    """Hold the results against every promise."""
    asyncs = (r.ASYNC_THREAD, r.ASYNC_PROCESS, r.ASYNC)
    one, two, small, stall = r.ONE, r.TWO, r.SMALL, r.STALL
    return [
        _copy("blocking, 1 rank, 1 thread", found, one, r.FLASH_1, 0.75),
        _copy("blocking, 1 rank, 2 threads", found, one, r.FLASH_2, 0.45),
        _below("… below DLRover's memory save", found, (one, r.FLASH_2, (r.DLROVER,)), 2.2),
        _below(
            "… below dcp.async_save, stager reused",
            found,
            (one, r.FLASH_2, (r.ASYNC_THREAD, r.ASYNC_PROCESS)),
            2.2,
        ),
        _below("… below dcp.async_save as it comes", found, (one, r.FLASH_2, (r.ASYNC,)), 5.0),
        _copy("blocking, 2 ranks FSDP2", found, two, r.FLASH_1, 0.8),
        _below("… below DLRover FSDP", found, (two, r.FLASH_1, (r.DLROVER_FSDP,)), 3.5),
        _below("… below the best dcp.async_save", found, (two, r.FLASH_1, asyncs), 2.0),
        _small(found),
        _below("… below DLRover", found, (small, r.FLASH_1, (r.DLROVER,)), 10.0),
        _copy("whole stall until durable, overlapped", found, stall, r.OVERLAPPED, 0.7),
        _below("… below DLRover", found, (stall, r.OVERLAPPED, (r.DLROVER_DISK,)), 2.0),
        _first(found),
        _copy("restore from memory into warm parameters", found, r.RESTORE, r.FLASH_1, 1.35),
        _below(
            "… below dcp.load from page cache", found, (r.RESTORE, r.FLASH_1, (r.DCP_LOAD,)), 3.5
        ),
        _crash(found),
        _none("collectives in a save", found, "collectives", (two, r.FLASH_1)),
        _none("bytes of shared memory left when all have ended", found, "left_bytes", None),
    ]


def _missing(text: str, promised: str) -> Verdict:
    return Verdict(text, promised, "not measured", None, 0)


def spread(values: Sequence[float], unit: str = "×") -> str:
    """Return the median, and the least and greatest."""
    middle = statistics.median(values)
    return f"{middle:.2f}{unit} ({min(values):.2f}–{max(values):.2f})"


def _copy(text: str, found: Sequence[Result], case: str, system: str, limit: float) -> Verdict:
    promised, ours = f"≤ {limit:g}× copy", figures(found, case, system)
    if ours is None:
        return _missing(text, promised)
    kept, allowed = ours.median <= limit, figures(found, case, r.BLOCK)
    least = "" if kept or allowed is None else f"; one block, all cores: {allowed.median:.2f}×"
    return Verdict(text, promised, spread(ours.x) + least, kept, len(ours.x))


def _below(
    text: str, found: Sequence[Result], what: tuple[str, str, Sequence[str]], least: float
) -> Verdict:
    """Compare the figures of one system with those of the best of some others."""
    case, system, others = what
    promised, ours = f"≥ {least:g}×", figures(found, case, system)
    theirs = [(name, one) for name in others if (one := figures(found, case, name)) is not None]
    if ours is None or not theirs:
        return _missing(text, promised)
    name, best = min(theirs, key=lambda pair: pair[1].median)
    middle, low, high = times(best, ours)
    which = f" {name}" if len(theirs) > 1 else ""
    reached, kept = f"{middle:.1f}× ({low:.1f}–{high:.1f}){which}", middle >= least
    if not kept and (allowed := figures(found, case, r.BLOCK)) is not None:
        reached += f"; one block, all cores: {best.median / allowed.median:.1f}×"
    return Verdict(text, promised, reached, kept, len(ours.x))


def _small(found: Sequence[Result]) -> Verdict:
    text, promised = "20,000 small tensors, without 15 ms", "≤ 1.5× copy"
    ours = figures(found, r.SMALL, r.FLASH_1)
    if ours is None:
        return _missing(text, promised)
    pairs = zip(ours.seconds, ours.copies, strict=True)
    found_x = [max(0.0, taken - SIGNATURE_SECONDS) / copy for taken, copy in pairs]
    return Verdict(text, promised, spread(found_x), statistics.median(found_x) <= 1.5, len(found_x))


def _first(found: Sequence[Result]) -> Verdict:
    text, promised = "first save, arena warm", "≤ 1.2× later ones"
    ours: Figures | None = figures(found, r.FIRST, r.FLASH_1)
    if ours is None:
        return _missing(text, promised)
    ratios = [one / ours.median for one in ours.first]
    return Verdict(text, promised, spread(ratios), statistics.median(ratios) <= 1.2, len(ratios))


def _crash(found: Sequence[Result]) -> Verdict:
    """Compare each crash with its allowance, which holds the fresh process's own measured part."""
    text = "crash → next step, restored from memory, 2 ranks"
    promised = f"≤ {RESPAWN_SECONDS:g} s + 1.35× cold copy + fresh first step"
    ours = [one for one in found if one.case == r.CRASH and one.seconds]
    if not ours:
        return _missing(text, promised)
    took = [second for one in ours for second in one.seconds]
    may = [
        RESPAWN_SECONDS + 1.35 * one.figures["cold_copy_s"] + one.figures["fresh_s"]
        for one in ours
        for _ in one.seconds
    ]
    shares = [one / other for one, other in zip(took, may, strict=True)]
    reached = f"{spread(took, ' s')}, {spread(shares)} of it"
    return Verdict(text, promised, reached, statistics.median(shares) <= 1, len(took))


def _none(
    text: str, found: Sequence[Result], figure: str, which: tuple[str, str] | None
) -> Verdict:
    fits: Callable[[Result], bool] = (
        (lambda one: one.system in r.OURS)
        if which is None
        else (lambda one: (one.case, one.system) == which)
    )
    values = [one.figures[figure] for one in found if fits(one) and figure in one.figures]
    if not values:
        return _missing(text, "0")
    return Verdict(text, "0", f"{max(values):g}", not any(values), len(values))
