"""Gangs: a job's workers are scheduled together or not at all. Pure.

Three schedulers have a PodGroup, each under its own API. A backend says what a job's group looks
like there, and what its pods have to say. Which one a cluster has is found by discovery (`gangs`);
`minReplicas` is the size that has to fit, also while the job's size changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from holdfast_operator.pods.names import Owner

AUTO: Final = "Auto"
NONE: Final = "None"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """What has to be scheduled together."""

    owner: Owner
    least: int
    """Workers that have to fit at once."""
    timeout_s: int
    """Longest time for which a part of them keeps what it has reserved, s."""
    priority_class: str = ""
    """Empty: the cluster's default."""
    within: str = ""
    """Node label of which all have to be in one value; empty: none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodAdditions:
    """What a pod says to be in its group."""

    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def apply(self, pod: dict[str, Any]) -> None:
        """Add them to a pod; a template's own scheduler stays."""
        for name, value in self.spec.items():
            pod["spec"].setdefault(name, value)
        for name, given in (("labels", self.labels), ("annotations", self.annotations)):
            if given:
                pod["metadata"].setdefault(name, {}).update(given)

    def are_in(self, pod: Mapping[str, Any]) -> bool:
        """Return True if a pod has what names its group."""
        metadata, group = pod["metadata"], self.spec.get("schedulingGroup")
        return (
            (group is None or pod["spec"].get("schedulingGroup") == group)
            and self.labels.items() <= (metadata.get("labels") or {}).items()
            and self.annotations.items() <= (metadata.get("annotations") or {}).items()
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GangBackend:
    """A scheduler's way to schedule pods together."""

    name: str
    """Its value of `spec.scheduling.gang.backend`."""
    api: str
    """Group and version of its PodGroup."""
    size: Callable[[int], dict[str, Any]]
    """Returns the part of a PodGroup's spec that changes with the size that has to fit."""
    rest: Callable[[Gang], dict[str, Any]]
    """Returns the other part, which stays."""
    additions: Callable[[str], PodAdditions]
    """Returns the pods' part, for the group of a name."""

    def path(self, owner: Owner) -> str:
        """Path of the PodGroups of a job's namespace in the API."""
        return f"/apis/{self.api}/namespaces/{owner.namespace}/podgroups"

    def body(self, gang: Gang) -> dict[str, Any]:
        """Return the PodGroup of a job."""
        return {
            "apiVersion": self.api,
            "kind": "PodGroup",
            "metadata": gang.owner.metadata(gang.owner.gang),
            "spec": self.size(gang.least) | self.rest(gang),
        }


def _min_count(least: int) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": least}}}


def _min_member(least: int) -> dict[str, Any]:
    return {"minMember": least}


def _priority(gang: Gang) -> dict[str, Any]:
    return {"priorityClassName": gang.priority_class} if gang.priority_class else {}


def _upstream(gang: Gang) -> dict[str, Any]:
    # A preemption takes single pods, never the whole gang: the job trains on with the rest.
    spec: dict[str, Any] = {"disruptionMode": {"single": {}}, **_priority(gang)}
    # Dropped where the gate TopologyAwareWorkloadScheduling is off: the pods' affinity is left.
    within = {"schedulingConstraints": {"topology": [{"key": gang.within}]}}
    return spec | within if gang.within else spec


UPSTREAM: Final = GangBackend(
    name="Upstream",
    api="scheduling.k8s.io/v1beta1",
    size=_min_count,
    rest=_upstream,
    additions=lambda group: PodAdditions(spec={"schedulingGroup": {"podGroupName": group}}),
)
COSCHEDULING: Final = GangBackend(
    name="Coscheduling",
    api="scheduling.x-k8s.io/v1alpha1",
    size=_min_member,
    rest=lambda gang: {"scheduleTimeoutSeconds": gang.timeout_s},
    additions=lambda group: PodAdditions(labels={"scheduling.x-k8s.io/pod-group": group}),
)
VOLCANO: Final = GangBackend(
    name="Volcano",
    api="scheduling.volcano.sh/v1beta1",
    size=_min_member,
    rest=_priority,
    additions=lambda group: PodAdditions(
        spec={"schedulerName": "volcano"},
        annotations={"scheduling.k8s.io/group-name": group},
    ),
)
BACKENDS: Final = (UPSTREAM, COSCHEDULING, VOLCANO)
"""In the order in which `Auto` takes them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """How a job's next workers are scheduled."""

    backend: GangBackend | None = None
    """None: each by itself."""
    fault: str = ""
    """What is not as asked for, with its remedy; empty: nothing."""
    blocked: bool = False
    """True: no pod is made until the fault is mended."""

    def additions(self, group: str) -> PodAdditions:
        """Return the pods' part, for the group of a name."""
        return self.backend.additions(group) if self.backend is not None else PodAdditions()


def backend_of(pod: Mapping[str, Any], group: str) -> str:
    """Return the name of the backend to whose group of this name a pod belongs; empty: none."""
    found = (one.name for one in BACKENDS if one.additions(group).are_in(pod))
    return next(found, "")


def in_force(wanted: str, living: Collection[str], apis: Collection[str]) -> Grouping:
    """Return the grouping of a job's next workers.

    Living workers decide: a gang of which only some are members would never be whole.

    wanted: `spec.scheduling.gang.backend`.
    living: Backend of each living worker; empty text: it is in no group.
    apis: Group versions with a PodGroup that the cluster serves.
    """
    joined = next((one for one in BACKENDS if one.name in living), None)
    if joined is not None:
        return Grouping(joined)
    if living:
        return Grouping(fault="" if wanted == NONE else _LATER)
    return choose(wanted, apis)


def choose(wanted: str, apis: Collection[str]) -> Grouping:
    """Return the grouping of a job that begins; see `in_force`."""
    there = [one for one in BACKENDS if one.api in apis]
    if wanted == NONE:
        return Grouping()
    if wanted == AUTO:
        return Grouping(there[0]) if there else Grouping(fault=_NOWHERE)
    backend = next(one for one in BACKENDS if one.name == wanted)
    if backend in there:
        return Grouping(backend)
    found = ", ".join(one.name for one in there) or "none"
    fault = (
        f"spec.scheduling.gang.backend: {wanted} needs PodGroups of {backend.api}, which this "
        f"cluster does not serve (it has: {found}); install it, or write Auto or None"
    )
    return Grouping(fault=fault, blocked=True)


_LATER: Final = (
    "the workers began without a group; suspend the job and resume it to have them scheduled "
    "together"
)
_NOWHERE: Final = (
    "no PodGroups are served ("
    + ", ".join(one.api for one in BACKENDS)
    + "): the workers are scheduled one by one"
)
