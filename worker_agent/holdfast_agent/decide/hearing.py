"""Whether a message of a master is acted on, and what its fence teaches.

Only the fence; what an accepted order leads to is `orders`, older masters and rounds are `fence`.
"""

from __future__ import annotations

import dataclasses
import enum

from holdfast_agent.decide import fence
from holdfast_agent.decide.fence import Accepted, FenceVerdict
from holdfast_wire.messages import (
    Arm,
    CommitStep,
    Leave,
    Origin,
    ReleaseBefore,
    SaveHeld,
    SessionResponse,
    SetSchedule,
    StateDigest,
    StepAnnounced,
    StopRound,
    Welcome,
    WorldAssignment,
)

ABOUT_ROUND = (WorldAssignment, StopRound, Arm, Origin, ReleaseBefore, SetSchedule)
"""Messages that an older round in the fence makes void."""
ABOUT_CHECKPOINTS = (Origin, CommitStep, StepAnnounced, ReleaseBefore, SaveHeld)
"""Messages for the keeper of this node's checkpoints, which outlives its training processes."""


class Opening(enum.Enum):
    """What the first message of a stream says."""

    WELCOMED = "welcomed"
    SENT_AWAY = "sent away"
    """A newer agent has taken this one's place: nothing follows."""
    AMISS = "amiss"
    """A master that does not keep to the protocol: the stream is given up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Heard:
    """A message judged by its fence."""

    verdict: FenceVerdict
    accepted: Accepted
    """What is known from now on."""
    round: int
    """For an assignment the newest round before it; for others the round in their fence."""


def hear(known: Accepted, response: SessionResponse) -> Heard:
    """Judge a message; unless the verdict is ACCEPT nothing of it counts."""
    got, message = response.fence, response.message
    verdict = fence.judge(known, got, about_round=isinstance(message, ABOUT_ROUND))
    if verdict is not FenceVerdict.ACCEPT or got is None:
        return Heard(verdict, known, 0)
    assigned = isinstance(message, WorldAssignment)
    accepted = fence.accept(known, got, about_round=assigned)
    return Heard(verdict, accepted, known.round if assigned else got.round)


def concerns_ending(message: object) -> bool:
    """Whether an agent that is ending acts on a message that its fence allows.

    Of orders only a stop at once: the others go on without this node, and its processes, which
    have their grace to end in, must not train beside them.
    """
    if isinstance(message, StopRound):
        return message.grace_seconds <= 0
    return isinstance(message, (Welcome, *ABOUT_CHECKPOINTS))


def opening(first: object) -> Opening:
    """Judge the first message of a stream by its kind."""
    if isinstance(first, Welcome):
        return Opening.WELCOMED
    return Opening.SENT_AWAY if isinstance(first, Leave) else Opening.AMISS


def newer_digest(known: StateDigest | None, got: StateDigest) -> bool:
    """Whether a digest replaces the one that is kept: by epoch, then by sequence."""
    if known is None or known.fence is None or got.fence is None:
        return True
    return (got.fence.epoch, got.sequence) > (known.fence.epoch, known.sequence)
