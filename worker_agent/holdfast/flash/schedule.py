"""Schedule of saves per tier: the same on all ranks, without a clock.

Belongs here: the script's choice, and the way of a rank to a new schedule of its master. Does not
belong here: the master's choice, and its transport (`holdfast.page_slot`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from holdfast_wire.messages import Tier
from holdfast_wire.tiers import TIERS, word

AUTO: Final = "auto"
_WIRE: Final = re.compile(r"(\d{1,18}):(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEvery:
    """Steps between saves; memory 0: only saves to storage, storage 0: only on request."""

    memory: int
    storage: int


ALONE: Final = SaveEvery(memory=1, storage=100)
"""Meaning of "auto" without a master: a copy at each step, a write now and then."""


_SHORT: Final[Mapping[Tier, str]] = {Tier.MEMORY: "memory_every", Tier.STORAGE: "storage_every"}
"""Short forms of `Schedule.every`, by tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """First step and distance of saves per tier; equal on all ranks.

    The master does not change a number, only "auto":
    `holdfast.Schedule(every={"memory": 5, "storage": 100})`, or in short
    `holdfast.Schedule(memory_every=5, storage_every=100)`.

    Args:
        every: Steps between saves by the name of the tier, ≥ 0, or "auto".
        memory_every: Short form of `every={"memory": …}`.
        storage_every: Short form of `every={"storage": …}`.
        first: The first step that may be saved, ≥ 0.

    Raises:
        ValueError: a value is none of these, or a tier has two.
    """

    every: Mapping[str, int | Literal["auto"]] = field(default_factory=dict, hash=False)
    """Steps between saves by tier, "memory" or "storage"; a tier that is not named: as its short
    form says."""
    memory_every: int | Literal["auto"] = AUTO
    """Steps between saves to memory, one copy each; 0: only saves to storage. Default "auto": the
    job's master computes the number and changes it during the run; without a master 1."""
    storage_every: int | Literal["auto"] = AUTO
    """Steps between saves to storage; 0: only on request. Default "auto": the job's master computes
    the number and changes it during the run; without a master 100."""
    first: int = 1
    """First step that may be saved; 1 is the first completed one. Default 1."""

    def __post_init__(self) -> None:
        if not isinstance(self.every, Mapping):
            raise ValueError(  # noqa: TRY004 - as for every other argument
                f"every={self.every!r}: expected steps by tier, as {{'memory': 5, 'storage': 100}}"
            )
        for tier, name in _SHORT.items():
            _check(name, getattr(self, name))
            if word(tier) in self.every and getattr(self, name) != AUTO:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} and every={self.every!r} both set "
                    f"{word(tier)}: give one of them"
                )
        for key, value in self.every.items():
            if key not in map(word, TIERS):
                tiers = " or ".join(repr(word(tier)) for tier in TIERS)
                raise ValueError(f"every has the tier {key!r}: expected {tiers}")
            _check(f"every[{key!r}]", value)
        if not _is_steps(self.first):
            raise ValueError(f"first={self.first!r}: expected a whole number ≥ 0")
        object.__setattr__(self, "every", dict(self.every))  # the caller's may change

    def own(self, tier: Tier) -> int | None:
        """Return the script's own number for a tier; None: it leaves the tier to the master."""
        number = self.every.get(word(tier), getattr(self, _SHORT[tier]))
        return None if number == AUTO else int(number)

    def over(self, every: SaveEvery) -> SaveEvery:
        """Return `every`, with the script's own numbers in place of the master's."""
        memory, storage = self.own(Tier.MEMORY), self.own(Tier.STORAGE)
        return SaveEvery(
            memory=every.memory if memory is None else memory,
            storage=every.storage if storage is None else storage,
        )


def _check(name: str, value: object) -> None:
    """Raise ValueError unless the value is a number of steps or "auto"."""
    if value != AUTO and not _is_steps(value):
        raise ValueError(f'{name}={value!r}: expected a whole number ≥ 0 or "auto"')


def _is_steps(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class Due:
    """Tiers that a step is saved to; a save to storage goes through memory."""

    memory: bool
    storage: bool
    sure: bool
    """Every rank saves the step to storage. False for a step that only an offered or only an old
    schedule asks for: it is saved for the ranks that follow that one, and must not be awaited."""


def due(step: int, every: SaveEvery, first: int = 1) -> Due:
    """Return the tiers due at a completed step."""
    if step < first:
        return Due(memory=False, storage=False, sure=False)
    storage = _falls_on(step, every.storage)
    memory = storage or _falls_on(step, every.memory)
    return Due(memory=memory, storage=storage, sure=storage)


def _falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def parse(text: str) -> SaveEvery | None:
    """Parse an agent's `memory:storage`; return None for an empty text.

    Raises ValueError for anything else.
    """
    if not text:
        return None
    found = _WIRE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: expected <memory>:<storage>, steps between saves")
    return SaveEvery(memory=int(found[1]), storage=int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOffer:
    """A schedule that holds from a step on, if every rank knows it before that step."""

    number: int
    step: int
    """First step that it holds for."""
    every: SaveEvery


class Course:
    """Schedule of one rank over time: the first one, the confirmed ones, the one on offer.

    Not all ranks see a message of the master at the same step. So from the step of an offer on, a
    rank saves what the old or the new schedule asks for. It drops the old one only after the master
    has confirmed that all ranks know the new one. A rank without that confirmation still saves what
    the new one asks for. So at every step there is one schedule whose saves all ranks make.

    A newer offer does not end an older one: a successor of the master may not know that the older
    one was confirmed to some ranks.
    """

    def __init__(self, begin: SaveEvery) -> None:
        """begin: the first schedule of the world, equal on all of its ranks."""
        self._holds = [ScheduleOffer(number=0, step=0, every=begin)]
        """Schedules that hold, each from its step on."""
        self._open: dict[SaveEvery, tuple[int, ScheduleOffer]] = {}
        """Schedules that are not confirmed: the first step of the earliest offer, the newest offer.
        """

    def offered(self, offer: ScheduleOffer) -> None:
        """Follow an offer beside the schedules that hold; it replaces an offer of equal numbers."""
        earlier, _ = self._open.pop(offer.every, (offer.step, offer))
        self._open[offer.every] = min(offer.step, earlier), offer

    def confirmed(self, number: int) -> None:
        """Note that all ranks know this offer; a repeated or late confirmation changes nothing."""
        for _, offer in self._open.values():
            if offer.number == number > self._holds[-1].number:
                self._holds.append(offer)

    def at(self, step: int) -> tuple[SaveEvery, ...]:
        """Return the schedules that may ask for a save at this step; steps only grow."""
        while len(self._holds) > 1 and self._holds[1].step <= step:
            del self._holds[0]
        now = self._holds[0]
        self._open = {every: one for every, one in self._open.items() if one[1].number > now.number}
        offered = [every for every, (since, _) in self._open.items() if since <= step]
        return (now.every, *(every for every in offered if every != now.every))
