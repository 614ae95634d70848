"""What an agent without a master does with its workers: train on, or kill them.

An agent whose stream is down asks members of its world; a newer round among them means that its
own workers belong to the past, and a stop that a peer was told of in time is meant for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from holdfast_wire.messages import Arm, GetRoundResponse


@dataclasses.dataclass(frozen=True, slots=True)
class MasterlessVerdict:
    """Whether the workers must be killed, and why (or why not)."""

    kill: bool
    reason: str
    arm: Arm | None = None
    """The newest stop that peers in the same round know of; they may all know of none."""


def judge(
    *,
    silent_seconds: float,
    limit_seconds: float,
    epoch: int,
    own_round: int,
    answers: Sequence[GetRoundResponse],
) -> MasterlessVerdict:
    """Decide on the workers of `own_round`.

    silent_seconds: since the stream to the master ended, s.
    limit_seconds: how long training without a master is allowed (Welcome), s.
    epoch: newest master epoch accepted here.
    answers: what peers said this time; peers that did not answer are absent.
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
    arms = [
        answer.arm
        for answer in answers
        if answer.arm is not None
        and answer.fence is not None
        and answer.fence.round == own_round
        and answer.fence.epoch >= epoch
    ]
    return MasterlessVerdict(
        False,
        f"no master for {silent_seconds:.1f} s, no peer is in a newer round",
        max(arms, key=lambda arm: arm.arm_id, default=None),
    )
