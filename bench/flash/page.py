"""The page of a run: what was promised, then each case's figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.flash import results as r
from bench.flash.results import SaveResult, figures, times
from bench.harness import machine, page
from bench.harness.page import Verdict, at_most, judged, load_range, table

SIGNATURE_SECONDS: Final = 0.015
"""Seconds for comparing 20,000 tensors with those that were planned for."""
RESPAWN_SECONDS: Final = 0.35
_INTRO = """\
# What a flash checkpoint costs, beside torch's and DLRover's

Generated from [flash.jsonl](flash.jsonl) by `python -m bench.flash --publish`.

All systems in one run, on the same state, each in processes and a sandbox of its own, on CPUs with
gloo. Before every save the same bytes are copied once, a `copy_` for each tensor, by one thread of
each rank into shared memory that is faulted in: × is the time of the save over that of its
neighbour. Medians (least–greatest); the first save of a process is apart. "× Holdfast": of the
medians of × (least of theirs over greatest of ours – greatest over least). CPU: × in CPU time of
the first rank's process, which other programs disturb less; what a system leaves to processes of
its own is not in it. Trust × more than seconds: two shared cores.
"""
_GPU_INTRO = """\
# What a flash checkpoint costs a GPU, beside torch's and DLRover's

Generated from [flash-gpu.jsonl](flash-gpu.jsonl) by
`python -m bench.flash --device cuda --publish`.

The state is on one GPU. Before every save the same bytes are copied once into shared memory that
CUDA has pinned: a `copy_` for each tensor, one after another, one wait at the end; × is the time of
the save over that of its neighbour. A save is measured until the training's stream could compute
again. Restores: × of the same copies back. Each system in processes and a sandbox of its own, in
one run; medians (least–greatest), the first save of a process apart; "× Holdfast" of the medians of
×. CPU: × in CPU time of the trainer's process. DCP's reused stager has pinned memory.
"""


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    text: str
    ours: str
    """The system that the others are held against."""


_SECTIONS = {
    r.ONE: _Section(
        "One rank", "What a save takes of the trainer: plain fp32 parameters, AdamW.", r.FLASH_2
    ),
    r.TWO: _Section(
        "Two ranks",
        "FSDP2, each rank half of the state; the slower rank counts, beside both ranks' copies at "
        "once. DCP has a process group of its own.",
        r.FLASH_1,
    ),
    r.SMALL: _Section(
        "Many small tensors", "64 numbers each: what is left is the work for each.", r.FLASH_1
    ),
    r.STALL: _Section(
        "The whole stall",
        "What the trainer waits, and what its steps (9 ms of matrix products) lose until the "
        "checkpoint is on disk. An overlapped copy begins after one optimizer step and has 0.6 s "
        "of forward and backward until the next, which waits for it.",
        r.OVERLAPPED,
    ),
    r.FIRST: _Section(
        "The first save",
        "Ten fresh arenas and more, each made ready by `prepare()`: its first save, then two more "
        "(the row).",
        r.FLASH_1,
    ),
    r.RESTORE: _Section(
        "Restore",
        "Into parameters and moments that are there, by as many threads as the rank has cores (4 "
        "at most), as × of the same bytes copied back by one from warm "
        "memory. Beside it another process hashes all the time, as a keeper does when a world "
        "starts. `dcp.load` reads files that were just written.",
        r.FLASH_1,
    ),
}

_GPU_SECTIONS = _SECTIONS | {
    r.ONE: _Section(
        "One rank", "What a save takes of the trainer: plain fp32 parameters, AdamW.", r.FLASH_1
    ),
    r.STALL: _Section(
        "The whole stall",
        "What the trainer waits, and what its steps (matrix products on the GPU) lose until the "
        "checkpoint is on disk. What is copied beside the steps has 0.6 s of forward and backward "
        "until the optimizer's step, which waits for it.",
        r.OVERLAPPED,
    ),
    r.RESTORE: _Section(
        "Restore",
        "Into parameters and moments that are there, while another process hashes all the time, as "
        "a keeper does when a world starts. `dcp.load` reads files that were just written.",
        r.FLASH_1,
    ),
}


def page_of(about: Mapping[str, Any], results: Sequence[SaveResult]) -> str:
    """Return the whole page."""
    on_gpu = about.get("device") == "cuda"
    parts = [_GPU_INTRO if on_gpu else _INTRO, _machine(about, results)]
    if not on_gpu:
        columns = {"promise (medians)": "text", "at": "promised", "measured": "reached"}
        parts.append(page.promises(judge(results), columns | {"times": "times", "kept": "kept"}))
    sections = _GPU_SECTIONS if on_gpu else _SECTIONS
    parts += [_section(case, section, results) for case, section in sections.items()]
    parts.append(_crashes(results))
    return "\n".join(part for part in parts if part)


def _machine(about: Mapping[str, Any], results: Sequence[SaveResult]) -> str:
    gpu = ("{gpu}",) if about.get("gpu") else ()
    words = machine.words(about, "DLRover {dlrover}", *gpu)
    said = f"{words}; load average {load_range(results)}."
    failed = [f"Failed: {one.case}: {one.system}: {one.failed}" for one in results if one.failed]
    left_out = [f"Left out: {text}" for text in about.get("left_out", [])]
    return "\n\n".join([said, *left_out, *failed]) + "\n"


def _section(case: str, section: _Section, results: Sequence[SaveResult]) -> str:
    systems = dict.fromkeys(one.system for one in results if one.case == case)
    rows = [row for system in systems if (row := _row(case, system, section.ours, results))]
    if not rows:
        return ""
    sizes = [one for one in results if one.case == case and one.bytes]
    size = f"{sizes[0].bytes / 2**30:.2f} GiB, {sizes[0].tensors:,} tensors on a rank."
    header = ["system", "times", "s", "× copy", "CPU ×", "first ×", "left, MiB", "× Holdfast"]
    return f"## {section.title}\n\n{section.text} {size}\n\n" + table(header, rows)


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
    text = (
        "Two nodes of a rank each under a master; one rank is killed (`bench.recovery`'s script "
        "and rule), both go on from the step that the agents have in memory. Fresh processes' "
        "part: import, join, build, first step. Cold copy: the same bytes into memory that nobody "
        "has touched, in such a process, before."
    )
    header = ["times", "killed → next step, s", "new processes begun", "fresh processes' part"]
    header += ["restore", "cold copy"]
    return f"## A crash\n\n{text} {found[0].bytes / 2**20:.0f} MiB on a rank.\n\n" + table(
        header, rows
    )


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
