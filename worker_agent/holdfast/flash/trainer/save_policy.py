"""Save policy of one rank under its master's schedule: the saves due at a step, their costs.

Belongs here: the connection between the shared page and `schedule`, and the usual costs of saves
and steps, which only the master uses. No clock decides anything here: it is read for the costs
alone.

All costs are medians. An evaluation, a slow batch or a save beside a busy disk is not usual, and a
schedule must not follow each of them.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic_ns

from holdfast.flash.schedule import (
    ALONE,
    Course,
    Due,
    SaveEvery,
    Schedule,
    ScheduleOffer,
    due,
    parse,
)
from holdfast.job import Job
from holdfast.page_sample import TierSaving
from holdfast.page_slot import SlotWriter
from holdfast_wire.messages import Tier

_SPANS = 32
"""Number of step times for a median."""
_SAVES = 15
"""Number of saves to memory for a median."""
_WRITES = 5
"""Number of saves to storage for a median; they are rare."""


class TierSchedule:
    """Schedule of one rank."""

    def __init__(self, schedule: Schedule, told: str) -> None:
        """told: the master's schedule, as the agent passed it on; empty: none."""
        self._schedule = schedule
        begin = parse(told)
        self._follows = begin is not None
        self._course = Course(begin or ALONE)
        self.meter = Meter()
        self._said: SaveCosts | None = None

    def begin(self, job: Job, step: int, *, writing: bool) -> Due:
        """Return the saves due at a completed step, after a look at the shared page."""
        self.meter.stepped(monotonic_ns(), writing=writing)
        if self._follows:
            self._listen(job, step)
        found = [
            due(step, self._schedule.over(every), self._schedule.first)
            for every in self._course.at(step)
        ]
        return Due(
            memory=any(one.memory for one in found),
            storage=any(one.storage for one in found),
            sure=all(one.sure for one in found),
        )

    def _listen(self, job: Job, step: int) -> None:
        slot = job.slot
        if slot is None:
            return
        self._say(slot)
        heard = slot.hear_schedule(step)
        if heard is None:
            return
        self._course.confirmed(heard.confirmed)  # it may be an older one
        every = SaveEvery(memory=heard.every[Tier.MEMORY], storage=heard.every[Tier.STORAGE])
        self._course.offered(ScheduleOffer(number=heard.number, step=heard.step, every=every))
        self._course.confirmed(heard.confirmed)

    def _say(self, slot: SlotWriter) -> None:
        measured = self.meter.measured
        if measured is self._said:
            return
        self._said = measured
        tiers = {Tier.MEMORY: measured.memory, Tier.STORAGE: measured.storage}
        own = self._schedule.own
        slot.say_saving(
            measured.step_ns, {tier: replace(it, every=own(tier)) for tier, it in tiers.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCosts:
    """Usual costs in ns; 0: not measured yet."""

    step_ns: int = 0
    """Duration of a training step without any save."""
    memory: TierSaving = field(default_factory=TierSaving)
    storage: TierSaving = field(default_factory=TierSaving)


class Meter:
    """Meter of saves and steps; all times are ns of one clock."""

    def __init__(self) -> None:
        self.measured = SaveCosts()
        """Newest medians; a new object after each save."""
        self._stepped_ns = 0
        self._idle: collections.deque[int] = collections.deque(maxlen=_SPANS)
        """Durations of steps without a write."""
        self._busy: collections.deque[int] = collections.deque(maxlen=_SPANS)
        """Durations of steps since the newest save to storage."""
        self._busy_steps = 0
        self._memory: collections.deque[int] = collections.deque(maxlen=_SAVES)
        self._storage: collections.deque[int] = collections.deque(maxlen=_WRITES)
        self._durable: collections.deque[int] = collections.deque(maxlen=_WRITES)
        self._write: tuple[int, int] | None = None
        """Start of the save that is being written, and the time for which it stopped training."""
        self._newest_is_memory = False

    def stepped(self, now_ns: int, *, writing: bool) -> None:
        """Note a completed step; writing: a save of this rank is on its way to storage."""
        if self._stepped_ns:
            span = now_ns - self._stepped_ns
            if self._write is None:
                self._idle.append(span)
            else:
                self._busy.append(span)
                self._busy_steps += 1
        if self._write is not None and not writing:
            self._written(now_ns, *self._write)
        self._stepped_ns = now_ns

    def saved(self, began_ns: int, ended_ns: int, *, storage: bool) -> None:
        """Note a usual save that has ended: one without planning."""
        self._newest_is_memory = not storage
        if storage:
            self._write, self._busy_steps = (began_ns, ended_ns - began_ns), 0
            self._busy.clear()
        else:
            self._memory.append(ended_ns - began_ns)
            self._sum_up()

    def waited(self, wait_ns: int) -> None:
        """Note that the newest save stopped training once more."""
        if self._newest_is_memory:
            self._memory[-1] += wait_ns
            self._sum_up()
        elif self._write is not None:
            self._write = (self._write[0], self._write[1] + wait_ns)

    def resumed(self, now_ns: int) -> None:
        """Note that training continues: the time since the last step is not part of the next."""
        self._stepped_ns = now_ns

    def _written(self, now_ns: int, began_ns: int, stop: int) -> None:
        self._write = None
        longer = _usual(self._busy) - _usual(self._idle) if self._idle and self._busy else 0
        self._storage.append(stop + max(0, longer * self._busy_steps))
        self._durable.append(now_ns - began_ns)
        self._sum_up()

    def _sum_up(self) -> None:
        self.measured = SaveCosts(
            step_ns=_usual(self._idle or self._busy),
            memory=TierSaving(stop_ns=_usual(self._memory)),
            storage=TierSaving(stop_ns=_usual(self._storage), durable_ns=_usual(self._durable)),
        )


def _usual(values: Sequence[int]) -> int:
    return max(1, round(statistics.median(values))) if values else 0
