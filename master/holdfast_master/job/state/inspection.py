"""The read-only view of a job's context, for tests and tools.

Belongs here: the parts that may be looked at. Does not belong here: any way to change or send
something.
"""

from __future__ import annotations

from typing import Protocol

from holdfast_master.job.state.changes import PendingChanges
from holdfast_master.job.state.checkpoints import Checkpoints
from holdfast_master.job.state.goodput import GoodputLedger
from holdfast_master.job.state.health import Health
from holdfast_master.job.state.incident import Incidents
from holdfast_master.job.state.job_clock import JobClock
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Membership
from holdfast_master.job.state.operator_view import OperatorView
from holdfast_master.job.state.takeover_claims import Claims
from holdfast_master.job.state.world import Worlds
from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire.messages import MasterSpec


class JobInspection(Protocol):
    """The context as `Core.inspect` shows it: no part can be exchanged, and nothing is sent."""

    @property
    def identity(self) -> CoreIdentity:
        """Return who this master is."""

    @property
    def settings(self) -> CoreSettings:
        """Return what this master was configured with."""

    @property
    def state(self) -> JobState:
        """Return the fold of the journal."""

    @property
    def clock(self) -> JobClock:
        """Return the time of the newest input."""

    @property
    def health(self) -> Health:
        """Return what is known of the running world's health."""

    @property
    def membership(self) -> Membership:
        """Return the present nodes."""

    @property
    def worlds(self) -> Worlds:
        """Return the newest worlds."""

    @property
    def incidents(self) -> Incidents:
        """Return the open incidents."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return what is known of checkpoints."""

    @property
    def ledger(self) -> GoodputLedger:
        """Return the goodput accounts."""

    @property
    def operator(self) -> OperatorView:
        """Return what the operator reported."""

    @property
    def claims(self) -> Claims:
        """Return the claims of a world that the journal does not name."""

    @property
    def stepped_down(self) -> bool:
        """Return whether a newer master exists."""

    @property
    def changes(self) -> PendingChanges:
        """Return the reasons of the newest looks at the decisions."""

    @property
    def now(self) -> float:
        """Return the patient clock, s."""

    @property
    def spec(self) -> MasterSpec:
        """Return the spec in force."""

    @property
    def bounds(self) -> Bounds:
        """Return the allowed sizes of a world."""

    @property
    def wanted(self) -> int:
        """Return the number of node ranks that the spec asks for."""
