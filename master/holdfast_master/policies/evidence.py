"""Size of the evidence that is kept of an incident: stacks are cut where all would be too much.

Belongs here: the bounds and the cut. Does not belong here: the verdict (`hang`), files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Final

from holdfast_wire.messages import RankEvidence

STACK_CHARACTERS: Final = 16 * 1024 * 1024
"""Of all stacks of an incident. A rank of a real script has 2,000 to 10,000, so those of 1,600
ranks are kept whole; packed they take a tenth."""
WHOLE_RANKS: Final = 16
"""Odd ranks whose stacks are kept whole however many ranks there are: people look at these."""
_CUT: Final = "\n... (cut: the stacks of all ranks are too long)"


def cut(
    ranks: Sequence[RankEvidence], odd: Collection[int], most: int = STACK_CHARACTERS
) -> tuple[RankEvidence, ...]:
    """Return the evidence in the order of ranks, with stacks of at most about `most` characters.

    Each rank has an equal share; the first odd ranks are not cut.
    """
    whole = set(sorted(odd)[:WHOLE_RANKS])
    share = max(len(_CUT), most // max(1, len(ranks)))
    # The later dumps have had their use: the verdict.
    kept = (dataclasses.replace(one, later_stacks=()) for one in ranks)
    ordered = sorted(kept, key=lambda one: one.rank)
    if sum(len(one.stack) for one in ordered) <= most:
        return tuple(ordered)
    return tuple(one if one.rank in whole else _shorter(one, share) for one in ordered)


def _shorter(one: RankEvidence, share: int) -> RankEvidence:
    if len(one.stack) <= share:
        return one
    return dataclasses.replace(one, stack=one.stack[: share - len(_CUT)] + _CUT)
