"""The page of a results file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import machine
from bench.hang.trial import Hung
from bench.recovery.report import table

BAR = 30.0
"""Times sooner than the soonest peer."""
_OURS = "holdfast"
_INTRO = """\
# How soon a hang is noticed

Generated from [hang.jsonl](hang.jsonl) by `python -m bench.hang --publish`.

Two ranks of a plain script on two nodes, gloo, steps of 0.1 s. After 100 steps one rank sleeps for
ever, and the other one waits for it in `all_reduce`. All systems run at the same time, each with
its own defaults. A system notices the hang when it says so, or when anything happens to a rank:
under torchrun and DLRover that is the time-out of gloo's collective, 30 min by default. Holdfast's
limit is 10 times the 99th percentile of a step, and at least `health.hang.minSeconds`: 45 s by
default, 5 s at the least.
"""


def page(about: Mapping[str, Any], results: Sequence[Hung]) -> str:
    """Return the page's text."""
    peers = [one for one in results if not one.system.startswith(_OURS)]
    soonest = min([one.seconds or one.limit for one in peers], default=0.0)
    head = (
        "system",
        "noticed after, s",
        "times sooner than the soonest peer",
        "by",
        "names the rank",
    )
    rows = [_row(one, soonest) for one in results]
    return "\n".join([_INTRO, f"{machine.sentence(about)}\n", table(head, rows)])


def _row(one: Hung, soonest: float) -> list[str]:
    known = one.seconds is not None
    took = f"{one.seconds:.1f}" if known else f"not within {one.limit:.0f}"
    ratio = ""
    if known and one.system.startswith(_OURS):
        times = soonest / (one.seconds or 1.0)
        ratio = f"{times:.0f} (bar {BAR:.0f}: {'yes' if times >= BAR else '**no**'})"
    by = one.by.replace("|", "\\|") or "–"
    return [one.system, took, ratio, by, "yes" if one.named else "no"]
