"""Writes to storage what lies in memory here because a master asks, whoever of its ranks lives.

Belongs here: one order from its slots to the word of its parts. Does not belong here: what a rank
saves while it lives (`service`), which version is asked for (the master knows what all nodes have),
the commit (`persisting`). All runs on the service's own thread, but for the writing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.flash.commit import CommitError
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk
from holdfast.flash.keeper import Job, Keeper
from holdfast.flash.labour import outcome_of
from holdfast.flash.manifest import Shard
from holdfast.flash.persisting import Storage

Outcome = tuple[Shard | None, str]
"""A rank's part, or why there is none."""
Aside = Callable[[Callable[[], Outcome], Callable[[Outcome], None]], None]
"""Does the first on the labour's thread, then the second, with its outcome, on the service's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a master asks for."""

    version: Version
    attempt: str
    """Where the parts are to lie; the same on all nodes."""
    root: str
    """Directory of this node's checkpoints; empty: its ranks named none."""


class Told(Protocol):
    """Hears what became of an order."""

    def __call__(
        self, order: Order, *, world: int, ranks: tuple[int, ...], size: int, error: str
    ) -> None:
        """Take it; error: nonempty where parts could not be written."""


@dataclass(slots=True)
class _Open:
    """An order whose parts are being written."""

    left: int
    """Ranks whose part is not written yet."""
    world: int
    parts: dict[int, Shard] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class Rescuer:
    """The orders of one keeper."""

    def __init__(self, keeper: Keeper, disk: Disk, owner: str, aside: Aside, told: Told) -> None:
        """Take whose slots are written, where to, for which job, by whom, and who hears of it."""
        self._keeper, self._disk, self._owner = keeper, disk, owner
        self._aside, self._told = aside, told
        self._open: dict[tuple[Version, str], _Open] = {}

    def order(self, order: Order) -> None:
        """Begin to write; an order that is given again while it is carried out changes nothing."""
        key = (order.version, order.attempt)
        if key in self._open:
            return
        ranks = [rank for rank in self._keeper.ranks if self._keeper.find(rank, order.version)]
        problem = self._problem(order, ranks)
        if problem:
            self._told(order, world=self._keeper.world, ranks=(), size=0, error=problem)
            return
        keep_all = RetentionSettings(keep_last=1_000_000)
        storage = Storage(self._disk, order.root, order.attempt, keep_all, self._owner)
        jobs = [self._keeper.saved(rank, order.version, durable=True) for rank in ranks]
        found = [job for job in jobs if job is not None]
        self._open[key] = _Open(left=len(found), world=found[0].held.arena.table.world)
        for job in found:
            self._begin(order, storage, job)

    def _problem(self, order: Order, ranks: list[int]) -> str:
        if not order.root:
            return "its ranks named no directory for checkpoints"
        sizes = {
            size
            for version, (size, _) in self._keeper.offer.parts().items()
            if version == order.version
        }
        same = sizes == {self._keeper.world}  # else another world saved it, on other ranks
        if not ranks or (same and len(ranks) < self._keeper.kept):
            return (
                f"step {order.version.step} of round {order.version.lineage} is in the memory of "
                f"{len(ranks)} of its {self._keeper.kept} ranks"
            )
        return ""

    def _begin(self, order: Order, storage: Storage, job: Job) -> None:
        def write() -> Shard:
            return storage.write(job, alone=True)

        self._aside(
            lambda: outcome_of(f"writing step {job.version.step}", write, CommitError),
            lambda outcome: self._written(order, job, *outcome),
        )

    def _written(self, order: Order, job: Job, shard: Shard | None, error: str) -> None:
        self._keeper.done(job)
        key = (order.version, order.attempt)
        found = self._open[key]
        found.left -= 1
        if shard is None:
            found.errors.append(error)
        else:
            found.parts[job.held.rank] = shard
        if found.left:
            return
        del self._open[key]
        whole = not found.errors
        self._told(
            order,
            world=found.world,
            ranks=tuple(sorted(found.parts)) if whole else (),
            size=sum(part.bytes for part in found.parts.values()) if whole else 0,
            error="; ".join(found.errors),
        )
