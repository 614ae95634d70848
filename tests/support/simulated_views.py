"""What a test asks a simulated job about."""

from __future__ import annotations

from holdfast_master.core import Core
from holdfast_master.instructions import Finished
from holdfast_master.job.state import JobState
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import BudgetKind, JobPhase, JournalRecord


class JobViews:
    """Questions about the core of a job."""

    core: Core
    settings: CoreSettings
    records: list[JournalRecord]
    finished: Finished | None

    @property
    def phase(self) -> JobPhase:
        """The job's phase."""
        return self.core._desk.state.phase

    def is_in(self, *phases: str) -> bool:
        """Whether the job is in one of these phases."""
        return self.phase.name in phases

    @property
    def end(self) -> str:
        """Why the job ended; empty: it has not."""
        return "" if self.finished is None else self.finished.reason

    @property
    def members(self) -> list[int]:
        """Node ranks of the running world, in rank order."""
        world = self.core._desk.running()
        return list(world.places) if world else []

    def reasons(self) -> list[str]:
        """Reasons of all events, oldest first."""
        return [event.reason for event in self.core.events_after(0, 100_000)]

    def charges(self) -> list[BudgetKind]:
        """What was charged so far."""
        return [charge.kind for charge in self.core._desk.state.charges]

    def refold(self) -> JobState:
        """The state as the journal alone gives it."""
        state = JobState(
            event_limit=self.settings.event_limit, incident_limit=self.settings.incident_limit
        )
        for record in self.records:
            state.apply(record)
        return state
