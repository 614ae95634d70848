"""The objects that a job owns beside its pods: those that exist, and the next check of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from holdfast_operator.credentials import JobCredentials

HURRY_SECONDS: Final = 10.0
"""Time between two checks while a pod with a node does not begin, or a master is not reached: one
of the objects may be missing. It doubles with each check that finds nothing."""


@dataclasses.dataclass(slots=True)
class HeldCredentials:
    """Secrets, Services and disruption budget of one job."""

    issuer: JobCredentials
    prepared: bool = False
    """True: this process made or found the Secrets and Services."""
    certified: set[int] = dataclasses.field(default_factory=set)
    """Ranks that have a key pair in their Secret."""
    checked_at: float = 0.0
    """Time of the last check of the Secrets; Unix time, s; 0: not yet."""
    hurry_s: float = HURRY_SECONDS
    """Time until the next check while something may be missing, s."""
    renew_at: float | None = None
    """Time to renew the first of the certificates; Unix time, s; None: not known yet."""
    budget: int | None = None
    """Workers that the PodDisruptionBudget keeps; 0: there is none; None: not known yet."""
    group: tuple[str, int] | None = None
    """Backend and size of the PodGroup; an empty name: there is none; None: not known."""

    def are_prepared(self) -> None:
        """Note that the job's Secrets and Services are there."""
        self.prepared = True

    def certify(self, ranks: Iterable[int]) -> None:
        """Note that these ranks have a key pair in their Secret."""
        self.certified.update(ranks)

    def keeps_budget(self, workers: int) -> None:
        """Note the number of workers that the PodDisruptionBudget keeps; 0: there is none."""
        self.budget = workers

    def keeps_group(self, backend: str, least: int) -> None:
        """Note the PodGroup that is there; an empty name: there is none."""
        self.group = (backend, least)

    def due_in(self, now: float, period_s: float, *, hurry: bool) -> float:
        """Return the seconds until the next check of the objects.

        It is due each `period_s` seconds, sooner in a hurry: something may be missing.
        """
        if not self.checked_at:  # they were made, or found, a moment ago
            self.checked_at = now
        if not hurry:
            self.hurry_s = HURRY_SECONDS
        due = self.checked_at + (min(self.hurry_s, period_s) if hurry else period_s)
        if self.renew_at is not None:
            due = min(due, max(self.renew_at, self.checked_at + 1.0))
        return max(0.0, due - now)

    def look(self, now: float, *, hurry: bool) -> None:
        """Begin a check of the objects."""
        self.checked_at = now
        if hurry:
            self.hurry_s *= 2  # they were not missing: other jobs need the requests, too
        else:
            self.budget = self.group = None

    def renew(self, at: float) -> None:
        """Note the time to renew the first certificate; Unix time, s."""
        self.renew_at = at
