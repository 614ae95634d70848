"""The steps of one vote: each rank's usual step in them, and what else is known of the rank."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Container, Mapping, Sequence

from holdfast_master.policies.straggler.collectives import Step
from holdfast_master.policies.straggler.slices import SLICE_VALUES, Slices

LEAST_SHARE = 0.2
"""Of a window's steps that must be without a checkpoint or an evaluation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """One rank's work in a window, by step."""

    node: str
    local: float
    """Local time of a step, s."""
    work: float = 0.0
    """Samples or tokens of a step; 0: not known."""
    transfer: float | None = None
    """Part of the local time that is communication, s; None: nobody measured it."""
    places: tuple[float, ...] = ()
    """Local time of each segment of a step, s; empty: not known."""
    peers: int | None = None
    """The set of ranks that do the same by design; None: not known."""
    error: float = 0.0
    """Bound of the error of `local` by the node's clock, s."""
    marked: bool = False
    """True: checkpoints or evaluations took nearly all steps, so the rank is not judged."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The steps of one vote."""

    first_step: int
    step: float
    """Wall time of a step, s."""
    ranks: Mapping[int, RankTime]


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a few long steps do not move it."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept)


def window_slices(
    first_step: int,
    steps: Sequence[Step],
    about: Mapping[int, RankTime],
    sections: Container[int] = (),
) -> Slices[Window]:
    """The window of some steps of one group, in slices of some ranks.

    about: what else is known of each rank; its `local` and `places` are computed here. sections:
    sequences of the steps in which a checkpoint or an evaluation lay; they are left out.
    """
    kept = [step for step in steps if step.sequence not in sections]
    few = len(kept) < max(1.0, LEAST_SHARE * len(steps))
    kept = list(steps) if few else kept
    usual = statistics.mode(len(step.segments) for step in kept)
    alike = [step.segments for step in kept if len(step.segments) == usual]
    ranks: dict[int, RankTime] = {}
    names = list(about)
    size = max(1, SLICE_VALUES // (4 * len(kept) * (1 + usual)))
    for begin in range(0, len(names), size):
        for rank in names[begin : begin + size]:
            ranks[rank] = dataclasses.replace(
                about[rank],
                local=middle_mean([step.local[rank] for step in kept]),
                places=tuple(
                    middle_mean([one[i].local[rank] for one in alike]) for i in range(usual)
                ),
                marked=few or about[rank].marked,
            )
        yield
    return Window(
        first_step=first_step, step=middle_mean([step.wall for step in kept]), ranks=ranks
    )
