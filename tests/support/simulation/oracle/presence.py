"""Time for which each node was present to one master: the sum of its goodput classes.

Belongs here: an account kept apart from the master's ledger. Does not belong here: what the time
was spent on.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast_master.job.state.phases import ENDED
from holdfast_master.policies.goodput import Totals
from simulation.oracle import invariants

if TYPE_CHECKING:
    from simulation.master import Master


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """A master's counts when it ended."""

    totals: dict[int, int]
    """Node rank to all its node time, us."""
    at: int
    """Unix time of its last input, us."""


class Presence:
    """Times of nodes, in microseconds of the master's clock."""

    def __init__(self, master: Master) -> None:
        """Nothing is counted before `begin`."""
        self._master = master
        self._joined: dict[int, int] = {}
        self._present: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self.brought_along = False
        """Agents of a running world have brought accounts of their own: nothing to compare."""

    def begin(self) -> None:
        """The master has opened its segment: what it has read, it counts on from here."""
        context = self._master.core.job
        nodes = context.state.nodes if context.state.phase not in ENDED else {}
        self._joined = dict.fromkeys(nodes, self._now())
        totals = context.ledger.totals(context.clock.micros)
        self._before = {rank: sum(classes.values()) for rank, classes in totals.items()}
        self._compare(self._master.job.checks.left)

    def _compare(self, left: Left | None) -> None:
        """Require that the predecessor's counts go on, with the time in between."""
        context = self._master.core.job
        if left is None or context.state.phase in ENDED:
            return
        gap = self._master.wall_micros - left.at
        for rank, total in left.totals.items():
            invariants.goodput_survives(rank, self._before.get(rank, 0), total, gap)

    def leave(self) -> Left | None:
        """Return the counts that a successor must find; None if it may find less."""
        master = self._master
        unsure = master.job.jumped or master.stepped_down or not master.all_written
        if unsure or master is not master.job.master:
            return None
        context = master.core.job
        totals = context.ledger.totals(context.clock.micros)
        sums = {rank: sum(classes.values()) for rank, classes in totals.items()}
        return Left(sums, round(context.clock.moment.unix * 1e6))

    def _now(self) -> int:
        return round(self._master.moment().mono * 1e6)

    def joins(self, rank: int) -> None:
        """A node is there; another agent of it may have been until now."""
        self.leaves(rank)
        self._joined[rank] = self._now()

    def brings(self, rank: int, totals: Totals) -> None:
        """A node's account is written: of one that was never here, an earlier master's digest."""
        if rank not in self._joined and rank not in self._present:
            self._before.setdefault(rank, sum(totals.values()))

    def leaves(self, rank: int) -> None:
        """A node is gone."""
        since = self._joined.pop(rank, None)
        if since is not None:
            self._present[rank] = self._present.get(rank, 0) + self._now() - since

    def check(self) -> None:
        """Compare with the ledger, at the end of the master's life."""
        if self.brought_along:
            return
        for rank in list(self._joined):
            self.leaves(rank)
        context = self._master.core.job
        at = context.clock.micros
        late = self._now() - at
        for rank, totals in context.ledger.totals(at).items():
            counted = sum(totals.values()) - self._before.get(rank, 0)
            expected = self._present.get(rank, 0) - (
                late if rank in context.membership.nodes else 0
            )
            invariants.goodput_sums(rank, counted, expected)
