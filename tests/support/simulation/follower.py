"""Ranks that follow their master's schedule of checkpoints: what they hear, what they would save.

The rule of a rank is the SDK's own (`holdfast.flash.decide.schedule`); here are its ear and its
costs. Belongs here: the ranks of one node, which are alike. Does not belong here: saves themselves
(`keeper`), and what all nodes' ranks have to agree on (`checks`).
"""

from __future__ import annotations

import collections
import random

from holdfast.flash.decide.schedule import Course, Every, Offer
from holdfast.sample import SavingSample
from holdfast_wire.messages import SetSchedule, WorldAssignment
from simulation.training import PACE

COSTS_SECONDS = 6.0
"""What saving costs is another figure after this long."""


class Follower:
    """One node's ranks of one round."""

    def __init__(self, seed: str, assignment: WorldAssignment, base: int) -> None:
        self._seed = seed
        begin = Every(memory=assignment.memory_every, storage=assignment.storage_every)
        self._course = Course(begin)
        self._told: collections.deque[tuple[int, SetSchedule]] = collections.deque()
        """What was written on the page, with the step at which the ranks look at it."""
        self._seen: tuple[int, int] = (0, 0)
        self.looked = base
        """Newest step that was looked at."""

    def tell(self, order: SetSchedule, done: int) -> None:
        """The agent writes on the page of ranks that have completed so many steps."""
        self._told.append((done + 1, order))

    def step(self, number: int) -> tuple[Every, ...]:
        """The ranks complete a step; return the schedules by which they save."""
        self.looked = number
        while self._told and self._told[0][0] <= number:
            self._hear(*self._told.popleft())
        return self._course.at(number)

    def _hear(self, at: int, order: SetSchedule) -> None:
        number = order.schedule_id
        if number > self._seen[0]:
            self._seen = (number, at)
            every = Every(memory=order.memory_every, storage=order.storage_every)
            self._course.offered(Offer(number=number, step=order.step, every=every))
        if order.confirmed:
            self._course.confirmed(number)

    def saving(self, now: float) -> SavingSample:
        """What the page says."""
        luck = random.Random(f"{self._seed}/{int(now / COSTS_SECONDS)}")
        return SavingSample(
            step_ns=round(PACE * 1e9),
            memory_ns=round(10 ** luck.uniform(6, 9)),
            storage_ns=round(10 ** luck.uniform(7, 10)) if luck.random() < 0.8 else 0,
            durable_ns=round(10 ** luck.uniform(8, 10)),
            memory_every=None,
            storage_every=None,
            seen_id=self._seen[0],
            seen_step=self._seen[1],
        )
