"""Ranks that follow their master's schedule of checkpoints: what they hear, what they would save.

The rule of a rank is the SDK's own (`holdfast.flash.schedule`); here are its ear and its
costs. Belongs here: the ranks of one node, which are alike. Does not belong here: saves themselves
(`keeper`), and what all nodes' ranks have to agree on (`oracle.checks`).
"""

from __future__ import annotations

import collections
import random

from holdfast.flash.schedule import Course, SaveEvery, ScheduleOffer
from holdfast.page_sample import SavingSample, TierSaving
from holdfast_wire.messages import SetSchedule, Tier, WorldAssignment
from holdfast_wire.tiers import by_tier
from simulation.training import PACE

COSTS_SECONDS = 6.0
"""What saving costs is another figure after this long."""


def _save_every(message: SetSchedule | WorldAssignment) -> SaveEvery:
    every = by_tier(message.intervals)
    return SaveEvery(memory=every[Tier.MEMORY], storage=every[Tier.STORAGE])


class Follower:
    """One node's ranks of one round."""

    def __init__(self, seed: str, assignment: WorldAssignment, base: int) -> None:
        self._seed = seed
        self._course = Course(_save_every(assignment))
        self._told: collections.deque[tuple[int, SetSchedule]] = collections.deque()
        """What was written on the page, with the step at which the ranks look at it."""
        self._seen: tuple[int, int] = (0, 0)
        self.looked = base
        """Newest step that was looked at."""
        self.offers: set[int] = set()
        """Ids of the schedules that the ranks were offered."""

    def tell(self, order: SetSchedule, done: int) -> None:
        """The agent writes on the page of ranks that have completed so many steps."""
        self._told.append((done + 1, order))

    def step(self, number: int) -> tuple[SaveEvery, ...]:
        """The ranks complete a step; return the schedules by which they save."""
        self.looked = number
        while self._told and self._told[0][0] <= number:
            self._hear(*self._told.popleft())
        return self._course.at(number)

    def _hear(self, at: int, order: SetSchedule) -> None:
        number = order.schedule_id
        if number > self._seen[0]:
            self._seen = (number, at)
            self.offers.add(number)
            offer = ScheduleOffer(number=number, step=order.step, every=_save_every(order))
            self._course.offered(offer)
        if order.confirmed:
            self._course.confirmed(number)

    def saving(self, now: float) -> SavingSample:
        """Return the page's sample of saves, with costs drawn by chance."""
        luck = random.Random(f"{self._seed}/{int(now / COSTS_SECONDS)}")
        return SavingSample(
            step_ns=round(PACE * 1e9),
            tiers={
                Tier.MEMORY: TierSaving(stop_ns=round(10 ** luck.uniform(6, 9))),
                Tier.STORAGE: TierSaving(
                    stop_ns=round(10 ** luck.uniform(7, 10)) if luck.random() < 0.8 else 0,
                    durable_ns=round(10 ** luck.uniform(8, 10)),
                ),
            },
            seen_id=self._seen[0],
            seen_step=self._seen[1],
        )
