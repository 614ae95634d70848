"""Whether a node is alive, away, silent or lost, and how often it must be heard.

Belongs here: the limits and the judgement. Does not belong here: what a loss leads to.

The order of limits is what makes it safe: an agent's lease ends before the silence limit, so the
workers of an agent that merely stands still are dead before anybody starts a new round.
"""

from __future__ import annotations

import dataclasses
import enum


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of liveness, s."""

    lease: float
    reconnect: float
    """A stream that is back within this was never gone."""


class Health(enum.Enum):
    """How a node stands."""

    ALIVE = "alive"
    BLIP = "blip"
    """Its stream broke a moment ago."""
    AWAY = "away"
    """Its stream is gone, nothing says that it is dead."""
    SUSPECT = "suspect"
    """Connected, but several heartbeats are missing."""
    LOST = "lost"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What is known of one node's life."""

    connected: bool
    last_heard: float
    """Time of its last message, s."""
    disconnected_at: float
    """When its stream ended, s; means nothing while connected."""
    heartbeat: float
    """The interval between heartbeats that it was given, s."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """How a node stands, and when to look again."""

    health: Health
    reason: str
    until: float
    """Unless it is heard before, the judgement changes then, s."""


def silence_limit(heartbeat: float, limits: Limits) -> float:
    """How long a node may say nothing before it counts as lost, s."""
    return limits.lease + 2 * heartbeat


def judge(pulse: Pulse, limits: Limits, now: float) -> Judgement:
    """How the node stands at `now`."""
    limit = silence_limit(pulse.heartbeat, limits)
    lost_at = pulse.last_heard + limit
    silent = now - pulse.last_heard
    if now >= lost_at:
        return Judgement(Health.LOST, f"silent for {silent:.1f} s, the limit is {limit:g} s", now)
    if not pulse.connected:
        away_at = pulse.disconnected_at + limits.reconnect
        if now < away_at:
            return Judgement(Health.BLIP, "its stream broke a moment ago", min(away_at, lost_at))
        text = f"disconnected, last heard {silent:.1f} s ago, no evidence that it is dead"
        return Judgement(Health.AWAY, text, lost_at)
    suspect_at = pulse.last_heard + 3 * pulse.heartbeat
    if now >= suspect_at:
        return Judgement(Health.SUSPECT, f"connected but silent for {silent:.1f} s", lost_at)
    return Judgement(Health.ALIVE, "heard", min(suspect_at, lost_at))


def next_look(until: float, heartbeat: float, now: float) -> float:
    """When to look again at a node that nothing can be said against before `until`.

    On a grid and never late: ten thousand nodes are then looked at some thousands at a time,
    instead of the master waking up for each.
    """
    grid = heartbeat / 2
    early = until // grid * grid if grid > 0 else until
    return early if early > now else until


def heartbeat_interval(
    nodes: int, *, usual: float, longest: float, crowd: int, messages_per_second: float
) -> float:
    """Seconds between heartbeats, so that `nodes` agents do not flood the master.

    Up to `crowd` nodes it is `usual`; above, it grows in half seconds up to `longest`.
    """
    if nodes <= crowd:
        return usual
    halves = -(-2 * nodes // max(1, int(messages_per_second)))
    return min(longest, max(usual, halves / 2))
