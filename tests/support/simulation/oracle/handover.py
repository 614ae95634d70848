"""Charges that a new master must have of its predecessors, from the disk or from agents.

Belongs here: what there was to be had, kept apart from the master's own claims. Does not belong
here: what it does with a world that runs (`checks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_master.inputs import Connected, Input
from holdfast_wire.messages import StateDigest
from simulation.oracle import invariants

if TYPE_CHECKING:
    from simulation.master import Master
    from simulation.oracle.checks import Checks


class Handover:
    """The checks of the facts that one master has taken over."""

    def __init__(self, checks: Checks, master: Master) -> None:
        """It has read the disk, and nobody has come yet."""
        self._checks, self._inspection = checks, master.core.job
        self._began_at = master.job.time.now
        self._digests: list[StateDigest] = []
        """What agents have brought while it knew no world."""
        state = self._inspection.state
        self._settled = state.assigned is not None
        kept = checks.accounts.durable.values()
        invariants.charges_survive("the disk", kept, state.charges)

    def look(self, event: Input | None) -> None:
        """An input has been taken."""
        if self._settled:
            return
        if isinstance(event, Connected) and event.session in self._inspection.membership.sessions:
            self._digests.append(event.hello.digest or StateDigest())
        if self._inspection.claims.settled:
            self._settled = True
            newest = max(self._digests, key=_age, default=StateDigest())
            invariants.charges_survive("an agent", newest.charges, self._inspection.state.charges)
            self._checks.promises.taken_over(newest.draining_agents, self._began_at)


def _age(digest: StateDigest) -> tuple[int, int]:
    return (digest.fence.epoch if digest.fence is not None else 0, digest.sequence)
