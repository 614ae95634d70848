"""Slices of a job become Workloads, and Workloads that Kueue has changed become slices."""

from __future__ import annotations

from typing import Any

from holdfast_operator.plan.slices import CORE, Placement, Slice
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.workloads import (
    Priority,
    Request,
    named_flavors,
    read,
    read_flavor,
    released,
)

_SPOT = read_flavor({"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot"}]}})


def _request(priority: Priority) -> Request:
    template = {"spec": {"containers": [{"name": "a", "image": "b"}]}}
    return Request(
        owner=Owner(name="gpt", namespace="team", uid="u"),
        queue="gpus",
        priority=priority,
        worker=template,
        master=template,
    )


def _changed(index: int, **conditions: str) -> dict[str, Any]:
    body = _request(Priority()).workload(index, 2)
    assigned = {"name": "workers", "flavors": {"cpu": "spot"}, "count": 2}
    admission = {"clusterQueue": "q", "podSetAssignments": [assigned]}
    body["status"] = {
        "admission": admission if conditions.get("QuotaReserved") == "True" else None,
        "conditions": [
            {"type": name, "status": status, "reason": "R", "message": f"{name} is {status}"}
            for name, status in conditions.items()
        ],
    }
    return body


def test_the_core_asks_for_the_masters_pod_too() -> None:
    """A queue counts each pod of the job, and the job's owner takes the Workload along."""
    body = _request(Priority(7, "WorkloadPriorityClass", "high")).workload(CORE, 2)
    assert body["metadata"]["name"] == "gpt-core"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert [(one["name"], one["count"]) for one in body["spec"]["podSets"]] == [
        ("master", 1),
        ("workers", 2),
    ]
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    assert (body["spec"]["priority"], body["spec"]["priorityClassRef"]) == (7, reference)


def test_a_slice_waits_is_admitted_and_is_evicted() -> None:
    """Its state is what Kueue's conditions say, with Kueue's words."""
    waiting = read(_changed(1, QuotaReserved="False"), {})
    assert waiting == Slice(index=1, name="gpt-1", workers=2, reason="QuotaReserved is False")
    reserved = read(_changed(1, QuotaReserved="True"), {})
    assert (reserved.reserved, reserved.usable) == (True, False)
    admitted = _changed(1, QuotaReserved="True", Admitted="True")
    assert named_flavors(admitted) == {"spot"}
    assert read(admitted, {"spot": _SPOT}).placement == Placement(
        {"pool": "spot"}, ({"key": "spot"},)
    )
    gone = read(_changed(1, QuotaReserved="True", Admitted="True", Evicted="True"), {})
    assert (gone.admitted, gone.usable, gone.reason) == (True, False, "Evicted is True")


def test_a_release_gives_the_quota_back_and_keeps_the_other_conditions() -> None:
    """After it the slice waits again, and Kueue knows that it was evicted before."""
    body = _changed(1, QuotaReserved="True", Admitted="True", Evicted="True")
    body["status"] = released(body, "2026-01-01T00:00:00Z")
    found = {one["type"]: one["status"] for one in body["status"]["conditions"]}
    assert found == {
        "Evicted": "True",
        "QuotaReserved": "False",
        "Admitted": "False",
        "Requeued": "True",
    }
    assert (read(body, {}).reserved, read(body, {}).evicted) == (False, False)
