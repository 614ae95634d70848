"""Errors that mean a fault in the master itself.

Belongs here: broken invariants and impossible steps. Does not belong here: bad input of others,
which is refused with an event and never raised.
"""

from __future__ import annotations

from collections.abc import Iterable


class CoreFaultError(Exception):
    """The core contradicts itself. The shell logs it and exits; a new master reads the journal."""


class InvalidTransitionError(CoreFaultError):
    """The state machine has no such step."""

    def __init__(self, phase: str, trigger: str, story: Iterable[str] = ()) -> None:
        self.phase = phase
        self.trigger = trigger
        self.story = tuple(story)
        lines = "".join(f"\n  {line}" for line in self.story)
        super().__init__(
            f"{trigger} is impossible in phase {phase}; before it:{lines or ' nothing'}"
        )


class BrokenInvariantError(CoreFaultError):
    """Something that must always hold does not."""


def ensure(holds: bool, text: str) -> None:  # noqa: FBT001
    """Check an invariant.

    Raises:
        BrokenInvariantError: it does not hold.
    """
    if not holds:
        raise BrokenInvariantError(text)
