"""Looks at the shared page: heartbeats at their interval, first steps and arms at once.

Reads samples and sends what `decide.ranks` makes of them. Nothing here kills or starts anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from holdfast.page import Page, PageError
from holdfast_agent.decide import beat, ranks
from holdfast_agent.decide.phases import RoundPhase
from holdfast_agent.rounds import Round
from holdfast_agent.runner import RoundRunner
from holdfast_wire.messages import Arm, Heartbeat, RankSection, RoundStarted, SetSchedule

FAST_SECONDS = 0.01
"""While something is awaited: a first step, an arm's echo, a boundary."""
PATIENCE_SECONDS = 60.0
"""After this long a round whose script uses no SDK is not looked at fast any more."""
DEFAULT_HEARTBEAT_SECONDS = 0.5


class Watch:
    """Samples the ranks of the runner's round."""

    def __init__(
        self,
        page: Page,
        runner: RoundRunner,
        report: Callable[[Any, int], None],
        node_rank: int,
    ) -> None:
        """`report` sends (message, round) to the master."""
        self._page = page
        self._runner = runner
        self._report = report
        self._node_rank = node_rank
        self._sequence = 0
        self.interval_seconds = DEFAULT_HEARTBEAT_SECONDS
        """Between heartbeats; the master sets it."""
        self.saving = False
        """A rank was inside a checkpoint at the last heartbeat."""

    def arm(self, arm: Arm, round_number: int) -> str:
        """Ask the ranks of a round to save after a step; return why not, empty when done."""
        current = self._runner.current
        if current is None or current.number != round_number or current.dead:
            return f"round {round_number} does not run here"
        try:
            for slot in range(current.size):
                self._page.arm(slot, arm.arm_id, arm.step, goes_on=arm.goes_on)
        except PageError as error:
            return str(error)
        current.arm = arm
        self._runner.changed.set()
        return ""

    def schedule(self, order: SetSchedule, round_number: int) -> str:
        """Tell the ranks of a round how far apart checkpoints are; return why not, empty if done.

        That they have heard of it is told by heartbeats: there is no hurry.
        """
        current = self._runner.current
        if current is None or current.number != round_number or current.dead:
            return f"round {round_number} does not run here"
        try:
            for slot in range(current.size):
                self._page.offer_schedule(
                    slot,
                    order.schedule_id,
                    step=order.step,
                    memory=order.memory_every,
                    storage=order.storage_every,
                )
                if order.confirmed:
                    self._page.confirm_schedule(slot, order.schedule_id)
        except PageError as error:
            return str(error)
        return ""

    async def beat(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self.heartbeat()
            wait = beat.pause(self._node_rank, self.interval_seconds, time.time())
            await asyncio.sleep(wait)

    async def poll(self) -> None:
        """Look often while something is awaited, until cancelled."""
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
        progress = tuple(
            ranks.progress(rank, sample, current.number, now) for rank, sample in samples.items()
        )
        self.saving = any(entry.section is RankSection.CHECKPOINT for entry in progress)
        saving = ranks.saving(samples)
        message = Heartbeat(sequence=self._sequence, ranks=progress, saving=saving)
        self._report(message, current.number)
        if current.armed or not current.first_step_reported:
            self._runner.changed.set()

    def look(self) -> bool:
        """Send what has just become true; return whether something is still awaited."""
        current = self._runner.current
        if current is None or current.dead or current.kill_ordered:
            return False
        samples = current.ranks(self._page)
        awaited = self._look_for_first_step(current, samples)
        return self._look_for_boundary(current, samples) or awaited

    def _look_for_first_step(self, current: Round, samples: dict[int, ranks.Rank]) -> bool:
        if current.first_step_reported or self._runner.phase is not RoundPhase.STARTING:
            return False
        found = ranks.first_step(samples, current.number)
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
            first_step_seconds=max(0.0, found.at_ns * ranks.NS - current.ordered_at),
            cold_reason=started.cold_reason,
        )
        self._report(message, current.number)
        return False

    def _look_for_boundary(self, current: Round, samples: dict[int, ranks.Rank]) -> bool:
        if current.arm is None or current.boundary_reported:
            return False
        echo = ranks.arm_echo(samples, current.armed)
        if echo is not None and current.echoed != current.armed:
            current.echoed = current.armed
            echo = dataclasses.replace(echo, goes_on=current.arm.goes_on)
            self._report(echo, current.number)
        if current.arm.goes_on:
            return current.echoed != current.armed and not current.all_exited
        reached = ranks.boundary(samples)
        if reached is not None:
            current.boundary_reported = True
            self._report(reached, current.number)
            return False
        return not current.all_exited
