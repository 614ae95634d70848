"""Gangs: a job's workers are scheduled together or not at all. Pure.

Three schedulers have a PodGroup, each under its own API. A backend says what a job's group looks
like there, and what its pods have to say. Which one a cluster has is found by discovery
(`kube.client`); `minReplicas` is the size that has to fit, also while the job's size changes.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GangBackend:
    """A scheduler's way to schedule pods together."""

    name: str
    """Its value of `spec.scheduling.gang`."""
    api: str
    """Group and version of its PodGroup."""
    group: Callable[[Gang], dict[str, Any]]
    """Returns the spec of a PodGroup."""
    additions: Callable[[Gang], PodAdditions]
    """Returns the pods' part."""

    def path(self, owner: Owner) -> str:
        """Path of a job's PodGroup in the API."""
        return f"/apis/{self.api}/namespaces/{owner.namespace}/podgroups/{owner.gang}"

    def body(self, gang: Gang) -> dict[str, Any]:
        """Return the PodGroup of a job."""
        return {
            "apiVersion": self.api,
            "kind": "PodGroup",
            "metadata": gang.owner.metadata(gang.owner.gang),
            "spec": self.group(gang),
        }


def _upstream(gang: Gang) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulingPolicy": {"gang": {"minCount": gang.least}},
        # A preemption takes single pods, never the whole gang: the job trains on with the rest.
        "disruptionMode": {"single": {}},
    }
    return spec | ({"priorityClassName": gang.priority_class} if gang.priority_class else {})


def _coscheduling(gang: Gang) -> dict[str, Any]:
    return {"minMember": gang.least, "scheduleTimeoutSeconds": gang.timeout_s}


def _volcano(gang: Gang) -> dict[str, Any]:
    spec: dict[str, Any] = {"minMember": gang.least}
    return spec | ({"priorityClassName": gang.priority_class} if gang.priority_class else {})


UPSTREAM: Final = GangBackend(
    name="Upstream",
    api="scheduling.k8s.io/v1beta1",
    group=_upstream,
    additions=lambda gang: PodAdditions(
        spec={"schedulingGroup": {"podGroupName": gang.owner.gang}}
    ),
)
COSCHEDULING: Final = GangBackend(
    name="Coscheduling",
    api="scheduling.x-k8s.io/v1alpha1",
    group=_coscheduling,
    additions=lambda gang: PodAdditions(labels={"scheduling.x-k8s.io/pod-group": gang.owner.gang}),
)
VOLCANO: Final = GangBackend(
    name="Volcano",
    api="scheduling.volcano.sh/v1beta1",
    group=_volcano,
    additions=lambda gang: PodAdditions(
        spec={"schedulerName": "volcano"},
        annotations={"scheduling.k8s.io/group-name": gang.owner.gang},
    ),
)
BACKENDS: Final = (UPSTREAM, COSCHEDULING, VOLCANO)
"""In the order in which `Auto` takes them."""


def choose(wanted: str, apis: Collection[str]) -> GangBackend | None:
    """Return the backend of a job; None: it wants none, or `Auto` finds none.

    wanted: `spec.scheduling.gang`.
    apis: Group versions with a PodGroup that the cluster serves.

    Raises:
        LookupError: The one that is asked for by name is not there; the text says what is missing.
    """
    if wanted == NONE:
        return None
    there = [one for one in BACKENDS if one.api in apis]
    if wanted == AUTO:
        return there[0] if there else None
    for one in there:
        if one.name == wanted:
            return one
    api = next(one.api for one in BACKENDS if one.name == wanted)
    found = ", ".join(one.name for one in there) or "none"
    raise LookupError(
        f"spec.scheduling.gang: {wanted} needs PodGroups of {api}, which this cluster does not "
        f"serve (it has: {found}); install it, or write Auto or None"
    )
