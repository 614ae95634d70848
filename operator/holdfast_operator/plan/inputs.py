"""Inputs of one plan as one frozen value, and the steps that the parts of a plan yield.

The parts (`fill`, `finish`) each yield steps: actions for now, and wakes for later.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.plan.actions import Action, DeletePod, DeleteReason
from holdfast_operator.plan.history import UNKNOWN, History, Refusals, SlotHistory
from holdfast_operator.plan.pods import ObservedPod, PodSlot, Role, template_of
from holdfast_operator.plan.view import MasterView
from holdfast_operator.spec.job import JobSpec, SpecVersion

SHORTEST_GRACE_SECONDS: Final = 1
"""Grace of a pod that is not needed any more. Not 0: Kubernetes would forget a running pod."""
DEFAULT_GRACE_SECONDS: Final = 30
"""Grace that Kubernetes gives a pod whose template sets none."""
HOSTNAME: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What a queue says of a job; `PlannedJob.spec` has what it admits."""

    queue: str
    asked: JobSpec
    """Spec of the owner."""
    reason: str
    """Reason for admitting less than is asked for, for people; empty: all is admitted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """What is known of the group that a job's workers are scheduled in."""

    ready: bool
    """True: it is as the spec asks."""
    text: str
    """The group, or what is missing, for people."""
    blocked: bool = False
    """True: no pod is made without it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The job to plan, from `JobState` or the runner."""

    name: str
    uid: str
    version: SpecVersion
    """Version of the spec; grows with each change."""
    spec: JobSpec
    status: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Status subresource as last written; empty before the first plan."""
    history: History = dataclasses.field(default_factory=dict)
    """History that the last plan returned; empty if there was none."""
    refused: Refusals = dataclasses.field(default_factory=dict)
    """Places whose pods the API server refused at the last try."""
    stopping: bool = False
    """True: the job is to end (deletion, Ctrl-C), so no pod is made any more."""
    held: bool | None = None
    """True: our finalizer holds its object; None: there are no finalizers (locally)."""
    deleted_at: float = 0.0
    """Time of its deletion, Unix time, s; only meaningful while it is stopping and held."""
    first_seen_at: float = 0.0
    """Time at which this planner first saw it, Unix time, s; 0: unknown, as if long ago."""
    cut_off: bool = False
    """True: rather this side reaches no master, so silence proves nothing."""
    unreachable: frozenset[str] = frozenset()
    """Nodes that answer nothing while others do."""
    silent_nodes: frozenset[str] = frozenset()
    """Nodes of whose kubelet the cluster hears nothing."""
    struck_nodes: tuple[str, ...] = ()
    """Nodes that new pods avoid for what several jobs met there, the worst first."""
    master_endpoint: str = ""
    """host:port of the master; empty: not known."""
    queued: Queued | None = None
    """None: the job has no queue, and `spec` is its owner's."""
    grouped: Grouped | None = None
    """None: each worker is scheduled by itself, as the spec asks."""

    @property
    def generation(self) -> int:
        """Generation of the object."""
        return self.version.generation

    @property
    def ended_at(self) -> str | None:
        """Time of Complete or Failed in the status (RFC 3339); None while the job goes on."""
        return self.status.get("completionTime")


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """Plan again at this time, even if nothing happens."""

    at: float
    """Unix time, s."""


Steps = Iterator[Action | Wake]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a job."""

    job: PlannedJob
    pods: Mapping[PodSlot, tuple[ObservedPod, ...]]
    """Existing pods, of each place the oldest first."""
    master: MasterView
    history: History
    """History up to and including this look."""
    gone: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Kubernetes nodes that no new pod may run on, as they do not answer (see `lost`) → end
    of that, Unix time, s."""
    now: float
    """Unix time, s."""

    def stated(self, kind: str) -> Mapping[str, Any]:
        """Return a condition of the last status; empty: it was not stated."""
        conditions = self.job.status.get("conditions", ())
        return next((one for one in conditions if one["type"] == kind), {})

    def entry(self, slot: PodSlot) -> SlotHistory:
        """Return the memory of a place."""
        return self.history.get(slot, UNKNOWN)

    def of(self, *roles: Role) -> Iterator[ObservedPod]:
        """Yield the pods of these roles, in order."""
        return (pod for slot in sorted(self.pods) if slot.role in roles for pod in self.pods[slot])

    def live(self, *roles: Role) -> list[ObservedPod]:
        """Return the living pods of these roles, in order."""
        return [pod for pod in self.of(*roles) if pod.live]

    def lingering(self, *roles: Role) -> list[ObservedPod]:
        """Return the pods of these roles of which only other containers run, in order."""
        return [pod for pod in self.of(*roles) if pod.lingers and not pod.lost]

    @property
    def avoided(self) -> tuple[str, ...]:
        """Return the Kubernetes nodes that the job's master excludes, the newest last.

        Before the master's first message: those of the last status.
        """
        spec, master = self.job.spec, self.master
        if not spec.exclude_failed_nodes or spec.max_excluded_nodes == 0:
            return ()
        named = master.excluded
        if not named and master.status is None:
            named = tuple(self.job.status.get("excludedNodes", ()))
        return named[-spec.max_excluded_nodes :]

    @property
    def off_limits(self) -> tuple[str, ...]:
        """Return all Kubernetes nodes that new pods avoid: the job's own, then other jobs'."""
        return tuple(dict.fromkeys([*self.avoided, *self.job.struck_nodes]))

    def avoids(self, slot: PodSlot) -> tuple[str, ...]:
        """Return all Kubernetes nodes that a new pod of this place must not run on."""
        named = self.off_limits if slot.role is Role.WORKER else self.avoided
        return tuple(dict.fromkeys([*named, *self.gone]))

    def grace_s(self, slot: PodSlot) -> int:
        """Return the seconds between SIGTERM and SIGKILL for a place's pods."""
        return grace_of(template_of(self.job.spec, slot))


@functools.lru_cache(maxsize=4096)
def unix_time(text: str) -> float:
    """Return the Unix time, s, of a time as Kubernetes writes it (RFC 3339).

    Equal times are one object: thousands of pods are made in the same few seconds.
    """
    return datetime.fromisoformat(text).timestamp()


def grace_of(template: Mapping[str, Any]) -> int:
    """Return `terminationGracePeriodSeconds` of a pod template, or Kubernetes' default."""
    given = template.get("spec", {}).get("terminationGracePeriodSeconds")
    return max(SHORTEST_GRACE_SECONDS, given) if isinstance(given, int) else DEFAULT_GRACE_SECONDS


def delete(pod: ObservedPod, reason: DeleteReason, grace_s: int) -> Iterator[DeletePod]:
    """Yield the deletion of a pod, unless one is under way."""
    if not pod.deleting:
        yield DeletePod(slot=pod.slot, name=pod.name, uid=pod.uid, grace_s=grace_s, reason=reason)


def avoided_by(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes that every alternative of a pod's node affinity excludes by name."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
    named = [_named(term) for term in terms]
    return tuple(sorted(set.intersection(*named))) if named else ()


def _named(term: Mapping[str, Any]) -> set[str]:
    return {
        node
        for one in term.get("matchExpressions") or ()
        if (one["key"], one["operator"]) == (HOSTNAME, "NotIn")
        for node in one.get("values") or ()
    }
