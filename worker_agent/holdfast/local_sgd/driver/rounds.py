"""One outer round over all units: in one order on all ranks, one batch in flight.

Belongs here: which batch is finished and begun when, and the log of a round. Does not belong here:
the sync of a batch (`sync.unit_sync`), and how far a forward has come, which a framework says.

Every rank makes the same collectives in the same order, whatever order its own forward takes: batch
k is begun, then k - 1 is finished. A forward that needs a unit of batch k finishes all up to k.
While it computes with k, the reduction of k + 1 is on its way.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.local_sgd.sync.unit_sync import Outcome, Pending, UnitSync
from holdfast.local_sgd.sync.units import Unit

log: Final = logging.getLogger("holdfast")


class Round:
    """One round; a unit that is finished is never touched again, however often it is reached."""

    def __init__(
        self,
        sync: UnitSync,
        batches: Sequence[Sequence[Unit]],
        *,
        steps: float,
        before_write: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Take the units in the order of the round; nothing is begun yet.

        Args:
            sync: Begins and finishes batches.
            batches: Units that go in one transfer; the same on all ranks, in the same order.
            steps: Of this replica since its last round, or tokens.
            before_write: Called with the number of a unit whose weights are to be written next.
        """
        self._sync, self._batches, self._steps = sync, batches, steps
        self._before_write = before_write
        self._starts = [*itertools.accumulate((len(one) for one in batches), initial=0)]
        """Number of the first unit of each batch, and of all units."""
        self._finished = self._begun = 0
        """Batches."""
        self._pending: Pending | None = None
        """The batch after the last finished one, in flight."""
        self.is_open = bool(batches)
        """It has begun, and its end is not taken in."""
        self.outcomes: list[Outcome] = []
        """Of the finished units."""
        self.held_ns = 0
        """For how long it has held training up."""

    @property
    def finished(self) -> int:
        """Units that need nothing more: finished here, or given by another replica."""
        return self._starts[self._finished]

    @property
    def is_over(self) -> bool:
        """All units are finished."""
        return self._finished == len(self._batches)

    def wants(self, number: int) -> bool:
        """Return True if this unit, or one before it, is not finished."""
        return self.finished <= number and not self.is_over

    def reach(self, number: int) -> None:
        """Finish all units up to this one, and begin the next batch.

        Raises:
            SyncError: a rank is gone. Finished units stay so; a later call goes on with the others.
        """
        while self.wants(number):
            at, begun = self._finished, time.monotonic_ns()
            pending, self._pending = self._pending or self._begin(at), None
            following = self._begin(at + 1) if at + 1 < len(self._batches) else None
            for unit in range(self._starts[at], self._starts[at + 1]):
                self._before_write(unit)
            self.outcomes += self._sync.finish(pending)
            self._finished, self._pending = at + 1, following
            self.held_ns += time.monotonic_ns() - begun

    @property
    def begun(self) -> frozenset[int]:
        """Units whose sync has begun and is not finished, also where it has failed."""
        return frozenset(range(self.finished, self._starts[self._begun]))

    def drop_flight(self) -> None:
        """Begin the batch in flight again, in the groups that the sync has now."""
        self._pending = None

    def go_on_from(self, number: int) -> None:
        """Take the units before this one for finished, and begin its batch again."""
        self._finished = self._begun = self._starts.index(number)
        self.drop_flight()

    def _begin(self, number: int) -> Pending:
        self._begun = max(self._begun, number + 1)
        return self._sync.begin(self._batches[number], steps=self._steps)


def log_units(outcomes: Sequence[Outcome]) -> None:
    """Log each unit of a round; loudly where replicas were left out."""
    for one in outcomes:
        level = logging.WARNING if any(one.anomalous) else logging.DEBUG
        log.log(
            level,
            "local SGD: unit %s, round %d: weights %s, norms %s, clipped by %.3g: %s",
            one.name,
            one.round,
            [f"{weight:.3f}" for weight in one.weights],
            [f"{norm:.3g}" for norm in one.norms],
            one.clipped,
            one.reason,
        )


def log_batch(outcomes: Sequence[Outcome], *, shows_clipping: bool = False) -> None:
    """Log a round of many small units in a line; loudly where replicas were left out."""
    left = [one for one in outcomes if any(one.anomalous)]
    clipped = [one for one in outcomes if one.clipped < 1] if shows_clipping else []
    for one in (left or clipped)[:1]:
        log.log(
            logging.WARNING if left else logging.INFO,
            "local SGD: round %d: %d of %d parameters stand out; %s: anomalous %s, weights %s, "
            "clipped by %.3g: %s",
            *(one.round, len(left), len(outcomes), one.name, one.anomalous),
            *([f"{weight:.3f}" for weight in one.weights], one.clipped, one.reason),
        )
