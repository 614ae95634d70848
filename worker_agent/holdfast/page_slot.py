"""The trainer's side of the shared page: claim a slot, write steps, answer barriers.

One object per process, made by `holdfast.job`. It writes the trainer's words only, and kills the
process when the agent's lease is stale, because a newer world may run elsewhere by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Final

from holdfast.page import Page, PageError
from holdfast.page_layout import (
    GOES_ON,
    MAX_WORD,
    NEEDS_FENCE,
    SLOT_WORDS,
    TIER_WORDS,
    Header,
    StepAnswer,
    Word,
    barrier_check,
    fence,
    keep_order,
    schedule_check,
)
from holdfast.page_sample import Section, TierSaving
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import TIERS

# Plain integers: an enum's member costs two look-ups, and `step` uses ten of them.
_SEQUENCE: Final = int(Word.SEQUENCE)
_STEP: Final = int(Word.STEP)
_STEP_NS: Final = int(Word.STEP_NS)
_DURATION: Final = int(Word.STEP_DURATION_NS)
_SAMPLES: Final = int(Word.SAMPLES)
_LOSS: Final = int(Word.LOSS)
_BARRIER_ID: Final = int(Word.BARRIER_ID)
_LEASE: Final = int(Header.LEASE_NS)
_NOTHING: Final = int(StepAnswer.NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleHeard:
    """The master's newest schedule, as this rank reads it."""

    number: int
    step: int
    every: Mapping[Tier, int]
    """Steps between saves of each tier; 0 as in `SaveEvery`."""
    confirmed: int
    """Newest number that all ranks have seen."""


