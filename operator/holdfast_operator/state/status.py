"""Status subresource of a job: as last written, as last planned, and the time of the next write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast_operator.plan.pods import MASTER_SLOT
from holdfast_operator.pods.record import PodRecord


@dataclasses.dataclass(slots=True)
class WrittenStatus:
    """Status that the API server has, and the conditions planned since."""

    fields: Mapping[str, Any]
    """Fields as last written, which may be newer than the object's."""
    conditions: Sequence[Mapping[str, Any]] | None = None
    """Conditions as last planned; None: not yet. The status is written once a second, and
    conditions between two writes count too: a scaling goes on until a world of the new size
    trains."""
    asked_at: float = -math.inf
    """Monotonic time of the last request to write it, whatever its result."""
    leaves_since: float | None = None
    """Monotonic time since which all pods of its master are being deleted; None: one stays."""

    @property
    def ended(self) -> bool:
        """True once the status says that the job has ended."""
        return "completionTime" in self.fields

    @property
    def revision(self) -> str:
        """Name of the templates in the status; empty: none."""
        return str(self.fields.get("templateRevision", ""))

    @property
    def masters(self) -> int:
        """Number of pods that its master has had."""
        return int(self.fields.get("masterPods", 0))

    @property
    def admission(self) -> int:
        """Newest revision that its master may have been told; 0: it never had a queue."""
        return int(self.fields.get("admissionRevision", 0))

    def written(self, fields: Mapping[str, Any]) -> None:
        """Note the status that the API server has now."""
        self.fields = fields
        self.planned(self.conditions)

    def planned(self, conditions: Sequence[Mapping[str, Any]] | None) -> None:
        """Note the conditions of a plan; equal ones are kept once."""
        written = self.fields.get("conditions")
        self.conditions = written if conditions == written else conditions

    def asked(self, now: float) -> None:
        """Note a request to write it."""
        self.asked_at = now

    def for_planner(self) -> Mapping[str, Any]:
        """Return the status for the next plan."""
        if self.conditions is None or self.ended:
            return self.fields
        return {**self.fields, "conditions": self.conditions}

    def may_write_in(self, period_s: float, now: float) -> float:
        """Return the seconds until it may be written again."""
        return max(0.0, self.asked_at + period_s - now)

    def holds_back(self, pods: Iterable[PodRecord], period_s: float, now: float) -> float:
        """Return the seconds for which an ordinary write lets an imminent one go first.

        A master's pod goes: its successor's epoch must not have to wait for the next period.
        """
        masters = [pod for pod in pods if pod.slot == MASTER_SLOT]
        if not masters or not all(pod.deleting for pod in masters):
            self.leaves_since = None
            return 0.0
        if self.leaves_since is None:
            self.leaves_since = now
        return max(0.0, self.leaves_since + period_s - now)


def decisive(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the next plan may follow from: all but the progress of a job."""
    conditions = fields.get("conditions") or ()
    said = tuple((one["type"], one["status"], one.get("reason")) for one in conditions)
    return fields.get("phase"), fields.get("completionTime"), fields.get("templateRevision"), said
