"""The page of a run: what was promised, then each case's figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.flash import results as r
from bench.flash.results import SaveResult, figures, times
from bench.harness import machine, page
from bench.harness.page import Verdict, at_most, judged, load_range, table

SIGNATURE_SECONDS: Final = 0.015
"""Seconds for comparing 20,000 tensors with those that were planned for."""
RESPAWN_SECONDS: Final = 0.35
_OURS = {
    r.ONE: r.FLASH_2,
    r.TWO: r.FLASH_1,
    r.SMALL: r.FLASH_1,
    r.STALL: r.OVERLAPPED,
    r.FIRST: r.FLASH_1,
    r.RESTORE: r.FLASH_1,
}
"""The system that the others are held against, by the case."""
_OURS_ON_GPU = {case: ours for case, ours in _OURS.items() if case != r.TWO} | {r.ONE: r.FLASH_1}


def page_of(about: Mapping[str, Any], results: Sequence[SaveResult]) -> str:
    """Return the whole page."""
    on_gpu = about.get("device") == "cuda"
    run, ours = _machine(about, results), _OURS_ON_GPU if on_gpu else _OURS
    tables = {case.replace(" ", "_"): _table(case, base, results) for case, base in ours.items()}
    if on_gpu:
        return page.fill("flash/page_gpu", run=run, **tables)
    columns = {"promise (medians)": "text", "at": "promised", "measured": "reached"}
    promises = page.promises(judge(results), columns | {"times": "times", "kept": "kept"})
    crash = _crashes(results)
    return page.fill("flash/page", run=run, promises=promises, crash=crash, **tables)


def _machine(about: Mapping[str, Any], results: Sequence[SaveResult]) -> str:
    gpu = ("{gpu}",) if about.get("gpu") else ()
    words = machine.words(about, "DLRover {dlrover}", *gpu)
    said = f"{words}; load average {load_range(results)}."
    failed = [f"Failed: {one.case}: {one.system}: {one.failed}" for one in results if one.failed]
    left_out = [f"Left out: {text}" for text in about.get("left_out", [])]
    return "\n\n".join([said, *left_out, *failed]) + "\n"


def _table(case: str, ours: str, results: Sequence[SaveResult]) -> str:
    """Return the size of a case's state, and what each system took of it."""
    systems = dict.fromkeys(one.system for one in results if one.case == case)
    rows = [row for system in systems if (row := _row(case, system, ours, results))]
    if not rows:
        return ""
    sizes = [one for one in results if one.case == case and one.bytes]
    size = f"{sizes[0].bytes / 2**30:.2f} GiB, {sizes[0].tensors:,} tensors on a rank."
    header = ["system", "times", "s", "× copy", "CPU ×", "first ×", "left, MiB", "× Holdfast"]
    return f"{size}\n\n" + table(header, rows)


def _row(case: str, system: str, ours: str, results: Sequence[SaveResult]) -> list[str]:
    found, base = figures(results, case, system), figures(results, case, ours)
    if found is None:
        return []
    mine = [one.figures for one in results if (one.case, one.system) == (case, system)]
    left = max((one.get("left_bytes", 0.0) for one in mine), default=0.0)
    beside = "1"
    if system != ours:
        beside = page.times(times(found, base) if base else None)
    return [
        system + _also(mine),
        str(len(found.x)),
        f"{statistics.median(found.seconds):.3f}",
        _spread(found.x),
        f"{statistics.median(found.cpu):.2f}" if found.cpu else "–",
        f"{statistics.median(found.first):.2f}" if found.first else "–",
        f"{left / 2**20:.0f}",
        beside,
    ]


def _also(found: Sequence[Mapping[str, float]]) -> str:
    """Return further figures of a system, in words."""
    units = {
        "warm_up_gb_s": "made ready at {:.1f} GB/s",
        "durable_s": "on disk after {:.1f} s",
    }
    said = [
        text.format(statistics.median(one[name] for one in found))
        for name, text in units.items()
        if found and all(name in one for one in found)
    ]
    return f" ({', '.join(said)})" if said else ""


