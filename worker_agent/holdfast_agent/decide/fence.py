"""Which messages of a master are too old to act on.

Only the ordering rule; what an accepted message leads to is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages import Fence


class FenceVerdict(enum.Enum):
    """What to do with a message because of its fence."""

    ACCEPT = "accept"
    NO_FENCE = "it carries no fence"
    OLDER_EPOCH = "it is from an older master"
    OTHER_INCARNATION = "it is from another master of the same epoch"
    OLDER_ROUND = "it is about an older round"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The newest fence that this agent has accepted."""

    epoch: int = 0
    incarnation: str = ""
    group: int = 0
    round: int = 0

    def fence(self, round_number: int | None = None) -> Fence:
        """Return the fence for a message, about `round_number` where that is given."""
        return Fence(
            epoch=self.epoch,
            incarnation=self.incarnation,
            group=self.group,
            round=self.round if round_number is None else round_number,
        )


def judge(known: Accepted, got: Fence | None, *, about_round: bool) -> FenceVerdict:
    """Return whether a message with the fence `got` may be acted on.

    about_round: the message is about the round in its fence (an assignment, an arm, a stop), so an
        older round makes it void; others only need a living master.
    """
    if got is None or got.epoch == 0:
        return FenceVerdict.NO_FENCE
    if got.epoch < known.epoch:
        return FenceVerdict.OLDER_EPOCH
    if got.epoch == known.epoch and got.incarnation != known.incarnation:
        return FenceVerdict.OTHER_INCARNATION
    if about_round and got.round < known.round:
        return FenceVerdict.OLDER_ROUND
    return FenceVerdict.ACCEPT


def accept(known: Accepted, got: Fence, *, about_round: bool) -> Accepted:
    """Return what is known after an accepted message."""
    return Accepted(
        epoch=got.epoch,
        incarnation=got.incarnation,
        group=got.group,
        round=max(known.round, got.round) if about_round else known.round,
    )
