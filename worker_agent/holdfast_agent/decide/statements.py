"""Reports that the master may not have got, to be told again after a reconnect.

A stream has no acknowledgements: what was written may be lost with it. The hello tells what is
true now; what happened (exits, boundaries) is told again from here. The master takes repeats.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from holdfast_agent.decide.fence import Accepted
from holdfast_wire.messages import (
    ArmEcho,
    BoundaryReached,
    RoundStarted,
    RoundStopped,
    SessionRequest,
    WorkerExited,
)

KINDS = (WorkerExited, RoundStarted, RoundStopped, BoundaryReached, ArmEcho)
LIMIT = 512
"""Two rounds of 128 local ranks fit twice."""


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """A report about a round."""

    round: int
    message: Any
    made_at: float
    """Monotonic time, s."""


class Statements:
    """The reports about the newest rounds."""

    def __init__(self) -> None:
        self._kept: collections.deque[Statement] = collections.deque(maxlen=LIMIT)

    def note(self, message: Any, round_number: int, now: float) -> None:
        """Keep a message if it is one that must not get lost; `now`: monotonic, s."""
        if isinstance(message, KINDS):
            self._kept.append(Statement(round_number, message, now))

    def forget_before(self, round_number: int) -> None:
        """Drop what is about rounds before `round_number`: nobody asks any more."""
        kept = [entry for entry in self._kept if entry.round >= round_number]
        self._kept = collections.deque(kept, maxlen=LIMIT)

    def again(self, accepted: Accepted, now: float) -> list[SessionRequest]:
        """Return everything kept, in order, with today's age and fence; `now`: monotonic, s."""
        return [
            SessionRequest(
                fence=accepted.fence(entry.round), message=_aged(entry.message, now - entry.made_at)
            )
            for entry in self._kept
        ]


def _aged(message: Any, seconds: float) -> Any:
    if isinstance(message, WorkerExited):
        return dataclasses.replace(message, age_seconds=message.age_seconds + seconds)
    return message
