"""Hears the zygote: reads its events inside the event loop and hands each to whom it concerns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast_agent import zygote
from holdfast_agent.commands import Commands
from holdfast_agent.lease import Lease
from holdfast_agent.runner import RoundRunner
from holdfast_agent.stores import Stores

log = logging.getLogger(__name__)


class Hearer(Protocol):
    """Whose zygote it is: the parts that its events concern."""

    runner: RoundRunner
    stores: Stores
    lease: Lease
    commands: Commands

    def become_warm(self, seconds: float) -> None:
        """The zygote is ready, or says that it cannot fork any more."""

    def on_zygote_lost(self, event: zygote.ZygoteExited) -> None:
        """The zygote has ended."""


class ZygoteEvents:
    """Dispatches zygote events for one agent."""

    def __init__(self, agent: Hearer) -> None:
        """`agent`'s parts get the events."""
        self._agent = agent
        self._process: zygote.Zygote | None = None
        self._descriptor = -1
        """The zygote closes its own when it is gone, so the number is kept."""
        self._gone = asyncio.Event()
        self._handlers: Mapping[type[Any], Callable[[Any], None]] = {
            zygote.Ready: self._on_ready,
            zygote.ForkDisabled: self._on_fork_disabled,
            zygote.WorkerStarted: agent.runner.on_started,
            zygote.WorkerExited: agent.runner.on_exited,
            zygote.RoundDead: self._on_dead,
            zygote.StacksDumped: self._on_dumped,
            zygote.StoreReady: agent.stores.on_ready,
            zygote.StoreExited: agent.stores.on_exited,
            zygote.LeaseExpired: self._on_lease_expired,
            zygote.Failure: agent.runner.on_failure,
            zygote.ZygoteExited: self._on_exited,
        }

    def listen(self, process: zygote.Zygote) -> None:
        """Begin to read the events of a started zygote."""
        self._process = process
        self._descriptor = process.fileno()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    async def close(self, process: zygote.Zygote, timeout_seconds: float) -> None:
        """End the zygote and wait for it; one that does not obey (SIGSTOP) is killed."""
        process.shutdown()
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), timeout_seconds)
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _read(self) -> None:
        if self._process is None:
            return
        events = self._process.receive()
        # Workers that see a stale lease kill themselves: known first, that is no failure of theirs.
        events.sort(key=lambda event: not isinstance(event, zygote.LeaseExpired))
        for event in events:
            self._handlers[type(event)](event)

    def _on_ready(self, event: zygote.Ready) -> None:
        if not event.fork_ok:
            log.warning("workers are started cold: %s", event.reason)
            self._agent.runner.cold_reason = event.reason
        self._agent.become_warm(event.seconds)

    def _on_fork_disabled(self, event: zygote.ForkDisabled) -> None:
        log.warning("workers are started cold from now on: %s", event.reason)
        self._agent.runner.cold_reason = event.reason
        self._agent.become_warm(0.0)

    def _on_dead(self, event: zygote.RoundDead) -> None:
        self._agent.runner.on_dead(event.round)
        if not self._agent.runner.died.is_set():
            return
        self._agent.lease.resume()

    def _on_dumped(self, event: zygote.StacksDumped) -> None:
        self._agent.commands.on_dumped(event.round, event.missing)

    def _on_lease_expired(self, event: zygote.LeaseExpired) -> None:
        self._agent.runner.stood_still(event.age_s)
        if not self._agent.runner.alive:
            self._agent.lease.resume()

    def _on_exited(self, event: zygote.ZygoteExited) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._process = None
        self._gone.set()
        self._agent.on_zygote_lost(event)
