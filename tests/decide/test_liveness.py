"""Whether a node is alive, away, silent or lost, and how often it must be heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.decide.liveness import (
    Health,
    Limits,
    Pulse,
    heartbeat_interval,
    judge,
    silence_limit,
)

LIMITS = Limits(lease=4.0, reconnect=0.3)


def pulse(heard: float, *, gone: float | None = None, heartbeat: float = 0.5) -> Pulse:
    """A node that was heard at a time, and whose stream ended at another."""
    return Pulse(
        connected=gone is None,
        last_heard=heard,
        disconnected_at=gone or 0.0,
        heartbeat=heartbeat,
    )


TABLE = [
    # pulse, now, health, next look
    (pulse(10.0), 10.2, Health.ALIVE, 11.5),
    (pulse(10.0), 11.5, Health.SUSPECT, 15.0),
    (pulse(10.0), 14.99, Health.SUSPECT, 15.0),
    (pulse(10.0), 15.0, Health.LOST, 15.0),
    (pulse(10.0, gone=10.4), 10.5, Health.BLIP, 10.7),
    (pulse(10.0, gone=10.4), 10.71, Health.AWAY, 15.0),
    (pulse(10.0, gone=14.9), 14.95, Health.BLIP, 15.0),
    (pulse(10.0, gone=10.4), 15.0, Health.LOST, 15.0),
    (pulse(10.0, heartbeat=5.0), 24.9, Health.LOST, 24.9),
    (pulse(10.0, heartbeat=5.0), 23.9, Health.ALIVE, 25.0),
]


@pytest.mark.parametrize(("node", "now", "health", "until"), TABLE)
def test_judgement(node: Pulse, now: float, health: Health, until: float) -> None:
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
    if verdict.health is Health.LOST:
        assert wait > LIMITS.lease
    else:
        assert wait < silence_limit(heartbeat, LIMITS) + 1e-6
        assert verdict.until > heard + wait


INTERVALS = [(1, 0.5), (500, 0.5), (501, 1.5), (1000, 2.0), (1001, 2.5), (2500, 5.0), (9999, 5.0)]


@pytest.mark.parametrize(("nodes", "interval"), INTERVALS)
def test_a_crowd_is_heard_less_often(nodes: int, interval: float) -> None:
    """Above 500 nodes intervals grow in half seconds up to five."""
    found = heartbeat_interval(nodes, usual=0.5, longest=5.0, crowd=500, messages_per_second=500.0)
    assert found == interval
