"""The rules that are compared: ours, peers', one that knows the truth.

Belongs here: one function for each rule, from a trace to accusations. Does not belong here: the
traces (`generator`), the score (`score`).

A rule returns an array [windows, ranks]: True where it accuses the rank at the end of the window.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.health.generator import Flags, Floats, Trace
from holdfast_master.policies.straggler.slices import finished
from holdfast_master.policies.straggler.verdict import StragglerVerdict, judge_slices
from holdfast_master.policies.straggler.votes import VoteRecord
from holdfast_master.policies.straggler.window import LEAST_SHARE, RankTime, Window
from holdfast_wire.messages import HealthMode, StragglerPolicy

POLICY = StragglerPolicy(
    mode=HealthMode.REPORT, slowdown_percent=20.0, window_steps=50, votes=3, votes_out_of=5
)
"""The defaults of a job's file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    accuse: Callable[[Trace, int], Flags]
    """Of a trace, and the steps of a window."""
    text: str
    """For the page."""


def windows(values: npt.NDArray[Any], steps: int) -> npt.NDArray[Any]:
    """Return the values of whole windows: [windows, steps, ranks]."""
    count = len(values) // steps
    return values[: count * steps].reshape(count, steps, *values.shape[1:])


def medians(trace: Trace, steps: int) -> Floats:
    """Return the median local time of each rank in each window: [windows, ranks]."""
    found: Floats = np.median(windows(trace.local, steps), axis=1)
    return found


def middle_means(values: Floats, steps: int, left_out: Flags) -> Floats:
    """Return the mean of the middle half of each window, without the steps that are left out."""
    ordered = np.sort(np.where(left_out, np.inf, windows(values, steps)), axis=1)
    kept = (~left_out).sum(axis=1)
    at, cut = np.arange(steps)[None, :, None], (kept // 4)[:, None]
    inside = (at >= cut) & (at < kept[:, None] - cut)
    total = np.where(inside, ordered, 0).sum(axis=1)
    found: Floats = total / inside.sum(axis=1)
    return found


# ------------------------------------------------------------------------------------------ ours


def holdfast(policy: StragglerPolicy, trace: Trace, steps: int) -> Flags:
    """Our rule with these settings."""
    found = np.zeros((len(trace.local) // steps, len(trace.node)), bool)
    for i, verdicts in enumerate(judged(trace, steps, policy)):
        for verdict in verdicts:
            found[i, list(verdict.ranks)] = True
    return found


def judged(trace: Trace, steps: int, policy: StragglerPolicy) -> list[tuple[StragglerVerdict, ...]]:
    """Return the verdicts after each window of a trace."""
    references = {str(i): float(one) for i, one in enumerate(trace.reference)}
    record, found = VoteRecord(), []
    for window in seen(trace, steps):
        record, verdicts = finished(judge_slices(record, window, policy, references))
        found.append(verdicts)
    return found


def seen(trace: Trace, steps: int) -> list[Window]:
    """Return a trace as the policy gets it."""
    sections = windows(trace.marked, steps)[..., None]
    few = sections.mean(axis=1) > 1 - LEAST_SHARE
    left_out = sections & ~few[:, None]
    local = middle_means(trace.local, steps, left_out).tolist()
    wall = middle_means(trace.wall[:, None], steps, left_out)[:, 0].tolist()
    work = None if trace.work is None else windows(trace.work, steps).mean(axis=1).tolist()
    late = None if trace.late is None else middle_means(trace.late, steps, left_out).tolist()
    names, count = [str(one) for one in trace.node], len(trace.node)
    peers = [None] * count if trace.peers is None else trace.peers.tolist()
    return [
        Window(
            first_step=i * steps,
            step=wall[i],
            ranks={
                r: RankTime(
                    node=names[r],
                    local=local[i][r],
                    work=work[i][r] if work else 0.0,
                    transfer=late[i][r] if late else None,
                    peers=peers[r],
                    marked=bool(few[i, 0]),
                )
                for r in range(count)
            },
        )
        for i in range(len(local))
    ]


# ----------------------------------------------------------------------------------------- peers


def dlrover(trace: Trace, steps: int) -> Flags:
    """One score of each node at the job's start; slow above twice the median."""
    slow = trace.reference > 2 * np.median(trace.reference)
    return np.tile(slow[trace.node], (len(trace.local) // steps, 1))


def nvrx(trace: Trace, steps: int) -> Flags:
    """The median over that of the best rank, or over the rank's own best one, below 0.75."""
    now = medians(trace, steps)
    relative = now.min(axis=1, keepdims=True) / now
    individual = np.minimum.accumulate(now, axis=0) / now
    found: Flags = (relative < 0.75) | (individual < 0.75)
    return found


def nvrx_relative(trace: Trace, steps: int) -> Flags:
    """The relative score alone."""
    now = medians(trace, steps)
    found: Flags = now.min(axis=1, keepdims=True) / now < 0.75
    return found


def megatron(trace: Trace, steps: int) -> Flags:
    """Further from the median than the MAD, and than a tenth of the median."""
    now = medians(trace, steps)
    centre = np.median(now, axis=1, keepdims=True)
    away = np.abs(now - centre)
    found: Flags = away > np.maximum(np.median(away, axis=1, keepdims=True), 0.1 * centre)
    return found


def twice_median(trace: Trace, steps: int) -> Flags:
    """More than twice the median of the ranks."""
    now = medians(trace, steps)
    found: Flags = now > 2 * np.median(now, axis=1, keepdims=True)
    return found


def oracle(trace: Trace, steps: int) -> Flags:
    """The truth, at the end of the first window that has more slow steps than others."""
    found = np.zeros((len(trace.local) // steps, len(trace.node)), bool)
    found[(trace.onset + steps // 2) // steps :, trace.slow] = True
    return found


RULES: Mapping[str, Rule] = {
    "holdfast": Rule(
        functools.partial(holdfast, POLICY), "the policy of the master, with a job's defaults"
    ),
    "dlrover": Rule(dlrover, "one score at the start > 2 × median"),
    "nvrx": Rule(nvrx, "relative or individual score < 0.75"),
    "nvrx, relative": Rule(nvrx_relative, "relative score < 0.75"),
    "megatron": Rule(megatron, "more than max(MAD, 10 % of the median) from the median"),
    "2 × median": Rule(twice_median, "above twice the median"),
    "oracle": Rule(oracle, "knows the truth"),
}
PEERS = ("dlrover", "nvrx", "nvrx, relative", "megatron", "2 × median")
