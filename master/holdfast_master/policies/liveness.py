"""Liveness of a node: alive, away, silent or lost; and its heartbeat interval.

The order of limits is what makes it safe: an agent's lease ends before the silence limit, so the
workers of an agent that merely stands still are dead before anybody starts a new round.
"""

from __future__ import annotations

import dataclasses
import enum

from holdfast_master.settings import CoreSettings


class NodeHealth(enum.Enum):
    """The health of a node."""

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
    """The known signs of one node's life."""

    connected: bool
    last_heard: float
    """Time of its last message, s."""
    disconnected_at: float
    """When its stream ended, s; means nothing while connected."""
    heartbeat: float
    """The interval between heartbeats that it was given, s."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """The health of a node, with the reason and the time of the next look."""

    health: NodeHealth
    reason: str
    until: float
    """Unless it is heard before, the judgement changes then, s."""


def silence_limit(heartbeat: float, settings: CoreSettings) -> float:
    """Return how long a node may say nothing before the node counts as lost, s."""
    return settings.lease_seconds + 2 * heartbeat


def judge(pulse: Pulse, settings: CoreSettings, now: float) -> Judgement:
    """Judge the node's health at `now`."""
    limit = silence_limit(pulse.heartbeat, settings)
    lost_at = pulse.last_heard + limit
    silent = now - pulse.last_heard
    if now >= lost_at:
        text = f"silent for {silent:.1f} s, the limit is {limit:g} s"
        return Judgement(NodeHealth.LOST, text, now)
    if not pulse.connected:
        away_at = pulse.disconnected_at + settings.reconnect_seconds
        if now < away_at:
            text, until = "its stream broke a moment ago", min(away_at, lost_at)
            return Judgement(NodeHealth.BLIP, text, until)
        text = f"disconnected, last heard {silent:.1f} s ago, no evidence that it is dead"
        return Judgement(NodeHealth.AWAY, text, lost_at)
    suspect_at = pulse.last_heard + 3 * pulse.heartbeat
    if now >= suspect_at:
        return Judgement(NodeHealth.SUSPECT, f"connected but silent for {silent:.1f} s", lost_at)
    return Judgement(NodeHealth.ALIVE, "heard", min(suspect_at, lost_at))


def next_look(until: float, heartbeat: float, now: float) -> float:
    """The time of the next look at a node; time alone changes no judgement before `until`.

    The times lie on a grid and are never late: the master then looks at ten thousand nodes some
    thousands at a time, instead of waking up for each.
    """
    grid = heartbeat / 2
    early = until // grid * grid if grid > 0 else until
    return early if early > now else until


def heartbeat_interval(nodes: int, settings: CoreSettings) -> float:
    """The seconds between heartbeats with which `nodes` agents do not flood the master.

    Up to `crowd_nodes` the interval is the usual one; above, it grows in half seconds.
    """
    usual = settings.heartbeat_seconds
    if nodes <= settings.crowd_nodes:
        return usual
    halves = -(-2 * nodes // max(1, int(settings.crowd_messages_per_second)))
    return min(settings.longest_heartbeat_seconds, max(usual, halves / 2))
