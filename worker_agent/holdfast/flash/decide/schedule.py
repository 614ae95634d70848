"""Which steps are saved to which tier: a schedule, the same on all ranks, without a clock.

Belongs here: what a script asks for, and how a rank follows a master that changes it in the run.
Does not belong here: the master's choice, and how its word comes (`holdfast.slot`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

AUTO: Final = "auto"
_WIRE: Final = re.compile(r"(\d{1,18}):(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Steps between saves; memory 0: none but those to storage, storage 0: only when asked."""

    memory: int
    storage: int


ALONE: Final = Every(memory=1, storage=100)
"""What "auto" means where no master computes it: one copy a step, and a write now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """First step and distance per tier. A number is the script's, and nobody changes it."""

    memory_every: int | Literal["auto"] = AUTO
    """Steps between saves to memory; 0: none but those to storage. One copy each. Default "auto":
    the job's master computes it, and changes it in the run; without a master 1."""
    storage_every: int | Literal["auto"] = AUTO
    """Steps between saves to storage; 0: only when asked. Default "auto": the job's master computes
    it, and changes it in the run; without a master 100."""
    first: int = 1
    """The first step that may be saved; 1 is the first that is completed. Default 1."""

    def __post_init__(self) -> None:
        """Raise ValueError naming a number that makes no schedule."""
        for name in ("memory_every", "storage_every", "first"):
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, int) or value < 0
            if wrong and (name == "first" or value != AUTO):
                words = "a whole number ≥ 0" + ("" if name == "first" else ' or "auto"')
                raise ValueError(f"{name}={value!r}: expected {words}")

    def over(self, every: Every) -> Every:
        """Return `every` with the script's own numbers in their places."""
        return Every(
            memory=every.memory if self.memory_every == AUTO else int(self.memory_every),
            storage=every.storage if self.storage_every == AUTO else int(self.storage_every),
        )


@dataclass(frozen=True, slots=True)
class Due:
    """What a step is saved to; a step for storage goes through memory."""

    memory: bool
    storage: bool


def due(step: int, every: Every, first: int = 1) -> Due:
    """Return what is due at a completed step."""
    if step < first:
        return Due(memory=False, storage=False)
    storage = _falls_on(step, every.storage)
    return Due(memory=storage or _falls_on(step, every.memory), storage=storage)


def _falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def parse(text: str) -> Every | None:
    """Return what an agent passes on as `memory:storage`; None for an empty text.

    Raises ValueError for anything else.
    """
    if not text:
        return None
    found = _WIRE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: expected <memory>:<storage>, steps between saves")
    return Every(memory=int(found[1]), storage=int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A schedule that is to hold from a step on, if every rank has heard of it before."""

    number: int
    step: int
    """The first step that it holds for."""
    every: Every


@dataclass(frozen=True, slots=True)
class _Open:
    """An offer that is not confirmed."""

    since: int
    """The first step for which its schedule was offered."""
    offer: Offer


@dataclass(frozen=True, slots=True)
class _Hold:
    """What holds from a step on."""

    step: int
    every: Every
    number: int


class Course:
    """What holds for one rank: what it began with, what was confirmed, what is offered.

    Not all ranks hear the master at the same step. So a rank that has been offered a schedule saves
    what either asks for, from the offer's step on; only once the master says that all ranks know it
    may one do without the old. Whoever has not heard of that yet still saves what the new one asks
    for. At every step there is a schedule whose saves all ranks make: the old or the new.

    A newer offer does not end one before: a master that follows another may not know that it was
    confirmed to some.
    """

    def __init__(self, begin: Every) -> None:
        """Take what the world began with, equal on all of its ranks."""
        self._holds = [_Hold(0, begin, 0)]
        self._open: list[_Open] = []

    def offered(self, offer: Offer) -> None:
        """Follow an offer beside what holds; one of the same numbers takes the place of another."""
        same = [one for one in self._open if one.offer.every == offer.every]
        since = min([offer.step, *(one.since for one in same)])
        self._open = [one for one in self._open if one not in same] + [_Open(since, offer)]

    def confirmed(self, number: int) -> None:
        """All ranks know this offer; said again, or after a later one, it is no news."""
        for one in self._open:
            if one.offer.number == number > self._holds[-1].number:
                self._holds.append(_Hold(one.offer.step, one.offer.every, number))

    def at(self, step: int) -> tuple[Every, ...]:
        """Return the schedules of which any may ask for a save at this step; steps only grow."""
        while len(self._holds) > 1 and self._holds[1].step <= step:
            del self._holds[0]
        now = self._holds[0]
        self._open = [one for one in self._open if one.offer.number > now.number]
        offered = (one.offer.every for one in self._open if one.since <= step)
        return (now.every, *(every for every in offered if every != now.every))
