"""The count of connections that show no identity of the job."""

from __future__ import annotations

import asyncio

import pytest

from holdfast_master.server import connections
from holdfast_master.server.connections import GRACE_SECONDS, SEEN_SECONDS, ConnectionCounter


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_connection_without_a_call_is_due_after_the_grace() -> None:
    """A slow handshake is no stranger yet; each is told once."""
    clock = Clock()
    counter = ConnectionCounter(clock)
    counter.opened()
    clock.now += GRACE_SECONDS - 1
    counter.opened()
    assert counter.take_due() == 0
    clock.now += 1
    assert (counter.take_due(), counter.take_due()) == (1, 0)
    assert counter.unidentified == 2


def test_the_calls_of_one_connection_stand_for_one() -> None:
    """A busy client does not hide a stranger."""
    clock = Clock()
    counter = ConnectionCounter(clock)
    for _ in range(2):
        counter.opened()
    for _ in range(10):
        counter.identified("ipv4:10.0.0.1:4000")
        clock.now += SEEN_SECONDS - 1
        counter.take_due()
    assert counter.unidentified == 1


def test_two_clients_are_two_connections() -> None:
    """By address and port."""
    counter = ConnectionCounter(Clock())
    for port in (4000, 4001):
        counter.opened()
        counter.identified(f"ipv4:10.0.0.1:{port}")
    assert counter.unidentified == 0


def test_peers_are_forgotten() -> None:
    """Ten thousand agents that come and go leave nothing behind."""
    clock = Clock()
    counter = ConnectionCounter(clock)
    for number in range(1000):
        counter.identified(f"ipv4:10.0.0.1:{number}")
    clock.now += SEEN_SECONDS
    counter.take_due()
    assert counter._seen == {}


async def test_what_is_due_shares_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of probes does not fill the log."""
    heard, lines = asyncio.Event(), []

    def warning(_text: str, *, extra: dict[str, int]) -> None:
        lines.append(extra)
        heard.set()

    monkeypatch.setattr(connections, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(connections.log, "warning", warning)
    counter = ConnectionCounter()
    for _ in range(100):
        counter.opened()
    task = asyncio.create_task(counter.run())
    async with asyncio.timeout(10.0):
        await heard.wait()
    task.cancel()
    assert lines == [{"count": 100, "total": 100}]
