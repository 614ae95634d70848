"""Agent without a master: decides that its workers train on, or are killed.

An agent whose stream is down asks the peers of its world. A newer round among them means that its
own workers are outdated. A barrier that a peer received in time is meant for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from holdfast_wire.messages import GetRoundResponse, SetBarrier


@dataclasses.dataclass(frozen=True, slots=True)
class MasterlessVerdict:
    """Verdict on workers without a master: kill them or let them train, and why."""

    kill: bool
    reason: str
    barrier: SetBarrier | None = None
    """Newest barrier that a peer in the same round knows; None: no peer knows one."""


def judge(
    *,
    silent_seconds: float,
    limit_seconds: float,
    epoch: int,
    own_round: int,
    answers: Sequence[GetRoundResponse],
) -> MasterlessVerdict:
    """Decide on the workers of `own_round`.

    silent_seconds: time since the stream to the master ended, s.
    limit_seconds: longest training without a master (from Welcome), s.
    epoch: newest master epoch accepted here.
    answers: answers of the peers this time; peers without an answer are absent.
    """
    newer = [
        answer.fence
        for answer in answers
        if answer.fence is not None
        and answer.fence.epoch >= epoch
        and answer.fence.round > own_round
    ]
    if newer:
        found = max(fence.round for fence in newer)
        return MasterlessVerdict(True, f"a peer is in round {found}, this node in {own_round}")
    if silent_seconds >= limit_seconds:
        return MasterlessVerdict(
            True, f"no master for {silent_seconds:.0f} s, the limit is {limit_seconds:.0f} s"
        )
    barriers = [
        answer.barrier
        for answer in answers
        if answer.barrier is not None
        and answer.fence is not None
        and answer.fence.round == own_round
        and answer.fence.epoch >= epoch
    ]
    return MasterlessVerdict(
        False,
        f"no master for {silent_seconds:.1f} s, no peer is in a newer round",
        max(barriers, key=lambda barrier: barrier.barrier_id, default=None),
    )
