"""Checks of a job whose course a test writes: only what holds whatever the test does.

Belongs here: the core's own invariants after every input, rounds and charges that only grow, one
round at a time. Does not belong here: what only holds for faults that the simulation itself does
(`oracle.checks`, `oracle.watch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_master.inputs import Input
from holdfast_master.instructions import Instruction, Record, Refuse, Reply, Send
from holdfast_wire.messages import BudgetKind, WorldAssignment
from simulation.oracle import core_state
from simulation.oracle.checks import Checks
from simulation.oracle.invariants import require
from simulation.oracle.watch import Watch

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.master import Master
    from simulation.steered.job import SteeredJob


class SteeredWatch(Watch):
    """Looks at one master after each of its inputs."""

    checks: SteeredChecks

    def quiet_event(self, event: Input | None) -> None:
        """An input that led to nothing."""
        self.after_event(event, [])

    def after_event(self, event: Input | None, batch: list[Instruction]) -> None:
        """The core's own invariants hold, and what was said is kept for the test."""
        job = self.checks.steered
        if job.validates and event is not None:
            core_state.check(self.master.core.job)
            self._grows()
        job.instructions += batch
        for item in batch:
            if isinstance(item, Send) and item.session in self.master.streams:
                agent: Agent = self.master.streams[item.session].agent  # type: ignore[assignment]
                job.sent.append((agent.rank, item.response.message))

    def _grows(self) -> None:
        """Rounds only grow, and only charges of no progress are ever forgotten."""
        state, checks = self.master.core.job.state, self.checks
        kept = sum(charge.kind is not BudgetKind.NO_PROGRESS for charge in state.charges)
        require(state.round >= self.decided, "rounds_grow", f"{state.round} after {self.decided}")
        require(kept >= checks.kept, "charges_grow", f"{kept} charges after {checks.kept}")
        self.decided, checks.kept = state.round, kept

    def written(self, records: list[Record], *, synced: bool) -> None:
        """Records are on the disk."""

    def said(self, message: object) -> None:
        """A message or a decision goes out."""

    def answered(self, item: Reply | Refuse) -> None:
        """A user is answered, once."""
        answers = self.checks.steered.answers
        require(item.request_id not in answers, "answered_once", f"request {item.request_id}")
        answers[item.request_id] = item

    def ended(self) -> None:
        """The master's life is over."""


class SteeredChecks(Checks):
    """The invariants that hold whatever a test does to a job."""

    job: SteeredJob
    kept = 0
    """Charges that no master may forget."""

    @property
    def steered(self) -> SteeredJob:
        """The job."""
        return self.job

    def new_master(self, master: Master) -> Watch:
        """A master begins; one that read nothing may know less than the one before."""
        if not master.base:
            self.kept = 0
        return SteeredWatch(self, master)

    def started(self, agent: Agent, number: int, assignment: WorldAssignment) -> None:
        """An agent starts a round."""
        job = self.job
        job.assignments.append((job.time.now, agent.rank, number, assignment))
        agent.forget_round()  # type: ignore[attr-defined]

    def sweep(self) -> None:
        """Nothing is looked at by the clock."""
