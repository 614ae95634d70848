"""A lease that runs out costs only rounds that had processes at that time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from holdfast.page import Page
from holdfast_agent.policies.round_phases import Orders
from holdfast_agent.workers.log_files import RoundLogs
from holdfast_agent.workers.page_watch import Lease
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.zygote_watch import ZygoteWatch
from holdfast_agent.zygote.protocol import Command, Event, LeaseExpired, RoundDead, Spawn
from holdfast_wire.messages import WorldAssignment

SECOND = 1_000_000_000


class Node:
    """A lease and a runner, wired as the agent does; the zygote notes what it is told."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.spawned: list[tuple[int, bool]] = []
        """(round, whether its lease was stale) of what the zygote was told to start."""
        self.lease = Lease(page)
        tools = SimpleNamespace(page=page, process=SimpleNamespace(send=self._send))
        self.said: list[object] = []
        """Reports to the master."""
        report = lambda message, _: self.said.append(message)  # noqa: E731
        self.runner = RoundRunner(cast("Any", tools), report, self.lease.resume)

    def tick(self, now_ns: int) -> None:
        """Look at the lease."""
        self.lease.tick(now_ns, self.runner.stood_still)

    def _send(self, command: Command) -> None:
        if isinstance(command, Spawn):
            stale = self.page.lease_is_stale(time.monotonic_ns())
            self.spawned.append((command.round, stale))

    def hear(self, *events: Event) -> None:
        """Take events of the zygote as the agent does, all in one look."""
        tools: Any = SimpleNamespace(process=SimpleNamespace(receive=lambda: list(events)))
        nothing: Any = Mock()
        ZygoteWatch(tools, self.runner, nothing, self.lease, self.said.append, nothing)._read()

    def wait(self, number: int) -> None:
        """Have a round that waits for a zygote."""
        self.runner.hold()
        logs = RoundLogs({}, lambda: None)
        self.runner.pending = Round(number=number, assignment=WorldAssignment(), logs=logs)


@pytest.fixture
def node() -> Iterator[Node]:
    """A node whose lease is 4 s."""
    page = Page.create(1)
    yield Node(page)
    page.close()


async def test_an_agent_that_stood_still_with_a_waiting_round_renews_its_lease(node: Node) -> None:
    """There is nothing to kill, and the zygote to come would start nothing without a lease."""
    node.tick(1 * SECOND)
    node.wait(7)
    node.tick(9 * SECOND)
    assert not node.page.lease_is_stale(9 * SECOND)
    assert node.runner.pending is not None


async def test_a_waiting_round_starts_under_a_fresh_lease(node: Node) -> None:
    """The zygote's word that it is ready may be heard before the lease is looked at again."""
    node.tick(time.monotonic_ns() - 9 * SECOND)
    node.wait(7)
    node.runner.release()
    assert node.spawned == [(7, False)]


async def test_processes_beside_a_waiting_round_are_killed(node: Node) -> None:
    """The lease is theirs, and stays stale until they are dead."""
    node.tick(1 * SECOND)
    node.wait(7)
    node.runner.current = Round(number=6, assignment=WorldAssignment(), orders=Orders.KILLED)
    node.tick(9 * SECOND)
    assert Orders.LEASE_EXPIRED in node.runner.current.orders
    assert node.page.lease_is_stale(9 * SECOND)


async def test_a_round_that_was_started_after_the_lease_ran_out_lives_on(node: Node) -> None:
    """The zygote saw the stale lease while nothing lived; its word comes after the spawn."""
    node.wait(7)
    node.runner.release()
    node.hear(LeaseExpired(9.0, ()))
    assert node.runner.current is not None
    assert Orders.KILLED not in node.runner.current.orders
    assert not node.page.lease_is_stale(time.monotonic_ns())
    node.hear(LeaseExpired(9.0, (7,)))
    assert Orders.LEASE_EXPIRED in node.runner.current.orders


async def test_a_round_that_was_dead_before_the_lease_ran_out_did_not_end_by_it(node: Node) -> None:
    """Expired leases are heard before the deaths that they explain, and explain no others."""
    node.wait(7)
    node.runner.release()
    node.hear(RoundDead(7), LeaseExpired(9.0, ()))
    assert node.said == []
    assert not node.page.lease_is_stale(time.monotonic_ns())
