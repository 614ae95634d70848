"""Kueue's Workloads as slices of a job, and back (`kueue.x-k8s.io/v1beta2`). Pure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast_operator.plan.pods import MASTER, WORKER
from holdfast_operator.plan.slices import CORE, Placement, Slice
from holdfast_operator.pods.memory import limit_of, raise_memory
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.template import main_container
from holdfast_operator.spec.job import JobSpec

API: Final = "kueue.x-k8s.io/v1beta2"
KIND: Final = "Workload"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of an ElasticJob: the LocalQueue that admits it."""
PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""Label of an ElasticJob: its WorkloadPriorityClass."""
LABEL_SLICE: Final = "holdfast.dev/slice"
LABEL_TEMPLATES: Final = "holdfast.dev/templates"
"""Label of a Workload: revision of the templates that it counts."""
MOST_EXTRA_ROLES: Final = 6
"""A Workload has at most 8 kinds of pods."""
_REQUEUED: Final = frozenset({"Preempted", "NodeFailures"})
"""Reasons of evictions after which Kueue lets a Workload wait again at once."""
_STARTED: Final = "PodsReady"
_MENDED: Final = "the job goes on by itself once that is mended"
_UNSEEN: Final = "Kueue has not looked at it yet; if this lasts, see whether its controller runs"


@dataclasses.dataclass(frozen=True, slots=True)
class Priority:
    """Priority of a job among others of its queue."""

    value: int = 0
    kind: str = ""
    """WorkloadPriorityClass or PriorityClass; empty: the cluster's default."""
    name: str = ""

    def fields(self, index: int) -> dict[str, Any]:
        """Return the part of the spec of a slice's Workload.

        Slices beside the core come just below it: a preemption then takes them first, of all jobs
        with this priority, and stops none while another can be shrunk.
        """
        if index != CORE:
            return {"priority": self.value - 1}
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
    spec: JobSpec
    """Spec of the owner: the requests in its templates are what a queue counts."""
    master: Mapping[str, Any]
    """Pod template of the master."""
    revision: str
    """Revision of the templates."""

    def workload(self, index: int, workers: int, core: Placement | None = None) -> dict[str, Any]:
        """Return the Workload of a slice; the core has the other pods, too.

        core: Where the core's workers run: the slice must be admitted to the same flavor.
        """
        template = _counted(self.spec)
        if core is not None:
            template = _placed(template, core)
        sets = [_pod_set(WORKER, workers, template)]
        if index == CORE:
            sets.insert(0, _pod_set(MASTER, 1, self.master))
            roles = self.spec.extra_roles
            sets += [_pod_set(role.name, role.replicas, role.template) for role in roles]
        metadata = self.owner.metadata(name_of(self.owner.name, index))
        metadata["labels"] |= {
            QUEUE: self.queue,
            LABEL_SLICE: str(index),
            LABEL_TEMPLATES: self.revision,
        }
        spec = {"queueName": self.queue, "podSets": sets, **self.priority.fields(index)}
        return {"apiVersion": API, "kind": KIND, "metadata": metadata, "spec": spec}


def name_of(job: str, index: int) -> str:
    """Return the name of a slice's Workload."""
    return f"{job}-core" if index == CORE else f"{job}-{index}"


def path(namespace: str, name: str = "") -> str:
    """Return the path of a namespace's Workloads, or of one."""
    where = f"/apis/{API}/namespaces/{namespace}/workloads"
    return f"{where}/{name}" if name else where


def read(
    body: Mapping[str, Any], flavors: Mapping[str, Placement], queue: str, revision: str
) -> Slice:
    """Return a job's Workload as a slice.

    Args:
        body: The Workload.
        flavors: Additions to pods by ResourceFlavor; one that is missing adds nothing.
        queue: LocalQueue of the job now.
        revision: Revision of its templates now.
    """
    status, labels = body.get("status") or {}, body["metadata"]["labels"]
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    admission = status.get("admission")
    evicted = _holds(conditions, "Evicted") or "deletionTimestamp" in body["metadata"]
    assigned = (admission or {}).get("podSetAssignments") or ()
    return Slice(
        index=int(labels[LABEL_SLICE]),
        name=body["metadata"]["name"],
        workers=int(_worker_set(body["spec"])["count"]),
        reserved=admission is not None,
        admitted=admission is not None and _holds(conditions, "Admitted"),
        evicted=admission is not None and evicted,
        reason=_reason(conditions, evicted=evicted),
        started=_holds(conditions, _STARTED),
        stale=(body["spec"].get("queueName"), labels.get(LABEL_TEMPLATES)) != (queue, revision),
        placements={one["name"]: _placement(one, flavors) for one in assigned},
        roles=_roles(body["spec"]),
        memory=_memory(_worker_set(body["spec"])["template"]),
    )


