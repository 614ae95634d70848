"""Liveness of a node: alive, away, silent or lost, and how often it must be heard."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast_master.policies.liveness import (
    NodeHealth,
    Pulse,
    heartbeat_interval,
    judge,
    next_look,
    silence_limit,
)
from holdfast_master.settings import CoreSettings

LIMITS = CoreSettings(lease_seconds=4.0, reconnect_seconds=0.3)


def pulse(heard: float, *, gone: float | None = None, heartbeat: float = 0.5) -> Pulse:
    """A node that was heard at a time, and whose stream ended at another."""
    return Pulse(
        connected=gone is None, last_heard=heard, disconnected_at=gone or 0.0, heartbeat=heartbeat
    )


TABLE = [
    # pulse, now, health, next look
    (pulse(10.0), 10.2, NodeHealth.ALIVE, 11.5),
    (pulse(10.0), 11.5, NodeHealth.SUSPECT, 15.0),
    (pulse(10.0), 14.99, NodeHealth.SUSPECT, 15.0),
    (pulse(10.0), 15.0, NodeHealth.LOST, 15.0),
    (pulse(10.0, gone=10.4), 10.5, NodeHealth.BLIP, 10.7),
    (pulse(10.0, gone=10.4), 10.71, NodeHealth.AWAY, 15.0),
    (pulse(10.0, gone=14.9), 14.95, NodeHealth.BLIP, 15.0),
    (pulse(10.0, gone=10.4), 15.0, NodeHealth.LOST, 15.0),
    (pulse(10.0, heartbeat=5.0), 24.9, NodeHealth.LOST, 24.9),
    (pulse(10.0, heartbeat=5.0), 23.9, NodeHealth.ALIVE, 24.0),
]


@pytest.mark.parametrize(("node", "now", "health", "until"), TABLE)
def test_judgement(node: Pulse, now: float, health: NodeHealth, until: float) -> None:
    """A broken stream is no loss; only silence for the whole limit is."""
    verdict = judge(node, LIMITS, now)
    assert verdict.health is health
    assert verdict.until == pytest.approx(until)
    assert verdict.reason


@given(
    heartbeat=st.floats(0.1, 5),
    heard=st.floats(0, 100),
    connected=st.booleans(),
    wait=st.floats(0, 20),
)
def test_the_lease_ends_before_the_silence_limit(
    *, heartbeat: float, heard: float, connected: bool, wait: float
) -> None:
    """Nobody is lost before the lease has killed its workers, nobody lives beyond the limit."""
    node = pulse(heard, gone=None if connected else heard, heartbeat=heartbeat)
    verdict = judge(node, LIMITS, heard + wait)
    if verdict.health is NodeHealth.LOST:
        assert wait > LIMITS.lease_seconds
    else:
        assert wait < silence_limit(heartbeat, LIMITS) + 1e-6
        assert verdict.until > heard + wait


INTERVALS = [(1, 0.5), (500, 0.5), (501, 1.5), (1000, 2.0), (1001, 2.5), (2500, 5.0), (9999, 5.0)]


@pytest.mark.parametrize(("nodes", "interval"), INTERVALS)
def test_a_crowd_is_heard_less_often(nodes: int, interval: float) -> None:
    """Above 500 nodes intervals grow in half seconds up to five."""
    settings = CoreSettings(
        heartbeat_seconds=0.5,
        longest_heartbeat_seconds=5.0,
        crowd_nodes=500,
        crowd_messages_per_second=500.0,
    )
    assert heartbeat_interval(nodes, settings) == interval


def test_a_node_with_a_long_interval_is_looked_at_when_its_limit_ends() -> None:
    """Three missing heartbeats of 5 s would be later than the limit of 14 s."""
    look = judge(pulse(100.0, heartbeat=5.0), LIMITS, 101.0)
    assert (look.health, look.until) == (NodeHealth.ALIVE, 114.0)


@given(until=st.floats(0.1, 1e6), heartbeat=st.floats(0.05, 5.0), ahead=st.floats(0.001, 20.0))
@example(until=9.0, heartbeat=0.05, ahead=1.0)
def test_the_next_look_is_never_late_and_lies_ahead(
    until: float, heartbeat: float, ahead: float
) -> None:
    """At most half an interval before what it stands for, give or take a rounding of `until`."""
    look = next_look(until, heartbeat, until - ahead)
    assert until - ahead < look <= until
    assert until - look <= heartbeat / 2 + math.ulp(until)


def test_nodes_that_were_heard_at_moments_of_their_own_are_looked_at_together() -> None:
    """A hundred nodes, heard within one interval: a few looks."""
    looks = {next_look(11.5 + at / 100, 1.0, 10.0) for at in range(100)}
    assert looks == {11.5, 12.0}
