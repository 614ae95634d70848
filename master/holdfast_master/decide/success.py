"""Whether the job has succeeded.

Belongs here: the success policies. Does not belong here: what happens at the end.
"""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import SuccessPolicy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Which ranks of the world have ended with exit code 0."""

    world_size: int
    ranks_done: int
    rank0_done: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the success policy is met."""

    met: bool
    reason: str


def decide(policy: SuccessPolicy, tally: Tally) -> Outcome:
    """Whether the policy is met; an unspecified policy means all workers."""
    if policy is SuccessPolicy.ANY_WORKER:
        return Outcome(
            tally.ranks_done > 0, f"{tally.ranks_done} ranks have finished, one is enough"
        )
    if policy is SuccessPolicy.RANK0:
        text = "rank 0 has finished" if tally.rank0_done else "rank 0 has not finished"
        return Outcome(tally.rank0_done, text)
    met = 0 < tally.world_size <= tally.ranks_done
    return Outcome(met, f"{tally.ranks_done} of {tally.world_size} ranks have finished")
