"""The page of a run: what was promised, then each case's figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.flash import results as r
from bench.flash.bars import judge, spread
from bench.flash.results import Result, figures, times
from bench.recovery.report import table

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

_GPU_SECTIONS = {
    r.ONE: _Section(
        "One rank", "What a save takes of the trainer: plain fp32 parameters, AdamW.", r.FLASH_1
    ),
    r.SMALL: _SECTIONS[r.SMALL],
    r.STALL: _Section(
        "The whole stall",
        "What the trainer waits, and what its steps (matrix products on the GPU) lose until the "
        "checkpoint is on disk. What is copied beside the steps has 0.6 s of forward and backward "
        "until the optimizer's step, which waits for it.",
        r.OVERLAPPED,
    ),
    r.FIRST: _SECTIONS[r.FIRST],
    r.RESTORE: _Section(
        "Restore",
        "Into parameters and moments that are there, while another process hashes all the time, as "
        "a keeper does when a world starts. `dcp.load` reads files that were just written.",
        r.FLASH_1,
    ),
}


def page(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the whole page."""
    on_gpu = about.get("device") == "cuda"
    parts = [_GPU_INTRO if on_gpu else _INTRO, _machine(about, results)]
    parts += [] if on_gpu else [_promises(results)]
    sections = _GPU_SECTIONS if on_gpu else _SECTIONS
    parts += [_section(case, section, results) for case, section in sections.items()]
    parts.append(_crashes(results))
    return "\n".join(part for part in parts if part)


def _machine(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    loads = [one.load for one in results] or [0.0]
    machine = (
        f"{about.get('date')}, commit {about.get('commit')}: {about.get('cores')} × "
        f"{about.get('cpu')}, {about.get('memory_gib')} GiB, Linux {about.get('kernel')}, Python "
        f"{about.get('python')}, torch {about.get('torch')}, DLRover {about.get('dlrover')}"
        f"{', ' + str(about['gpu']) if about.get('gpu') else ''}; load "
        f"average {min(loads):.1f}–{max(loads):.1f}."
    )
    failed = [f"Failed: {one.case}: {one.system}: {one.failed}" for one in results if one.failed]
    left_out = [f"Left out: {text}" for text in about.get("left_out", [])]
    return "\n\n".join([machine, *left_out, *failed]) + "\n"


def _promises(results: Sequence[Result]) -> str:
    words = {True: "yes", False: "**no**", None: "–"}
    rows = [
        [one.text, one.promised, one.reached, str(one.times), words[one.kept]]
        for one in judge(results)
    ]
    header = ["promise (medians)", "at", "measured", "times", "kept"]
    return "## What is promised\n\n" + table(header, rows)


def _section(case: str, section: _Section, results: Sequence[Result]) -> str:
    systems = dict.fromkeys(one.system for one in results if one.case == case)
    rows = [row for system in systems if (row := _row(case, system, section.ours, results))]
    if not rows:
        return ""
    sizes = [one for one in results if one.case == case and one.bytes]
    size = f"{sizes[0].bytes / 2**30:.2f} GiB, {sizes[0].tensors:,} tensors on a rank."
    header = ["system", "times", "s", "× copy", "CPU ×", "first ×", "left, MiB", "× Holdfast"]
    return f"## {section.title}\n\n{section.text} {size}\n\n" + table(header, rows)


def _row(case: str, system: str, ours: str, results: Sequence[Result]) -> list[str]:
    found, base = figures(results, case, system), figures(results, case, ours)
    if found is None:
        return []
    mine = [one.figures for one in results if (one.case, one.system) == (case, system)]
    left = max((one.get("left_bytes", 0.0) for one in mine), default=0.0)
    beside = "1"
    if system != ours:
        beside = "–" if base is None else "{:.1f}× ({:.1f}–{:.1f})".format(*times(found, base))
    return [
        system + _also(mine),
        str(len(found.x)),
        f"{statistics.median(found.seconds):.3f}",
        spread(found.x),
        f"{statistics.median(found.cpu):.2f}" if found.cpu else "–",
        f"{statistics.median(found.first):.2f}" if found.first else "–",
        f"{left / 2**20:.0f}",
        beside,
    ]


def _also(found: Sequence[Mapping[str, float]]) -> str:
    """Return what else is known of a system."""
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


def _crashes(results: Sequence[Result]) -> str:
    found = [one for one in results if one.case == r.CRASH and one.seconds]
    if not found:
        return ""
    seconds = [second for one in found for second in one.seconds]
    names = ("started_s", "fresh_s", "restored_s", "cold_copy_s")
    parts = [spread([one.figures[name] for one in found], "") for name in names]
    rows = [[str(len(seconds)), spread(seconds, ""), *parts]]
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
