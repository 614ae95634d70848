"""Everything that one plan is made from, as one frozen value, and what the parts of a plan say.

The parts (`fill`, `shrink`, `finish`) each yield steps: actions for now, and wakes for later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.plan.actions import Action, DeletePod, DeleteReason
from holdfast_operator.plan.history import History, SlotHistory
from holdfast_operator.plan.pods import ObservedPod, Role, Slot
from holdfast_operator.plan.refusals import Refusals
from holdfast_operator.plan.view import MasterView
from holdfast_operator.spec.job import JobSpec

SHORTEST_GRACE_S: Final = 1
"""For a pod that nobody needs any more. Not 0: Kubernetes would forget the pod while it runs."""
DEFAULT_GRACE_S: Final = 30
"""What Kubernetes gives a pod whose template does not say."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job that is planned, as its keeper knows it."""

    name: str
    uid: str
    generation: int
    """Of the spec; grows with each change."""
    spec: JobSpec
    status: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The status subresource as last written; empty before the first plan."""
    history: History = dataclasses.field(default_factory=dict)
    """As the last plan returned it; empty for a keeper that was just started."""
    refused: Refusals = dataclasses.field(default_factory=dict)
    """Places whose pods the API server did not take when last tried."""
    stopping: bool = False
    """Somebody wants the job to end (deletion, Ctrl-C): no pod is made any more."""
    held: bool | None = None
    """Whether a finalizer of ours holds its object; None: nothing can (locally)."""
    deleted_at: float = 0.0
    """When it was deleted, Unix time, s; means something while it is stopping and held."""
    first_seen_at: float = 0.0
    """When this planner first saw it, Unix time, s; 0: unknown, as if long ago."""
    cut_off: bool = False
    """It is rather this side that reaches no master: what is silent proves nothing."""
    unreachable: frozenset[str] = frozenset()
    """Nodes that answer nothing while others do."""
    master_endpoint: str = ""
    """host:port of the master; empty while nobody knows."""

    @property
    def ended_at(self) -> str | None:
        """When the status said Complete or Failed (RFC 3339); None while the job goes on."""
        return self.status.get("completionTime")


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """Plan again at this time, even if nothing happens."""

    at: float
    """Unix time, s."""


Steps = Iterator[Action | Wake]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One look at a job."""

    job: Job
    pods: Mapping[Slot, tuple[ObservedPod, ...]]
    """Those that exist, of each place the oldest first."""
    master: MasterView
    history: History
    """Up to and including this look."""
    now: float
    """Unix time, s."""

    def entry(self, slot: Slot) -> SlotHistory:
        """What is remembered of a place."""
        return self.history.get(slot, SlotHistory())

    def live(self, *roles: Role) -> list[ObservedPod]:
        """The living pods of these roles, in order."""
        return [
            pod
            for slot in sorted(self.pods)
            for pod in self.pods[slot]
            if slot.role in roles and pod.live
        ]

    @property
    def avoided(self) -> tuple[str, ...]:
        """Kubernetes nodes that new pods keep away from, the newest last.

        Before the master has spoken: those of the last status.
        """
        spec, master = self.job.spec, self.master
        if not spec.exclude_failed_nodes or spec.max_excluded_nodes == 0:
            return ()
        named = master.excluded
        if not named and master.status is None:
            named = tuple(self.job.status.get("excludedNodes", ()))
        return named[-spec.max_excluded_nodes :]

    def grace_s(self, slot: Slot) -> int:
        """Seconds between SIGTERM and SIGKILL that the pods of a place get."""
        return grace_of(self._template(slot))

    def _template(self, slot: Slot) -> Mapping[str, Any] | None:
        if slot.role is Role.WORKER:
            return self.job.spec.worker_template
        if slot.role is Role.MASTER:
            return self.job.spec.master_template
        roles = self.job.spec.extra_roles
        return next((role.template for role in roles if role.name == slot.name), None)


def grace_of(template: Mapping[str, Any] | None) -> int:
    """`terminationGracePeriodSeconds` of a pod template; Kubernetes' own where it has none."""
    given = (template or {}).get("spec", {}).get("terminationGracePeriodSeconds")
    return max(SHORTEST_GRACE_S, given) if isinstance(given, int) else DEFAULT_GRACE_S


def delete(pod: ObservedPod, reason: DeleteReason, grace_s: int) -> Iterator[DeletePod]:
    """The deletion of a pod, unless one is under way."""
    if not pod.deleting:
        yield DeletePod(
            slot=pod.slot,
            name=pod.name,
            uid=pod.uid,
            grace_s=grace_s,
            reason=reason,
        )
