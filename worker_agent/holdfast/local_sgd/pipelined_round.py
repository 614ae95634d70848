"""One outer round over all units: in one order on all ranks, one unit in flight.

Belongs here: which unit is finished and begun when. Does not belong here: the sync of a unit
(`sync.unit_sync`), and the hooks of a framework that say how far a forward has come.

Every rank makes the same collectives in the same order, whatever order its own forward takes: unit
k is begun, then k - 1 is finished. A forward that needs unit k finishes all units up to k. While it
computes with k, the reduction of k + 1 is on its way. What a forward did not reach is finished
before the optimizer's step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.local_sgd.sync.unit_sync import Outcome, Pending, UnitSync
from holdfast.local_sgd.sync.units import Unit

log: Final = logging.getLogger("holdfast")


class PipelinedRound:
    """One round; a unit that is finished is never touched again, however often it is reached."""

    def __init__(
        self,
        sync: UnitSync,
        units: Sequence[Unit],
        *,
        steps: float,
        joins: bool,
        before_write: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Take the units in the order of the round; nothing is begun yet.

        Args:
            sync: What begins and finishes them.
            units: The same on all ranks, in the same order.
            steps: What this replica has done since its last round.
            joins: False: this replica has no more data, and weighs nothing.
            before_write: Called with the number of a unit whose weights are to be written next.
        """
        self._sync, self._units = sync, units
        self._steps, self._joins, self._before_write = steps, joins, before_write
        self.finished = 0
        """Units that need nothing more: finished here, or given by another replica."""
        self._begun = 0
        self._pending: Pending | None = None
        """The unit after the last finished one, in flight."""
        self.outcomes: list[Outcome] = []
        """Of the finished units."""

    @property
    def is_over(self) -> bool:
        """All units are finished."""
        return self.finished == len(self._units)

    def reach(self, number: int) -> None:
        """Finish all units up to this one, and begin the next.

        Raises:
            SyncError: a rank is gone. Finished units stay so; a later call goes on with the others.
        """
        while self.finished <= number:
            at = self.finished
            pending, self._pending = self._pending or self._begin(at), None
            following = self._begin(at + 1) if at + 1 < len(self._units) else None
            self._before_write(at)
            self.outcomes += self._sync.finish(pending)
            self.finished, self._pending = at + 1, following

    def complete(self) -> None:
        """Finish all units; see `reach`."""
        self.reach(len(self._units) - 1)

    @property
    def begun(self) -> frozenset[int]:
        """Units whose sync has begun and is not finished, also where it has failed."""
        return frozenset(range(self.finished, self._begun))

    def drop_flight(self) -> None:
        """Begin the unit in flight again, in the groups that the sync has now."""
        self._pending = None

    def go_on_from(self, number: int) -> None:
        """Take the units before this one for finished, and begin this one again."""
        self.finished = number
        self._begun = number
        self.drop_flight()

    def _begin(self, number: int) -> Pending:
        self._begun = max(self._begun, number + 1)
        return self._sync.begin([self._units[number]], steps=self._steps, joins=self._joins)


def log_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Log a round; loudly where replicas were left out, not where nobody had made a step."""
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


def log_batch(outcomes: Sequence[Outcome], *, tells_clipping: bool = False) -> None:
    """Log a round of many small units in a line; loudly where replicas were left out."""
    left = [one for one in outcomes if any(one.anomalous)]
    clipped = [one for one in outcomes if one.clipped < 1] if tells_clipping else []
    for one in (left or clipped)[:1]:
        log.log(
            logging.WARNING if left else logging.INFO,
            "local SGD: round %d: %d of %d parameters stand out; %s: anomalous %s, weights %s, "
            "clipped by %.3g: %s",
            *(one.round, len(left), len(outcomes), one.name, one.anomalous),
            *([f"{weight:.3f}" for weight in one.weights], one.clipped, one.reason),
        )