def named_flavors(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ResourceFlavors that a Workload's pods were admitted to."""
    admission = (body.get("status") or {}).get("admission") or {}
    assigned = admission.get("podSetAssignments") or ()
    return frozenset(name for one in assigned for name in (one.get("flavors") or {}).values())


def read_flavor(body: Mapping[str, Any]) -> Placement:
    """Return what a ResourceFlavor adds to pods."""
    spec = body.get("spec") or {}
    return Placement(dict(spec.get("nodeLabels") or {}), tuple(spec.get("tolerations") or ()))


def released(body: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return a status that gives an evicted Workload's quota back and has it wait again.

    The write needs the version of `body`: a newer one may not be evicted any more.

    now: RFC 3339.
    """
    before = (body.get("status") or {}).get("conditions") or ()
    eviction = next((one for one in before if one["type"] == "Evicted"), {"reason": "Deleted"})
    text = {"message": eviction.get("message", ""), "lastTransitionTime": now}
    again = str(eviction.get("reason") in _REQUEUED)
    changed = {
        "QuotaReserved": {"status": "False", "reason": "Pending", **text},
        "Admitted": {"status": "False", "reason": "NoReservation", **text},
        "Requeued": {"status": again, "reason": eviction["reason"], **text},
    }
    if any(one["type"] == _STARTED for one in before):
        changed[_STARTED] = {"status": "False", "reason": "WaitForStart", **text}
    return {"admission": None, "conditions": _with(before, changed)}


def started(body: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return a status that reports that all pods of a Workload were ready.

    now: RFC 3339.
    """
    before = (body.get("status") or {}).get("conditions") or ()
    text = {"message": "All pods were ready", "lastTransitionTime": now}
    change = {_STARTED: {"status": "True", "reason": "Started", **text}}
    return {"conditions": _with(before, change)}


def _with(
    before: Iterable[Mapping[str, Any]], changed: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    kept = [one for one in before if one["type"] not in changed]
    return [*kept, *({"type": name, **one} for name, one in changed.items())]


def _pod_set(name: str, count: int, template: Mapping[str, Any]) -> dict[str, Any]:
    spec = {"restartPolicy": "Never", **template["spec"]}
    return {"name": name, "count": count, "template": {"spec": spec}}


def counted_memory(spec: JobSpec) -> int:
    """Return the memory limit with which a worker is counted, bytes; 0: it has none."""
    return _memory(_counted(spec))


def _counted(spec: JobSpec) -> Mapping[str, Any]:
    """Return the workers' template with the most memory that a pod may come to have."""
    template = copy.deepcopy(dict(spec.worker_template))
    if spec.memory is not None:
        pod = template["spec"]
        raise_memory(pod["containers"][main_container(pod)], spec.memory.most_bytes)
    return template


def _placed(template: Mapping[str, Any], where: Placement) -> Mapping[str, Any]:
    spec = template["spec"]
    selector = {**(spec.get("nodeSelector") or {}), **where.node_selector}
    return {**template, "spec": {**spec, "nodeSelector": selector}}


def _worker_set(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(one for one in spec["podSets"] if one["name"] == WORKER)


def _roles(spec: Mapping[str, Any]) -> dict[str, int]:
    counts = {one["name"]: int(one["count"]) for one in spec["podSets"]}
    return {name: count for name, count in counts.items() if name not in {MASTER, WORKER}}


def _memory(template: Mapping[str, Any]) -> int:
    pod = template["spec"]
    return limit_of(pod["containers"][main_container(pod)])


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _reason(conditions: Mapping[str, Mapping[str, Any]], *, evicted: bool) -> str:
    if not conditions:
        return _UNSEEN
    named = ("Preempted", "Evicted") if evicted else ("QuotaReserved", "Admitted")
    for kind in named:
        found = conditions.get(kind)
        if found is not None and _holds(conditions, kind) == evicted:
            text = str(found.get("message") or found.get("reason") or "")
            return f"{text}; {_MENDED}" if found.get("reason") == "Inadmissible" else text
    return ""


def _placement(assigned: Mapping[str, Any], flavors: Mapping[str, Placement]) -> Placement:
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for name in sorted(set((assigned.get("flavors") or {}).values())):
        found = flavors.get(name, Placement())
        selector |= found.node_selector
        tolerations += [one for one in found.tolerations if one not in tolerations]
    return Placement(selector, tuple(tolerations))
