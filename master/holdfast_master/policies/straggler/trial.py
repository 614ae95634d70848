"""The outcome of a slow node's exclusion: the node was slow, or one of its ranks was.

A rank may have work of its own: rank 0 logs, gathers and saves. Whoever takes its place has that
work, too. A slow node keeps its slowness, whatever ranks it has. So the ranks that were slow are
looked at again on their next node: where they are slow there, no node was to blame.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from holdfast_master.policies.straggler.usual import Usual, middle
from holdfast_master.policies.straggler.usual import logarithms as logarithms_of
from holdfast_master.policies.straggler.verdict import StragglerVerdict
from holdfast_master.policies.straggler.window import Window
from holdfast_wire.messages import StragglerOutcome, StragglerTrial

WINDOWS: Final = 3
"""Windows in a row that tell the outcome."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """The ranks of a trial in a later world."""

    elsewhere: bool
    """Their node is another one."""
    run: int
    """Windows in a row, with the newest, in which they lay above the middle between their usual
    time and the slow one; below 0: in which they did not."""
    accused: bool
    """Verdicts of this world accuse all of them."""


def above(times: Mapping[int, float], ranks: Collection[int]) -> float | None:
    """Return how far the ranks lie above the others, as a logarithm; None: there are no others.

    times: logarithms of local times.
    """
    mine = [one for rank, one in times.items() if rank in ranks]
    others = [one for rank, one in times.items() if rank not in ranks]
    return middle(mine) - middle(others) if mine and others else None


def logarithms(window: Window) -> dict[int, float]:
    """The logarithms of a window's local times, without those that sections made longer."""
    return logarithms_of({rank: one.local for rank, one in window.ranks.items() if not one.marked})


def usual_above(usual: Usual, ranks: Collection[int]) -> float:
    """Return how far the ranks lay above the others before they were slow, as a logarithm."""
    levels = {rank: one.level for rank, one in usual.ranks.items() if one.level is not None}
    return above(levels, ranks) or 0.0


def is_above(trial: StragglerTrial, window: Window) -> bool | None:
    """Whether the ranks are slow as they were before the exclusion; None: nothing tells."""
    found = above(logarithms(window), trial.ranks)
    return None if found is None else found > (trial.usual + trial.slow) / 2


def outcome(trial: StragglerTrial, view: TrialView) -> StragglerOutcome:
    """Return the present knowledge of an exclusion.

    That the ranks are as fast as the others is no last word: their own work may begin later, as at
    a step that the script does again. Of several ranks it is: the work of one is not theirs, and
    what slows all of them later is their new node.
    """
    node = trial.outcome is StragglerOutcome.NODE and len(trial.ranks) > 1
    if node or trial.outcome is StragglerOutcome.RANK or not view.elsewhere:
        return trial.outcome
    if view.accused or view.run >= WINDOWS:
        return StragglerOutcome.RANK
    return StragglerOutcome.NODE if view.run <= -WINDOWS else trial.outcome


def accuse(verdicts: Iterable[StragglerVerdict], ranks: Collection[int]) -> bool:
    """Whether the verdicts accuse all these ranks: one of several may have other work."""
    return set(ranks) <= {rank for one in verdicts for rank in one.ranks}


def with_own_work(trials: Iterable[StragglerTrial]) -> frozenset[int]:
    """The ranks whose slowness went with them to another node."""
    shown = (one for one in trials if one.outcome is StragglerOutcome.RANK)
    return frozenset(rank for one in shown for rank in one.ranks)


def marked(
    verdicts: Iterable[StragglerVerdict], ranks: Collection[int]
) -> tuple[StragglerVerdict, ...]:
    """The verdicts, those about ranks with work of their own marked as such."""
    why = "was as slow on another node before"
    return tuple(
        dataclasses.replace(one, own_work=f"rank {one.ranks[0]} {why}")
        if one.ranks and set(one.ranks) <= set(ranks)
        else one
        for one in verdicts
    )
