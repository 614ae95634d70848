"""Watches the shared page: heartbeats at their interval, first steps and barriers at once.

Reads samples and sends the reports that `policies.rank_progress` makes of them. Nothing here kills
or starts a process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from holdfast.page import Page, PageError
from holdfast_agent.policies import heartbeat_schedule, rank_progress
from holdfast_agent.policies.collective_steps import StepGuess
from holdfast_agent.policies.round_phases import RoundPhase
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_wire.messages import (
    Heartbeat,
    RankSection,
    RoundStarted,
    SetBarrier,
    SetSchedule,
)
from holdfast_wire.tiers import by_tier

FAST_SECONDS = 0.01
"""Poll interval while it waits for a first step, an acknowledgement or a barrier, s."""
PATIENCE_SECONDS = 60.0
"""A round whose script uses no SDK is polled at that rate only for this long, s."""
DEFAULT_HEARTBEAT_SECONDS = 0.5


class PageWatch:
    """Samples the ranks of the runner's round."""

    def __init__(
        self,
        page: Page,
        runner: RoundRunner,
        report: Callable[[Any, int], None],
        node_rank: int,
        *,
        guess: Callable[[int, int], StepGuess | None] = lambda *_: None,
    ) -> None:
        """`report` sends (message, round) to the master.

        guess: returns the guessed progress of (local rank, round), for a script without the SDK.
        """
        self._guess = guess
        self._page = page
        self._runner = runner
        self._report = report
        self._node_rank = node_rank
        self._sequence = 0
        self.interval_seconds = DEFAULT_HEARTBEAT_SECONDS
        """Time between heartbeats; the master sets it."""
        self.saving = False
        """True: a rank was inside a checkpoint at the last heartbeat."""

    def set_barrier(self, barrier: SetBarrier, round_number: int) -> str:
        """Ask the ranks of a round to save after a step; return why not, empty: done."""
        current = self._runner.current
        if current is None or current.number != round_number or current.dead:
            return f"round {round_number} does not run here"
        try:
            for slot in range(current.size):
                self._page.set_barrier(
                    slot, barrier.barrier_id, barrier.step, goes_on=barrier.goes_on
                )
        except PageError as error:
            return str(error)
        current.barrier = barrier
        self._runner.changed.set()
        return ""

    def schedule(self, order: SetSchedule, round_number: int) -> str:
        """Give the ranks of a round a new schedule of saves; return why not, empty: done.

        Heartbeats report that the ranks have seen it: there is no hurry.
        """
        current = self._runner.current
        if current is None or current.number != round_number or current.dead:
            return f"round {round_number} does not run here"
        every = by_tier(order.intervals)
        try:
            for slot in range(current.size):
                self._page.offer_schedule(
                    slot,
                    order.schedule_id,
                    step=order.step,
                    every=every,
                )
                if order.confirmed:
                    self._page.confirm_schedule(slot, order.schedule_id)
        except PageError as error:
            return str(error)
        return ""

    def pause(self, period: float) -> float:
        """Return the time to the next regular work of a period, at a heartbeat's instant, s."""
        return heartbeat_schedule.beside(
            self._node_rank, self.interval_seconds, period, time.time()
        )

    def spread(self) -> float:
        """Return the time that a message waits which all nodes have at the same instant, s."""
        return heartbeat_schedule.delay(self._node_rank, self.interval_seconds)

    async def beat(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self.heartbeat()
            await asyncio.sleep(self.pause(self.interval_seconds))

    async def poll(self) -> None:
        """Poll often while something is awaited, until cancelled."""
        while True:
            if self.look():
                await asyncio.sleep(FAST_SECONDS)
            else:
                self._runner.changed.clear()
                await self._runner.changed.wait()

    def heartbeat(self) -> None:
        """Send one heartbeat."""
        current = self._runner.current
        self._sequence += 1
        if current is None or current.dead:
            self._report(Heartbeat(sequence=self._sequence), current.number if current else 0)
            return
        now = time.monotonic_ns()
        samples = current.ranks(self._page)
        unix = time.time()
        progress = tuple(
            rank_progress.guessed(
                rank_progress.progress(rank, sample, current.number, now),
                self._guess(rank, current.number),
                unix,
            )
            for rank, sample in samples.items()
        )
        self.saving = any(entry.section is RankSection.CHECKPOINT for entry in progress)
        saving = rank_progress.saving(samples)
        message = Heartbeat(sequence=self._sequence, ranks=progress, saving=saving)
        self._report(message, current.number)
        if current.armed or not current.first_step_reported:
            self._runner.changed.set()

    def look(self) -> bool:
        """Report what has just become true; return True if something is still awaited."""
        current = self._runner.current
        if current is None or current.dead or current.kill_ordered:
            return False
        samples = current.ranks(self._page)
        awaited = self._look_for_first_step(current, samples)
        return self._look_for_barrier(current, samples) or awaited

    def _look_for_first_step(self, current: Round, samples: dict[int, rank_progress.Rank]) -> bool:
        if current.first_step_reported or self._runner.phase is not RoundPhase.STARTING:
            return False
        found = rank_progress.first_step(samples, current.number)
        if found is None:
            age = time.monotonic() - current.ordered_at
            return age < PATIENCE_SECONDS or any(r.sample.attached for r in samples.values())
        current.first_step_reported = True
        self._runner.first_step()
        started = current.started(self._runner.cold_reason)
        message = RoundStarted(
            first_step=True,
            step=found.step,
            killed_seconds=started.killed_seconds,
            spawned_seconds=started.spawned_seconds,
            first_step_seconds=max(0.0, found.at_ns * rank_progress.NS - current.ordered_at),
            cold_reason=started.cold_reason,
        )
        self._report(message, current.number)
        return False

    def _look_for_barrier(self, current: Round, samples: dict[int, rank_progress.Rank]) -> bool:
        if current.barrier is None or current.barrier_reported:
            return False
        ack = rank_progress.barrier_ack(samples, current.armed)
        if ack is not None and current.acked != current.armed:
            current.acked = current.armed
            ack = dataclasses.replace(ack, goes_on=current.barrier.goes_on)
            self._report(ack, current.number)
        if current.barrier.goes_on:
            return current.acked != current.armed and not current.all_exited
        reached = rank_progress.barrier(samples)
        if reached is not None:
            current.barrier_reported = True
            self._report(reached, current.number)
            return False
        return not current.all_exited
