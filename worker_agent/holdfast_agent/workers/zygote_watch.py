"""The zygote inside the event loop: its events, its end, the start of another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import loop_errors
from holdfast_agent.policies.liveness import ZygoteHistory
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.page_watch import Lease
from holdfast_agent.workers.rounds import DYING_SECONDS, STUCK_SECONDS
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.shutdown import Shutdown
from holdfast_agent.workers.store_processes import NodeStores
from holdfast_agent.zygote import process_tree, protocol
from holdfast_agent.zygote.process_tree import kill_below, signal_each
from holdfast_wire.messages import Warmed

log = logging.getLogger(__name__)

READY_SECONDS = 300.0
"""Time for a fresh zygote to import torch, from a slow network file system too."""
LOOK_SECONDS = 0.003
"""Time between two looks at processes that are being killed."""
REMEDY = "if this repeats, look for a lack of memory (dmesg) or for who signals hf-zygote"


class ZygoteWatch:
    """Gives the zygote's events to the parts they concern, and the agent another zygote at its end.

    One that does not carry out its commands is killed, and so replaced too.
    """

    def __init__(
        self,
        tools: AgentContext,
        runner: RoundRunner,
        stores: NodeStores,
        lease: Lease,
        report: Callable[[Any], None],
        shutdown: Shutdown,
    ) -> None:
        """Read nothing before `listen`.

        stores: Has the store processes that the zygote has, or has to start.
        lease: Begins again when no process of the zygote lives any more.
        """
        self._tools, self._runner, self._stores = tools, runner, stores
        self._process, self._lease, self._report = tools.process, lease, report
        self._ending: Callable[[], bool] = lambda: shutdown.started
        self._fail = shutdown.fail
        self._descriptor = -1
        """Descriptor of the events; kept because the zygote closes its own at its end."""
        self._gone = asyncio.Event()
        self.warm = False
        """True: the zygote is ready, or cannot fork any more."""
        self._history = ZygoteHistory()
        self._codes: dict[int, int] = {}
        """Exit codes of the dead zygote's workers, which became children of this process."""
        self._started_at: float | None = None
        """Monotonic time of the start of a fresh zygote not ready yet; None: none."""
        self._ready_at: float | None = None
        """Monotonic time since which it may have processes; before, all commands wait for it."""
        self._killed_at: float | None = None
        self._killed_for = ""
        self._restarting: asyncio.Task[None] | None = None
        self._closed = False
        self._handlers: Mapping[type[Any], Callable[[Any], None]] = {
            protocol.Ready: self._on_ready,
            protocol.ForkDisabled: self._on_fork_disabled,
            protocol.WorkerStarted: runner.on_started,
            protocol.WorkerExitedEvent: runner.on_exited,
            protocol.RoundDead: self._on_dead,
            protocol.StoreReady: stores.on_ready,
            protocol.StoreExited: stores.on_exited,
            protocol.LeaseExpired: self._on_lease_expired,
            protocol.Failure: runner.on_failure,
            protocol.ZygoteExited: self._on_exited,
        }

    def listen(self) -> None:
        """Begin to read the events of a started zygote."""
        self._gone.clear()
        self._descriptor = self._process.fileno()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def on_reaped(self, codes: Mapping[int, int]) -> None:
        """Note the exit codes, by pid, of reaped children that this process had adopted."""
        self._process.older_children.difference_update(codes)  # the pids may be used again
        current = self._runner.live
        if current is not None:
            ours = set(current.pids.values())
            self._codes.update((pid, code) for pid, code in codes.items() if pid in ours)

    def look(self, now: float) -> None:
        """Kill a zygote that does not carry out its commands (`now`: monotonic, s)."""
        if self._restarting is not None and not self._restarting.done():
            return  # there is none: the last one is being reaped, or another will start
        problem = self._runner.stuck(now)
        if self._ready_at is not None:
            problem = problem or self._stores.stuck(now, self._ready_at)
        if self._started_at is not None and now - self._started_at > READY_SECONDS:
            problem = f"the zygote is not ready after {READY_SECONDS:.0f} s"
        if not problem:
            return
        if self._killed_at is None:
            log.error("%s: the zygote is killed", problem)
            self._killed_at, self._killed_for = now, problem
            signal_each([self._process.pid], signal.SIGKILL)
        elif now - self._killed_at > STUCK_SECONDS:
            self._fail(problem)

    async def stop_restarts(self) -> None:
        """Give up the restart under way; later ends are intended."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)

    async def close(self, timeout_seconds: float) -> None:
        """End the zygote and wait for it; one that does not react (SIGSTOP) is killed.

        So is one that still imports: it reads no command and has no processes.
        """
        self._process.shutdown()
        if not self._gone.is_set() and self._ready_at is None:
            os.kill(self._process.pid, signal.SIGKILL)
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._gone.wait()
                return
            signal_each([self._process.pid], signal.SIGKILL)

    # --- events -------------------------------------------------------------------------------

    def _read(self) -> None:
        events = self._process.receive()
        # Workers that see a stale lease kill themselves: with the event first, that is no failure.
        events.sort(key=lambda event: not isinstance(event, protocol.LeaseExpired))
        for event in events:
            self._handlers[type(event)](event)

    def _on_ready(self, event: protocol.Ready) -> None:
        if event.reason:
            log.warning("workers are started cold: %s", event.reason)
        self._runner.cold_reason = event.reason
        if self._started_at is not None:
            log.warning("a fresh zygote is ready after %.1f s", time.monotonic() - self._started_at)
        self._started_at, self._ready_at = None, time.monotonic()
        self._runner.release()
        log.info("ready for ranks: what they share took %.1f s to import", event.seconds)
        self._become_warm(event.seconds)

    def _on_fork_disabled(self, event: protocol.ForkDisabled) -> None:
        log.warning("workers are started cold from now on: %s", event.reason)
        self._runner.cold_reason = event.reason
        self._become_warm(0.0)

    def _become_warm(self, seconds: float) -> None:
        self.warm = True
        self._report(Warmed(seconds=seconds, cold_reason=self._runner.cold_reason))

    def _on_dead(self, event: protocol.RoundDead) -> None:
        self._runner.on_dead(event.round)
        if self._runner.died.is_set():
            self._lease.resume()

    def _on_lease_expired(self, event: protocol.LeaseExpired) -> None:
        runner = self._runner
        # The lease may have run out while nothing lived, and a round have been started since.
        if runner.current is not None and runner.current.number in event.rounds:
            runner.stood_still(event.age_s)
        if runner.live is None:
            self._lease.resume()

    # --- its end, and another one -------------------------------------------------------------

    def _on_exited(self, event: protocol.ZygoteExited) -> None:
        """Restart an ended zygote; its workers have SIGKILL and become children of this process."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._gone.set()
        self.warm = False
        if not self._closed:  # else the agent itself ends, and leaves nothing behind
            self._runner.hold()
            self._restarting = asyncio.create_task(self._work(self._reason(event)))

    def _reason(self, event: protocol.ZygoteExited) -> str:
        how, code = f"exit code {event.exit_code}", event.exit_code or 0
        if code < 0:
            names = [f" ({one.name})" for one in signal.Signals if one == -code]
            how = f"signal {-code}{''.join(names)}"
        why = f" (it was killed: {self._killed_for})" if self._killed_for else ""
        return f"the zygote ended with {how}{why}"

    async def _work(self, reason: str) -> None:
        try:
            if await self._restart(reason):
                self._started_at = time.monotonic()
                self.listen()
                self._stores.on_zygote_restarted()
        except Exception as error:  # the top of the task
            log.exception("no zygote is started (fault %d)", loop_errors.count(__name__))
            self._fail(f"{reason}; {type(error).__name__}: {error}")

    async def _restart(self, reason: str) -> bool:
        """Take leave of the zygote, and start another; return True if there is one."""
        limit = DYING_SECONDS if self._killed_at is None else STUCK_SECONDS
        ready_seconds = None if self._ready_at is None else time.monotonic() - self._ready_at
        self._started_at = self._ready_at = self._killed_at = None
        self._killed_for = ""
        if not await self._reap(limit):
            self._fail(f"{reason}; its processes survive SIGKILL (uninterruptible sleep?)")
            return False
        self._runner.zygote_lost(self._codes, f"{reason}, and its ranks with it; {REMEDY}")
        self._codes.clear()
        self._stores.on_zygote_lost(reason)
        self._lease.resume()
        return await self._start(reason, ready_seconds)

    async def _start(self, reason: str, ready_seconds: float | None) -> bool:
        """Start another one; ready_seconds: time for which the last one was ready, None: never."""
        while not self._ending():
            self._history = self._history.ended(ready_seconds)
            if self._history.given_up:
                self._fail(f"{reason}; {self._history.given_up}")
                break
            pause = self._history.pause_seconds
            log.error("%s: another is started in %.0f s; %s", reason, pause, REMEDY)
            await asyncio.sleep(pause)
            if self._ending():
                break
            try:
                self._process.restart()
            except OSError as error:
                reason, ready_seconds = f"no zygote can be started: {error}", None
            else:
                return True
        return False

    async def _reap(self, limit_seconds: float) -> bool:
        """Kill and reap the processes that the zygote left; return True if all are gone.

        The agent's children are the zygote's processes and the spared ones. If the agent is the
        first process of a container, other processes that it adopted are killed too.
        """
        until = time.monotonic() + limit_seconds
        older = self._process.older_children
        while kill_below(os.getpid(), {*older, *self._tools.spared()}):
            self.on_reaped(process_tree.reap_adopted(self._tools.spared()))
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True
