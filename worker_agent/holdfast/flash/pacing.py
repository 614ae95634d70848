"""A rank under the schedule of its master: what is due at a step, and what saving was seen to cost.

Belongs here: between the page that the agent writes and `decide.schedule`. Does not belong here:
the rules (`decide.schedule`), the figures (`costs`). No clock decides anything here: it is read for
the costs alone, which only the master looks at.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic_ns

from holdfast.flash.costs import Measured, Meter
from holdfast.flash.decide.schedule import (
    ALONE,
    AUTO,
    Course,
    Every,
    Offer,
    Schedule,
    due,
    parse,
)
from holdfast.job import Job
from holdfast.slot import SavingWords, SlotWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be saved at a step."""

    memory: bool
    storage: bool
    sure: bool
    """Every rank saves it to storage too. Not so while a schedule is offered and the step is due by
    one of the two alone: it is saved for those who do, and must not be waited for."""


class Pacer:
    """The schedule of one rank."""

    def __init__(self, schedule: Schedule, told: str) -> None:
        """Take what the script wants, and what the agent passed on (empty: there is no master)."""
        self._schedule = schedule
        begin = parse(told)
        self._follows = begin is not None
        self._course = Course(begin or ALONE)
        self._meter = Meter()
        self._said: Measured | None = None

    def begin(self, job: Job, step: int, *, writing: bool) -> Asked:
        """Return what is due at a completed step, after a look at what the master says."""
        self._meter.stepped(monotonic_ns(), writing=writing)
        if self._follows:
            self._listen(job, step)
        found = [
            due(step, self._schedule.over(every), self._schedule.first)
            for every in self._course.at(step)
        ]
        return Asked(
            memory=any(one.memory for one in found),
            storage=any(one.storage for one in found),
            sure=all(one.storage for one in found),
        )

    def _listen(self, job: Job, step: int) -> None:
        slot = job.slot
        if slot is None:
            return
        self._say(slot)
        heard = slot.hear_schedule(step)
        if heard is None:
            return
        self._course.confirmed(heard.confirmed)
        if heard.is_new:
            every = Every(memory=heard.memory, storage=heard.storage)
            self._course.offered(Offer(number=heard.number, step=heard.step, every=every))
            self._course.confirmed(heard.confirmed)

    def _say(self, slot: SlotWriter) -> None:
        measured = self._meter.measured
        if measured is self._said:
            return
        self._said = measured
        slot.say_saving(
            SavingWords(
                step_ns=measured.step_ns,
                memory_ns=measured.memory_ns,
                storage_ns=measured.storage_ns,
                durable_ns=measured.durable_ns,
                memory_every=_own(self._schedule.memory_every),
                storage_every=_own(self._schedule.storage_every),
            )
        )

    def saved(self, began_ns: int, *, storage: bool) -> None:
        """A save that began then has just ended, and nothing was planned for it."""
        self._meter.saved(began_ns, monotonic_ns(), storage=storage)

    def waited(self, wait_ns: int) -> None:
        """Training was stopped once more for the newest save: an overlapped copy was not done."""
        self._meter.waited(wait_ns)

    def resume(self) -> None:
        """Training goes on."""
        self._meter.resumed(monotonic_ns())


def _own(number: int | str) -> int | None:
    return None if number == AUTO else int(number)
