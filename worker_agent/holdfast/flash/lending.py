"""Lends what lies in memory here to other nodes of the job: says what it is, and lets it be read.

Belongs here: which slot, and that it stays while somebody reads it. Does not belong here: the
network (the agent has it), reading other nodes' memory (`gathering`). All methods run on the
service's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.flash.decide.slots import SlotState, Version
from holdfast.flash.gathering import Described
from holdfast.flash.keeper import Job, Keeper
from holdfast.flash.labour import failure_of
from holdfast.flash.offering import was_hashed
from holdfast.flash.persisting import hashed

Aside = Callable[[Callable[[], str], Callable[[str], None]], None]
"""Does the first on the labour's thread, then the second on the service's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A part that stays where it is until it is given back."""

    job: Job

    @property
    def image(self) -> memoryview:
        """Its bytes."""
        return self.job.slot.image


class Lender:
    """What one keeper lends."""

    def __init__(self, keeper: Keeper, aside: Aside) -> None:
        """Take whose slots they are, and who hashes those that were not hashed yet."""
        self._keeper, self._aside = keeper, aside

    def describe(
        self, version: Version, rank: int, taken: Callable[[Described | None], None]
    ) -> None:
        """Say what a part consists of, once it has hashes; None: it is not here."""
        job = self._keeper.saved(rank, version, durable=False)
        if job is None:
            taken(None)
            return
        found: Job = job

        def look() -> None:
            there = found.slot.state is SlotState.VALID and found.slot.version == found.version
            if there and not was_hashed(found.slot):
                hashed(found)

        def tell(_: str) -> None:
            arena, slot = found.held.arena, found.slot
            hashes = tuple(slot.hashes) if was_hashed(slot) else ()
            described = Described(
                table=arena.body,
                bytes_room=arena.geometry.bytes_room,
                lengths=tuple(slot.lengths),
                hashes=hashes,
            )
            self._keeper.done(found)
            taken(described)

        self._aside(lambda: failure_of(f"hashing step {version.step}", look), tell)

    def lend(self, version: Version, rank: int) -> Loan | None:
        """Return a part that stays until `take_back`; None: it is not here."""
        job = self._keeper.saved(rank, version, durable=False)
        return None if job is None else Loan(job=job)

    def take_back(self, loan: Loan) -> None:
        """Nobody reads it any more."""
        self._keeper.done(loan.job)
