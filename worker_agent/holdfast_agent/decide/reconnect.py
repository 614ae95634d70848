"""How long an agent waits before it dials its master again."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 1.0
_MOST_DOUBLINGS = 8


def delay(attempt: int, share: float) -> float:
    """Return the pause before the next try, s.

    attempt: failed tries since the last Welcome.
    share: 0.5 to 1, drawn anew each time, so that a crowd does not come back at once.
    """
    doubled = FIRST_DELAY_SECONDS * (1 << min(attempt, _MOST_DOUBLINGS))
    return min(MAX_DELAY_SECONDS, doubled) * share