class SlotWriter:
    """Writes one rank's words. Not thread-safe: a training loop has one thread."""

    def __init__(self, page: Page, slot: int, round_number: int) -> None:
        """Claim `slot` for this process; a claim that this process made before is kept.

        Raises `PageError` when the slot is assigned to another round, or to another process that
        lives (a helper process has inherited its parent's environment).
        """
        base = page.index(slot, Word.SEQUENCE)
        words = page.words[base : base + SLOT_WORDS]
        owner, assigned = words[Word.PID], words[Word.ASSIGNED_ROUND]
        if assigned != round_number:
            raise PageError(f"slot {slot}: of round {assigned}, this process of {round_number}")
        if owner not in (0, os.getpid()) and Path(f"/proc/{owner}").exists():
            raise PageError(f"slot {slot} belongs to process {owner}")
        self.pid = os.getpid()
        self._header = page.words
        self._words = words
        self._reals = page.reals[base : base + SLOT_WORDS]
        self._lease_limit = page.lease_limit_ns
        self._sequence: int = words[Word.SEQUENCE] + words[Word.SEQUENCE] % 2
        self._samples: int = words[Word.SAMPLES]
        self._last_ns: int = words[Word.STEP_NS]
        self._seen_id = 0
        self._barrier_step = 0
        self._has_loss = False
        self._answered: int = words[Word.ANSWERED_ID]
        self._schedule = (0, 0)
        """Newest number seen, and newest confirmed."""
        self.section = Section(words[Word.SECTION])
        self._store((Word.PID, self.pid), (Word.ROUND, round_number))
        if not words[Word.SECTION_NS]:
            self.enter(Section.INIT)

    def _store(self, *values: tuple[int, int]) -> None:
        """Store words inside one write of the sequence lock."""
        words = self._words
        words[_SEQUENCE] = self._sequence + 1
        keep_order()
        for word, value in values:
            words[word] = value
        keep_order()
        self._sequence += 2
        words[_SEQUENCE] = self._sequence

    def attach(self) -> None:
        """Record that the script uses the SDK; the wait for its first step begins."""
        self._store((Word.ATTACHED, 1))
        if self.section is Section.INIT:
            self.enter(Section.FIRST_STEP)

    def enter(self, section: Section) -> None:
        """Store the current section and when it began."""
        self.section = section
        self._store((Word.SECTION, section), (Word.SECTION_NS, monotonic_ns()))

    def complete_barrier(self) -> None:
        """Record, after exit status 0, that the script stopped at the answered step.

        It may be killed from now on.

        The caller has flushed the script's files and run its exit handlers. Does nothing for a
        script that ended anywhere else.
        """
        words = self._words
        if self._answered and words[Word.STEP] == words[Word.ANSWERED_STEP]:
            self._store((Word.BARRIER_COMPLETE, 1))

    def clean(self) -> None:
        """Record that the exit status is 0 and the exit handlers have run."""
        self._store((Word.CLEAN_EXIT, 1))

    def step(self, n: int, samples: int, loss: float | None) -> int:
        """Store a completed step; return the `StepAnswer` for it."""
        now = monotonic_ns()
        renewed = self._header[_LEASE]
        if now - renewed > self._lease_limit and renewed:
            os.kill(self.pid, signal.SIGKILL)
        words, last, sequence = self._words, self._last_ns, self._sequence
        self._samples = min(self._samples + samples, MAX_WORD)
        self._last_ns = now
        words[_SEQUENCE] = sequence + 1
        if NEEDS_FENCE:
            fence()
        words[_STEP] = n
        words[_STEP_NS] = now
        words[_SAMPLES] = self._samples
        if loss is not None:
            self._reals[_LOSS] = loss
            if not self._has_loss:
                self._has_loss = True
                words[Word.HAS_LOSS] = 1
        if last:
            words[_DURATION] = now - last
        else:
            self._first_step(n, now)
        answer = self._look_at_barrier(n) if words[_BARRIER_ID] else _NOTHING
        if NEEDS_FENCE:
            fence()
        self._sequence = words[_SEQUENCE] = sequence + 2
        return answer

    def _first_step(self, n: int, now: int) -> None:
        """Store, inside the sequence lock, that this round has completed its first step."""
        words = self._words
        words[Word.FIRST_STEP] = n
        words[Word.FIRST_STEP_NS] = now
        if self.section in (Section.INIT, Section.FIRST_STEP):
            self.section = Section.TRAIN
            words[Word.SECTION] = Section.TRAIN
            words[Word.SECTION_NS] = now

    def _look_at_barrier(self, n: int) -> int:
        """Acknowledge a newer barrier, inside the sequence lock; return its answer at step `n`.

        The step at which a barrier is first seen tells the agent whether it came in time. A barrier
        that is first seen after its step is acknowledged and never answered.
        """
        words = self._words
        barrier_id: int = words[_BARRIER_ID]
        if barrier_id > self._seen_id:
            step: int = words[Word.BARRIER_STEP]
            keep_order()
            if words[Word.BARRIER_CHECK] != barrier_check(barrier_id, step):
                return _NOTHING  # half written: the next step sees it whole
            self._seen_id, self._barrier_step = barrier_id, step
            words[Word.ACK_STEP] = n
            words[Word.ACK_ID] = barrier_id
        if n == self._barrier_step - GOES_ON:
            return StepAnswer.SAVE
        if n != self._barrier_step or self._answered >= self._seen_id:
            return _NOTHING
        self._answered = self._seen_id
        words[Word.ANSWERED_STEP] = n
        words[Word.ANSWERED_ID] = self._answered
        return StepAnswer.SAVE_AND_STOP

    def say_sync(self, held_ns: int) -> None:
        """Store for how long a round of local SGD has held this rank up."""
        self._store((Word.SYNC_NS, held_ns))

    def say_work(self, work_ns: int) -> None:
        """Store what a micro-batch of the newest step took this rank, waits for others left out."""
        self._store((Word.WORK_NS, work_ns))

    def say_saving(self, step_ns: int, tiers: Mapping[Tier, TierSaving]) -> None:
        """Store the save costs of this rank, and that it follows the master's schedule.

        step_ns: duration of a step without a save; 0: not measured. tiers: those it saves to.
        """
        values: list[tuple[int, int]] = [
            (Word.SAVES, sum(1 << tier for tier in tiers)),
            (Word.SAVED_STEP_NS, step_ns),
        ]
        for tier, costs in tiers.items():
            values += (
                (Word.STOP_NS + tier, costs.stop_ns),
                (Word.DURABLE_NS + tier, costs.durable_ns),
                (Word.EVERY + tier, 0 if costs.every is None else costs.every + 1),
            )
        self._store(*values)

    def hear_schedule(self, n: int) -> ScheduleHeard | None:
        """Return news of the schedule at `n` completed steps; None: there is none.

        A number that is seen for the first time is acknowledged with `n`.
        """
        words = self._words
        number: int = words[Word.SCHEDULE_ID]
        keep_order()  # the writer of a newer number has written the confirmed one before
        confirmed: int = words[Word.SCHEDULE_CONFIRMED]
        if (number, confirmed) == self._schedule:
            return None
        step: int = words[Word.SCHEDULE_STEP]
        every = words[Word.SCHEDULE_EVERY : Word.SCHEDULE_EVERY + TIER_WORDS].tolist()
        keep_order()
        if words[Word.SCHEDULE_CHECK] != schedule_check(number, step, every):
            return None  # half written: the next step sees it whole
        if number != self._schedule[0]:
            # In this order: a reader that finds the number finds its step too.
            self._store((Word.SCHEDULE_SEEN_STEP, n), (Word.SCHEDULE_SEEN, number))
        self._schedule = (number, confirmed)
        by_tier = {tier: every[tier] for tier in TIERS}
        return ScheduleHeard(number=number, step=step, every=by_tier, confirmed=confirmed)
