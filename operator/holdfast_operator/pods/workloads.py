"""Kueue's Workloads as slices of a job, and back (`kueue.x-k8s.io/v1beta2`). Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.plan.slices import CORE, Placement, Slice
from holdfast_operator.pods.names import Owner

API: Final = "kueue.x-k8s.io/v1beta2"
KIND: Final = "Workload"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of an ElasticJob: the LocalQueue that admits it."""
PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""Label of an ElasticJob: its WorkloadPriorityClass."""
LABEL_SLICE: Final = "holdfast.dev/slice"
WORKERS: Final = "workers"
MASTER: Final = "master"
_RELEASED: Final = "Released"


@dataclasses.dataclass(frozen=True, slots=True)
class Priority:
    """Priority of a job among others of its queue."""

    value: int = 0
    kind: str = ""
    """WorkloadPriorityClass or PriorityClass; empty: the cluster's default."""
    name: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the part of a Workload's spec."""
        if not self.name:
            return {"priority": self.value}
        own = self.kind == "WorkloadPriorityClass"
        group = "kueue.x-k8s.io" if own else "scheduling.k8s.io"
        reference = {"group": group, "kind": self.kind, "name": self.name}
        return {"priority": self.value, "priorityClassRef": reference}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What all Workloads of a job have in common."""

    owner: Owner
    queue: str
    priority: Priority
    worker: Mapping[str, Any]
    """Pod template of a worker: its requests are what a queue counts."""
    master: Mapping[str, Any]

    def workload(self, index: int, workers: int) -> dict[str, Any]:
        """Return the Workload of a slice; the core has the master's pod, too."""
        sets = [_pod_set(WORKERS, workers, self.worker)]
        if index == CORE:
            sets.insert(0, _pod_set(MASTER, 1, self.master))
        metadata = self.owner.metadata(name_of(self.owner.name, index))
        metadata["labels"] |= {QUEUE: self.queue, LABEL_SLICE: str(index)}
        spec = {"queueName": self.queue, "podSets": sets, **self.priority.fields()}
        return {"apiVersion": API, "kind": KIND, "metadata": metadata, "spec": spec}


def name_of(job: str, index: int) -> str:
    """Return the name of a slice's Workload."""
    return f"{job}-core" if index == CORE else f"{job}-{index}"


def path(namespace: str, name: str = "") -> str:
    """Return the path of a namespace's Workloads, or of one."""
    where = f"/apis/{API}/namespaces/{namespace}/workloads"
    return f"{where}/{name}" if name else where


def read(body: Mapping[str, Any], flavors: Mapping[str, Placement]) -> Slice:
    """Return a job's Workload as a slice.

    flavors: Additions to pods by ResourceFlavor; one that is missing adds nothing.
    """
    status = body.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    admission = status.get("admission")
    evicted = _holds(conditions, "Evicted")
    return Slice(
        index=int(body["metadata"]["labels"][LABEL_SLICE]),
        name=body["metadata"]["name"],
        workers=_workers(body["spec"]),
        reserved=admission is not None,
        admitted=admission is not None and _holds(conditions, "Admitted"),
        evicted=admission is not None and evicted,
        reason=_reason(conditions, evicted=evicted),
        placement=_placement(admission or {}, flavors),
    )


def named_flavors(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ResourceFlavors that a Workload's workers were admitted to."""
    admission = (body.get("status") or {}).get("admission") or {}
    return frozenset(
        flavor
        for assigned in admission.get("podSetAssignments") or ()
        if assigned["name"] == WORKERS
        for flavor in (assigned.get("flavors") or {}).values()
    )


def read_flavor(body: Mapping[str, Any]) -> Placement:
    """Return what a ResourceFlavor adds to pods."""
    spec = body.get("spec") or {}
    return Placement(dict(spec.get("nodeLabels") or {}), tuple(spec.get("tolerations") or ()))


def released(body: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return a status that gives an evicted Workload's quota back and has it wait again.

    The write needs the version of `body`: a newer one may not be evicted any more.

    now: RFC 3339.
    """
    text = "The pods of this slice are gone"
    gone = {"status": "False", "reason": _RELEASED, "message": text, "lastTransitionTime": now}
    back = {**gone, "status": "True", "reason": "Evicted"}
    changed = {"QuotaReserved": gone, "Admitted": gone, "Requeued": back}
    kept = [
        one
        for one in (body.get("status") or {}).get("conditions") or ()
        if one["type"] not in changed
    ]
    conditions = [*kept, *({"type": name, **one} for name, one in changed.items())]
    return {"admission": None, "conditions": conditions}


def _pod_set(name: str, count: int, template: Mapping[str, Any]) -> dict[str, Any]:
    spec = {"restartPolicy": "Never", **template["spec"]}
    return {"name": name, "count": count, "template": {"spec": spec}}


def _workers(spec: Mapping[str, Any]) -> int:
    return next(int(one["count"]) for one in spec["podSets"] if one["name"] == WORKERS)


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _reason(conditions: Mapping[str, Mapping[str, Any]], *, evicted: bool) -> str:
    named = ("Preempted", "Evicted") if evicted else ("QuotaReserved", "Admitted")
    for kind in named:
        found = conditions.get(kind)
        if found is not None and _holds(conditions, kind) == evicted:
            return str(found.get("message") or found.get("reason") or "")
    return ""


def _placement(admission: Mapping[str, Any], flavors: Mapping[str, Placement]) -> Placement:
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for name in sorted(named_flavors({"status": {"admission": admission}})):
        found = flavors.get(name, Placement())
        selector |= found.node_selector
        tolerations += [one for one in found.tolerations if one not in tolerations]
    return Placement(selector, tuple(tolerations))
