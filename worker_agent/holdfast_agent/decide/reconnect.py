"""How long an agent waits before it dials its master again."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 1.0
SECONDS_PER_AGENT = 0.004
"""After a refusal: a master that has just come back takes about this long for one handshake.
Where more come at once than it can take, each waits until it gives up, and the work is lost."""
FIRST_CONNECT_SECONDS = 1.5
"""The first attempts to connect may take this long each, the handshake included; a refused one
fails at once. One that leads to a node that is gone leads nowhere, and the next one to the master's
successor; TCP asks a second time after 1 s."""
FIRST_CONNECTS = 2
"""So many are the first; the later ones may take twice as long each."""
CONNECT_SECONDS = 10.0
"""And at most this long, for a master that is slow."""
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


def connect_deadline(crowd: int, attempt: int = 0) -> float:
    """Return how long an attempt to connect may take, s.

    In a crowd of thousands a handshake waits for its turn, and an attempt that is given up too
    early only adds to the crowd. Arguments as for `delay`.
    """
    doublings = min(max(0, attempt - FIRST_CONNECTS + 1), _MOST_DOUBLINGS)
    alone = min(CONNECT_SECONDS, FIRST_CONNECT_SECONDS * (1 << doublings))
    turns = TURNS * crowd * SECONDS_PER_AGENT
    return max(alone, turns)


def welcome_deadline(crowd: int) -> float:
    """Return how long a Welcome may take once there is a connection, s."""
    return max(WELCOME_SECONDS, crowd * SECONDS_PER_AGENT)
