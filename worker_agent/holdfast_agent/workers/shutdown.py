"""Shutdown of the agent: by Leave, by a signal, or by a fault; workers end first.

Does not belong here: the exit code and the plan for a signal (`policies.exit_codes`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import time

from holdfast_agent.config.settings import Settings
from holdfast_agent.policies import exit_codes
from holdfast_agent.policies.exit_codes import ExitCode, SignalStep
from holdfast_agent.workers.runner import RoundRunner
from holdfast_wire.messages import Leave, LeaveOutcome

log = logging.getLogger(__name__)

KILL_MARGIN_SECONDS = 5.0
"""Seconds for which the agent waits for processes after SIGKILL: one in the kernel's
uninterruptible sleep would otherwise never let it end."""


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """Reason and exit code of the agent's end."""

    code: int
    reason: str
    outcome: LeaveOutcome = LeaveOutcome.UNSPECIFIED

    @property
    def own_fault(self) -> bool:
        """True: the agent could not go on, and was not asked to end."""
        return self.code == ExitCode.FAILED and self.outcome is LeaveOutcome.UNSPECIFIED


class Shutdown:
    """Waits for the first event that ends the agent."""

    def __init__(self, runner: RoundRunner, settings: Settings) -> None:
        """Wait for `runner`'s workers to end."""
        self._runner, self._settings = runner, settings
        self._signals: list[int] = []
        self._done: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """True: the agent is ending and takes no more orders."""
        return self._task is not None or self._done.done()

    @property
    def signalled(self) -> int | None:
        """Return the first signal that came, if any."""
        return self._signals[0] if self._signals else None

    async def wait(self) -> End:
        """Return the reason of the agent's end, when its workers are gone."""
        return await self._done

    def fail(self, reason: str, code: int = ExitCode.FAILED) -> None:
        """Kill everything and end: the agent cannot go on."""
        log.error("%s", reason)
        self._begin(End(code, reason), 0.0, signal.SIGKILL)

    def leave(self, order: Leave) -> None:
        """End the agent, as the master orders."""
        code = exit_codes.exit_code(order.outcome, self.signalled)
        self._begin(End(code, order.reason, order.outcome), order.grace_seconds, signal.SIGTERM)

    def on_signal(self, number: int, *, connected: bool) -> bool:
        """Act on a signal; return True if the master must be told."""
        earlier = len(self._signals)
        self._signals.append(number)
        plan = exit_codes.on_signal(
            earlier=earlier,
            managed=not self._settings.standalone,
            connected=connected,
            grace_seconds=self._settings.grace_seconds,
            stop_seconds=self._settings.launch.shutdown_seconds,
        )
        log.warning("%s: %s, %s", signal.Signals(number).name, plan.step.value, plan.reason)
        end = End(exit_codes.after_signal(self._signals[0]), signal.Signals(number).name)
        if plan.step is SignalStep.NOTICE:
            loop = asyncio.get_running_loop()
            loop.call_later(
                plan.leave_wait_seconds, self._begin, end, plan.stop_grace_seconds, number
            )
            return True
        if plan.step is SignalStep.NOW:
            self._runner.stop(0.0, plan.reason)
        self._begin(end, plan.stop_grace_seconds, number)
        return False

    def _begin(self, end: End, grace_seconds: float, sig: int) -> None:
        if self._done.done() or self._task is not None:
            return
        self._task = asyncio.create_task(self._end(end, grace_seconds, sig))

    async def _end(self, end: End, grace_seconds: float, sig: int) -> None:
        self._runner.stop(0.0 if sig == signal.SIGKILL else grace_seconds, end.reason, sig)
        deadline = time.monotonic() + grace_seconds + KILL_MARGIN_SECONDS
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._runner.died.wait()
        except TimeoutError:
            log.warning("processes survive SIGKILL (uninterruptible sleep?): they are left behind")
        await self._runner.close()
        if not self._done.done():
            self._done.set_result(end)