def _crashes(results: Sequence[SaveResult]) -> str:
    found = [one for one in results if one.case == r.CRASH and one.seconds]
    if not found:
        return ""
    seconds = [second for one in found for second in one.seconds]
    names = ("started_s", "fresh_s", "restored_s", "cold_copy_s")
    parts = [_spread([one.figures[name] for one in found], "") for name in names]
    rows = [[str(len(seconds)), _spread(seconds, ""), *parts]]
    header = ["times", "killed → next step, s", "new processes begun", "fresh processes' part"]
    header += ["restore", "cold copy"]
    return f"{found[0].bytes / 2**20:.0f} MiB on a rank.\n\n" + table(header, rows)


# --------------------------------------------------------------------------------------- the bars


def judge(found: Sequence[SaveResult]) -> list[Verdict]:
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


def _spread(values: Sequence[float], unit: str = "×") -> str:
    return page.spread(values, unit=unit)


def _copy(text: str, found: Sequence[SaveResult], case: str, system: str, limit: float) -> Verdict:
    ours, allowed = figures(found, case, system), figures(found, case, r.BLOCK)
    verdict = judged(text, f"≤ {limit:g}× copy", ours.x if ours else (), at_most(limit), _spread)
    if verdict.kept is not False or allowed is None:
        return verdict
    least = f"; one block, all cores: {allowed.median:.2f}×"
    return replace(verdict, reached=verdict.reached + least)


def _below(
    text: str, found: Sequence[SaveResult], what: tuple[str, str, Sequence[str]], least: float
) -> Verdict:
    """Compare the figures of one system with those of the best of some others."""
    case, system, others = what
    promised, ours = f"≥ {least:g}×", figures(found, case, system)
    theirs = [(name, one) for name in others if (one := figures(found, case, name)) is not None]
    if ours is None or not theirs:
        return Verdict(text, promised)
    name, best = min(theirs, key=lambda pair: pair[1].median)
    beside = times(best, ours)
    which = f" {name}" if len(theirs) > 1 else ""
    reached, kept = page.times(beside) + which, beside[0] >= least
    if not kept and (allowed := figures(found, case, r.BLOCK)) is not None:
        reached += f"; one block, all cores: {best.median / allowed.median:.1f}×"
    return Verdict(text, promised, reached, kept, len(ours.x))


def _small(found: Sequence[SaveResult]) -> Verdict:
    ours = figures(found, r.SMALL, r.FLASH_1)
    pairs = zip(ours.seconds, ours.copies, strict=True) if ours else ()
    found_x = [max(0.0, taken - SIGNATURE_SECONDS) / copy for taken, copy in pairs]
    text = "20,000 small tensors, without 15 ms"
    return judged(text, "≤ 1.5× copy", found_x, at_most(1.5), _spread)


def _first(found: Sequence[SaveResult]) -> Verdict:
    ours = figures(found, r.FIRST, r.FLASH_1)
    ratios = [one / ours.median for one in ours.first] if ours else []
    return judged("first save, arena warm", "≤ 1.2× later ones", ratios, at_most(1.2), _spread)


def _crash(found: Sequence[SaveResult]) -> Verdict:
    """Compare each crash with its allowance, which holds the fresh process's own measured part."""
    ours = [one for one in found if one.case == r.CRASH and one.seconds]
    took = [second for one in ours for second in one.seconds]
    shares = [
        second / (RESPAWN_SECONDS + 1.35 * one.figures["cold_copy_s"] + one.figures["fresh_s"])
        for one in ours
        for second in one.seconds
    ]
    return judged(
        "crash → next step, restored from memory, 2 ranks",
        f"≤ {RESPAWN_SECONDS:g} s + 1.35× cold copy + fresh first step",
        shares,
        at_most(1.0),
        lambda found: f"{_spread(took, ' s')}, {_spread(found)} of it",
    )


def _none(
    text: str, found: Sequence[SaveResult], figure: str, which: tuple[str, str] | None
) -> Verdict:
    fits: Callable[[SaveResult], bool] = (
        (lambda one: one.system in r.OURS)
        if which is None
        else (lambda one: (one.case, one.system) == which)
    )
    values = [one.figures[figure] for one in found if fits(one) and figure in one.figures]
    if not values:
        return Verdict(text, "0")
    return Verdict(text, "0", f"{max(values):g}", not any(values), len(values))
