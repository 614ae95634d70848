"""Reports how workers ended: reads the evidence in a thread, then tells the master once.

Which exits are evidence is decided in `decide.exits`; what they mean is the master's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from holdfast.page import Page
from holdfast_agent import evidence
from holdfast_agent.decide import exits
from holdfast_agent.rounds import Round
from holdfast_wire.messages import WorkerExited

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SeenExit:
    """An exit that was reported, for the summary at the end."""

    round: int
    seen_at: float
    """Monotonic time, s."""
    message: WorkerExited
    error_file: str
    """Empty where there is none."""


class ExitReporter:
    """Turns exits into reports."""

    def __init__(self, report: Callable[[Any, int], None]) -> None:
        """`report` sends (message, round) to the master."""
        self._report = report
        self.patterns: tuple[str, ...] = ()
        """Welcome.log_patterns."""
        self.failures: list[SeenExit] = []
        """Exits other than 0 of the newest round, in the order seen."""
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, current: Round, page: Page, local_rank: int, mono_ns: int) -> None:
        """Take the exit of a local rank, whose code `current` has; report it if it is evidence."""
        code = current.exits[local_rank]
        if not exits.is_evidence(code, current.orders):
            return
        rank = current.rank(page, local_rank)
        message = WorkerExited(
            local_rank=local_rank,
            rank=current.assignment.base_rank + local_rank,
            pid=current.pids.get(local_rank, 0),
            exit_code=code,
            boundary=rank.ended_at_boundary,
            step=rank.sample.step if rank.sample.round == current.number else 0,
        )
        task = asyncio.create_task(self._collect(current, message, mono_ns * 1e-9))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, current: Round, message: WorkerExited, seen_at: float) -> None:
        files = current.logs.files[message.local_rank]
        if message.exit_code != 0:
            found = await asyncio.to_thread(
                evidence.collect, files.error, files.stderr, self.patterns
            )
            message = dataclasses.replace(
                message,
                error_type=found.error_type,
                error_message=found.error_message,
                stderr_tail=found.stderr_tail,
                matched_patterns=found.matched_patterns,
            )
            self._remember(current, message, seen_at, str(files.error or ""))
        age = max(0.0, time.monotonic() - seen_at)
        self._report(dataclasses.replace(message, age_seconds=age), current.number)

    def _remember(self, current: Round, message: WorkerExited, seen_at: float, file: str) -> None:
        newest = self.failures[0].round if self.failures else 0
        if current.number > newest:
            self.failures.clear()
        if current.number >= newest:
            self.failures.append(SeenExit(current.number, seen_at, message, file))
        log.error(
            "rank %d (pid %d) ended with %d%s",
            message.rank,
            message.pid,
            message.exit_code,
            f": {message.error_message.splitlines()[0]}" if message.error_message else "",
        )

    async def close(self) -> None:
        """Wait for reports under way."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
