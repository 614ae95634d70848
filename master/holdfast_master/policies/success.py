"""Success policy: decides that the job has succeeded.

Belongs here: the success policies. Does not belong here: the end itself.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.policies.quantities import counted, verb
from holdfast_wire.messages import SuccessPolicy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The count of the world's ranks that have ended with exit code 0."""

    world_size: int
    ranks_done: int
    rank0_done: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SuccessOutcome:
    """The verdict on the success policy, with the reason."""

    met: bool
    reason: str


def decide(policy: SuccessPolicy, tally: Tally) -> SuccessOutcome:
    """Decide whether the policy is met; an unspecified policy means all workers."""
    if policy is SuccessPolicy.ANY_WORKER:
        return SuccessOutcome(tally.ranks_done > 0, f"{_finished(tally.ranks_done)}, one is enough")
    if policy is SuccessPolicy.RANK0:
        text = "rank 0 has finished" if tally.rank0_done else "rank 0 has not finished"
        return SuccessOutcome(tally.rank0_done, text)
    met = 0 < tally.world_size <= tally.ranks_done
    return SuccessOutcome(met, f"{tally.ranks_done} of {_finished(tally.world_size)}")


def _finished(ranks: int) -> str:
    return f"{counted(ranks, 'rank')} {verb(ranks, 'has', 'have')} finished"
