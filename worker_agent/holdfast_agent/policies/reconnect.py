"""Backoff of an agent before it dials its master again."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 1.0
SECONDS_PER_AGENT = 0.004
"""Delay per agent after a refusal, s: a master that has just come back needs about this long for
one handshake. If more agents come at once than it can serve, each waits until it gives up, and the
master's work is lost."""
FIRST_CONNECT_SECONDS = 1.5
"""Deadline of the first attempts to connect, s, with the handshake; a refusal comes at once. An
attempt to a node that is gone leads nowhere, and the next one to the master's successor. TCP sends
a second packet after 1 s."""
FIRST_CONNECTS = 2
"""Number of first attempts; each later one may take twice as long as the one before."""
CONNECT_SECONDS = 10.0
"""Longest deadline of an attempt, s, for a slow master."""
WELCOME_SECONDS = 5.0
"""Deadline from the connection to the Welcome, s: a master that does not answer is given up."""
TURNS = 2
"""Handshakes that a member of a crowd waits for, per agent: a first try and a second."""
_MOST_DOUBLINGS = 8


def delay(attempt: int, share: float, *, refused: bool = False, crowd: int = 1) -> float:
    """Return the pause before the next try, s.

    attempt: failed tries since the last Welcome.
    share: 0 to 1, drawn anew each time, so that a crowd does not come back at once.
    refused: there was no master to connect to, so all other agents look for it as well. An agent
        whose own stream broke must not wait: it would count as lost.
    crowd: largest number of agents of the job.
    """
    doubled = FIRST_DELAY_SECONDS * (1 << min(attempt, _MOST_DOUBLINGS))
    alone = min(MAX_DELAY_SECONDS, doubled) * (1 + share) / 2
    spread = crowd * SECONDS_PER_AGENT
    return share * spread if refused and spread > MAX_DELAY_SECONDS else alone


def connect_deadline(crowd: int, attempt: int = 0) -> float:
    """Return the longest time for an attempt to connect, s.

    In a crowd of thousands a handshake waits for its turn, and an attempt that is given up too
    early only adds to the crowd. Arguments as for `delay`.
    """
    doublings = min(max(0, attempt - FIRST_CONNECTS + 1), _MOST_DOUBLINGS)
    alone = min(CONNECT_SECONDS, FIRST_CONNECT_SECONDS * (1 << doublings))
    turns = TURNS * crowd * SECONDS_PER_AGENT
    return max(alone, turns)


def welcome_deadline(crowd: int) -> float:
    """Return the longest time from the connection to a Welcome, s."""
    return max(WELCOME_SECONDS, crowd * SECONDS_PER_AGENT)
