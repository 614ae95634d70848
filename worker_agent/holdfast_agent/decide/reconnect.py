"""How long an agent waits before it dials its master again."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 1.0
SECONDS_PER_AGENT = 0.004
"""After a refusal: a master that has just come back takes about this long for one handshake.
Where more come at once than it can take, each waits until it gives up, and the work is lost."""
CONNECT_SECONDS = 10.0
"""An attempt to connect with its handshake may take this long; a refused one fails at once."""
WELCOME_SECONDS = 5.0
"""From the connection to the Welcome: a master that does not answer is left."""
TURNS = 2
"""Handshakes that a member of a crowd waits for: everybody's, and everybody's second try."""
_MOST_DOUBLINGS = 8


def delay(attempt: int, share: float, *, refused: bool = False, crowd: int = 1) -> float:
    """Return the pause before the next try, s.

    attempt: failed tries since the last Welcome.
    share: 0 to 1, drawn anew each time, so that a crowd does not come back at once.
    refused: there was no master to connect to, so everybody else is looking for it as well; an
        agent whose own stream broke must not wait, it would be taken for lost.
    crowd: most agents that the job may have.
    """
    doubled = FIRST_DELAY_SECONDS * (1 << min(attempt, _MOST_DOUBLINGS))
    alone = min(MAX_DELAY_SECONDS, doubled) * (1 + share) / 2
    spread = crowd * SECONDS_PER_AGENT
    return share * spread if refused and spread > MAX_DELAY_SECONDS else alone


def connect_deadline(crowd: int) -> float:
    """Return how long an attempt to connect may take, s.

    In a crowd of thousands a handshake waits for its turn, and an attempt that is given up too
    early only adds to the crowd. Arguments as for `delay`.
    """
    return max(CONNECT_SECONDS, TURNS * crowd * SECONDS_PER_AGENT)


def welcome_deadline(crowd: int) -> float:
    """Return how long a Welcome may take once there is a connection, s."""
    return max(WELCOME_SECONDS, crowd * SECONDS_PER_AGENT)
