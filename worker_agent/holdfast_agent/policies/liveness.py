"""The agent's acts while the master, its zygote or this process is silent; decisions only.

A lease that ran out is not renewed while workers may live. An agent without a master asks the peers
of its world: a newer round among them means that its own workers are outdated, and a barrier that a
peer received in time is meant for all. Clocks, calls and kills are in `workers` and `master_link`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from holdfast_wire.messages import Fence, GetRoundResponse, SetBarrier


def lease_ran_out(*, age_ns: int, limit_ns: int) -> bool:
    """Return True if a lease that was renewed `age_ns` ago, and lasts `limit_ns`, is over.

    It is not simply renewed then, not before the workers are known to be dead. If agent and zygote
    stood still together, they were not killed yet, and a newer world may run elsewhere.
    """
    return age_ns > limit_ns


def why_masterless_end(
    *,
    silent_seconds: float,
    limit_seconds: float,
    accepted: Fence,
    answers: Sequence[GetRoundResponse],
) -> str:
    """Return the reason to kill the workers of the accepted round; empty: they train on.

    silent_seconds: time since the stream to the master ended, s.
    limit_seconds: longest training without a master (from Welcome), s.
    accepted: newest fence accepted here.
    answers: answers of the peers this time; peers without an answer are absent.
    """
    known = (answer.fence for answer in answers if answer.fence is not None)
    found = max((one.round for one in known if one.epoch >= accepted.epoch), default=0)
    if found > accepted.round:
        return f"a peer is in round {found}, this node in {accepted.round}"
    if silent_seconds >= limit_seconds:
        return f"no master for {silent_seconds:.0f} s, the limit is {limit_seconds:.0f} s"
    return ""


def peers_barrier(accepted: Fence, answers: Sequence[GetRoundResponse]) -> SetBarrier | None:
    """Return the newest barrier that a peer in the accepted round knows; None: no peer knows one.

    Arguments as for `why_masterless_end`.
    """
    barriers = [
        answer.barrier
        for answer in answers
        if answer.barrier is not None
        and answer.fence is not None
        and answer.fence.round == accepted.round
        and answer.fence.epoch >= accepted.epoch
    ]
    return max(barriers, key=lambda barrier: barrier.barrier_id, default=None)


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


def reconnect_pause(attempt: int, share: float, *, refused: bool = False, crowd: int = 1) -> float:
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
    early only adds to the crowd. Arguments as for `reconnect_pause`.
    """
    doublings = min(max(0, attempt - FIRST_CONNECTS + 1), _MOST_DOUBLINGS)
    alone = min(CONNECT_SECONDS, FIRST_CONNECT_SECONDS * (1 << doublings))
    turns = TURNS * crowd * SECONDS_PER_AGENT
    return max(alone, turns)


def welcome_deadline(crowd: int) -> float:
    """Return the longest time from the connection to a Welcome, s."""
    return max(WELCOME_SECONDS, crowd * SECONDS_PER_AGENT)


MAX_FAILED_STARTS = 3
"""Zygotes in a row that end before they are ready: the next one would end in the same way."""
SETTLED_SECONDS = 60.0
"""A zygote that was ready for this long worked: its end is independent of the end before."""
LONGEST_PAUSE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteHistory:
    """History of the zygotes that have ended."""

    was_ready: bool = False
    """True: one of them was ready once."""
    failed_starts: int = 0
    """Number of the last ones, without a gap, that ended before they were ready."""
    short_lives: int = 0
    """Number of the last ones, without a gap, that ended before they had settled."""

    def ended(self, ready_seconds: float | None) -> ZygoteHistory:
        """Return the history after another end.

        ready_seconds: time for which it was ready, s; None: it never was.
        """
        ready = ready_seconds is not None
        settled = ready_seconds is not None and ready_seconds >= SETTLED_SECONDS
        return ZygoteHistory(
            was_ready=self.was_ready or ready,
            failed_starts=0 if ready else self.failed_starts + 1,
            short_lives=0 if settled else self.short_lives + 1,
        )

    @property
    def given_up(self) -> str:
        """Reason not to start another zygote; empty: it is started.

        One that never became ready shows a fault of the installation or of an imported module: it
        ends the agent at once. Ends of ready ones are bounded by the job's failure budget alone.
        """
        if not self.was_ready:
            return "it ended before it was ready"
        if self.failed_starts >= MAX_FAILED_STARTS:
            return f"{self.failed_starts} in a row ended before they were ready"
        return ""

    @property
    def pause_seconds(self) -> float:
        """Time to the start of another, 0, 0, 1, 2, 4, … s: a first end is no reason to wait."""
        if self.short_lives < 2:
            return 0.0
        return min(LONGEST_PAUSE_SECONDS, 2.0 ** min(self.short_lives - 2, 10))
