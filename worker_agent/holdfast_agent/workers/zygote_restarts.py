"""Restart of a zygote that has ended: reap its processes, report its round, start another.

Belongs here: that order, and ending a zygote that does nothing any more. Does not belong here: the
decision to try another one (`policies.zygote_restarts`), its start (`zygote.handle`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

from holdfast import loop_errors
from holdfast_agent import zygote
from holdfast_agent.policies import zygote_restarts
from holdfast_agent.policies.zygote_restarts import ZygoteHistory
from holdfast_agent.workers import child_reaper
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.rounds import DYING_SECONDS, STUCK_SECONDS
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.store_processes import NodeStores
from holdfast_agent.zygote.process_tree import kill_below

log = logging.getLogger(__name__)

READY_SECONDS = 300.0
"""Time for a fresh zygote to import torch, from a slow network file system too."""
LOOK_SECONDS = 0.003
"""Time between two looks at processes that are being killed."""
REMEDY = "if this repeats, look for a lack of memory (dmesg) or for who signals hf-zygote"


class ZygoteRestarts:
    """Gives the agent another zygote when its own has ended."""

    def __init__(
        self,
        tools: AgentContext,
        runner: RoundRunner,
        stores: NodeStores,
        *,
        reaped: Callable[[], None],
        restarted: Callable[[], None],
        ending: Callable[[], bool],
        fail: Callable[[str], None],
    ) -> None:
        """Wait for the first end.

        Args:
            tools: Has the zygote, and the agent's children that belong to no round.
            runner: Has the round of the zygote.
            stores: Has the store processes that the zygote has, or has to start.
            reaped: Called when no process of the zygote lives any more.
            restarted: Called when another zygote takes commands.
            ending: Returns True if the agent is ending, so that nothing is started any more.
            fail: Ends the agent, with the reason.
        """
        self._tools, self._runner, self._stores = tools, runner, stores
        self._reaped, self._restarted = reaped, restarted
        self._ending, self._fail = ending, fail
        self._history = ZygoteHistory()
        self._codes: dict[int, int] = {}
        """Exit codes of the dead zygote's workers, which became children of this process."""
        self._started_at: float | None = None
        """Monotonic time of the start of a fresh zygote not ready yet; None: none."""
        self._ready_at: float | None = None
        self._killed_at: float | None = None
        self._killed_for = ""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def under_way(self) -> bool:
        """True: there is no zygote: the last one is being reaped, or another will start."""
        return self._task is not None and not self._task.done()

    def on_ready(self) -> None:
        """Note that the zygote takes commands."""
        if self._started_at is not None:
            log.warning("a fresh zygote is ready after %.1f s", time.monotonic() - self._started_at)
        self._started_at, self._ready_at = None, time.monotonic()
        self._runner.release()

    def on_reaped(self, codes: Mapping[int, int]) -> None:
        """Note the exit codes, by pid, of reaped children that this process had adopted."""
        self._tools.process.older_children.difference_update(codes)  # the pids may be used again
        current = self._runner.current
        if current is not None and not current.dead:
            ours = set(current.pids.values())
            self._codes.update((pid, code) for pid, code in codes.items() if pid in ours)

    def on_exited(self, event: zygote.ZygoteExited) -> None:
        """Restart an ended zygote; its workers have SIGKILL and become children of this process."""
        if self._closed:
            return  # the agent itself ends, and leaves nothing behind
        self._runner.hold()
        self._task = asyncio.create_task(self._work(self._reason(event)))

    def look(self, now: float) -> None:
        """Kill a zygote that does not carry out its commands (`now`: monotonic, s)."""
        if self.under_way:
            return
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
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._tools.process.pid, signal.SIGKILL)
        elif now - self._killed_at > STUCK_SECONDS:
            self._fail(problem)

    async def close(self) -> None:
        """Give up the restart under way; later ends are intended."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _reason(self, event: zygote.ZygoteExited) -> str:
        how = f"exit code {event.exit_code}"
        if event.signal is not None:
            names = [f" ({one.name})" for one in signal.Signals if one == event.signal]
            how = f"signal {event.signal}{''.join(names)}"
        why = f" (it was killed: {self._killed_for})" if self._killed_for else ""
        return f"the zygote ended with {how}{why}"

    async def _work(self, reason: str) -> None:
        try:
            await self._restart(reason)
        except Exception as error:  # the top of the task
            log.exception("no zygote is started (fault %d)", loop_errors.count(__name__))
            self._fail(f"{reason}; {type(error).__name__}: {error}")

    async def _restart(self, reason: str) -> None:
        limit = DYING_SECONDS if self._killed_at is None else STUCK_SECONDS
        ready_seconds = None if self._ready_at is None else time.monotonic() - self._ready_at
        self._started_at = self._ready_at = self._killed_at = None
        self._killed_for = ""
        if not await self._reap(limit):
            self._fail(f"{reason}; its processes survive SIGKILL (uninterruptible sleep?)")
            return
        self._runner.zygote_lost(self._codes, f"{reason}, and its ranks with it; {REMEDY}")
        self._codes.clear()
        self._stores.on_zygote_lost(reason)
        self._reaped()
        await self._start(reason, ready_seconds)

    async def _start(self, reason: str, ready_seconds: float | None) -> None:
        """Start another one; ready_seconds: time for which the last one was ready, None: never."""
        while not self._ending():
            self._history = self._history.ended(ready_seconds)
            verdict = zygote_restarts.judge(self._history)
            if not verdict.restart:
                self._fail(f"{reason}; {verdict.reason}")
                return
            log.error("%s: another is started in %.0f s; %s", reason, verdict.pause_seconds, REMEDY)
            await asyncio.sleep(verdict.pause_seconds)
            if self._ending():
                return
            try:
                self._tools.process.restart()
            except OSError as error:
                reason, ready_seconds = f"no zygote can be started: {error}", None
            else:
                self._started_at = time.monotonic()
                self._restarted()
                self._stores.on_zygote_restarted()
                return

    async def _reap(self, limit_seconds: float) -> bool:
        """Kill and reap the processes that the zygote left; return True if all are gone.

        The agent's children are the zygote's processes and the spared ones. If the agent is the
        first process of a container, other processes that it adopted are killed too.
        """
        until = time.monotonic() + limit_seconds
        older = self._tools.process.older_children
        while kill_below(os.getpid(), {*older, *self._tools.spared()}):
            self.on_reaped(child_reaper.reap_adopted(self._tools.spared()))
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True
