"""The core's clocks, all derived from the moments that the shell hands in.

Belongs here: the patient clock of deadlines, the ledger's clock, the job's own time. Does not
belong here: reading a clock.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.inputs import Moment
from holdfast_master.policies.goodput import micros

_BEFORE = Moment(0.0, 0.0)


@dataclasses.dataclass(slots=True)
class JobClock:
    """The time of the input that is being taken."""

    moment: Moment = _BEFORE
    stalled: float = 0.0
    """Time that the master itself has stood still so far, s."""
    opened: float = 0.0
    """Monotonic time at which this master took the job up, s."""
    job_base: float = 0.0
    """The job's own time at which this master took it up, s."""

    def open(self, moment: Moment, job_seconds: float) -> None:
        """The job's own time runs on from here."""
        self.moment, self.opened, self.job_base = moment, moment.mono, job_seconds

    @property
    def patient(self) -> float:
        """Monotonic without the time in which the master stood still: for deadlines, s."""
        return self.moment.mono - self.stalled

    @property
    def micros(self) -> int:
        """Monotonic, stalls included: for the goodput ledger, microseconds."""
        return micros(self.moment.mono)

    @property
    def job_seconds(self) -> float:
        """The job's own time, s: it runs while a master runs."""
        return self.job_base + (self.moment.mono - self.opened)
