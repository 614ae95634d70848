"""Slices of a job become Workloads, and Workloads that Kueue has changed become slices."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.plan.slices import CORE, Placement, Slice
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.workloads import (
    Priority,
    Request,
    counted_memory,
    named_flavors,
    read,
    read_flavor,
    released,
    started,
)
from jobs.job_files import TEMPLATE, job
from jobs.job_files import read as read_job

_SPOT = read_flavor({"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot"}]}})


def _request(priority: Priority = Priority(), **spec: Any) -> Request:  # noqa: B008 - frozen
    template = {"spec": {"containers": [{"name": "a", "image": "b"}]}}
    return Request(
        owner=Owner(name="gpt", namespace="team", uid="u"),
        queue="gpus",
        priority=priority,
        spec=read_job(job(**spec)).spec,
        master=template,
        revision="r1",
    )


def _read(body: dict[str, Any], queue: str = "gpus", revision: str = "r1") -> Slice:
    return read(body, {"spot": _SPOT}, queue, revision)


def _changed(index: int, **conditions: str) -> dict[str, Any]:
    body = _request().workload(index, 2)
    assigned = {"name": "worker", "flavors": {"cpu": "spot"}, "count": 2}
    admission = {"clusterQueue": "q", "podSetAssignments": [assigned]}
    body["status"] = {
        "admission": admission if conditions.get("QuotaReserved") == "True" else None,
        "conditions": [
            {"type": name, "status": status, "reason": "R", "message": f"{name} is {status}"}
            for name, status in conditions.items()
        ],
    }
    return body


def _sets(body: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: one["count"] for one in body["spec"]["podSets"]}


def test_the_core_asks_for_all_other_pods_too() -> None:
    """A queue counts each pod of the job, and the job's owner takes the Workload along."""
    role = {"name": "eval", "replicas": 3, "template": TEMPLATE}
    request = _request(Priority(7, "WorkloadPriorityClass", "high"), extraRoles=[role])
    body = request.workload(CORE, 2)
    assert body["metadata"]["name"] == "gpt-core"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert _sets(body) == {"master": 1, "worker": 2, "eval": 3}
    assert _sets(request.workload(1, 2)) == {"worker": 2}
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    assert (body["spec"]["priority"], body["spec"]["priorityClassRef"]) == (7, reference)


def test_a_slice_asks_for_the_flavor_of_the_core() -> None:
    """Its template selects the nodes that the core's workers run on."""
    spec = _request().workload(1, 2, _SPOT)["spec"]["podSets"][0]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "spot"}


def test_a_worker_counts_with_the_most_memory_that_it_may_come_to_have() -> None:
    """A raised limit must not run beyond what was reserved."""
    container: dict[str, Any] = {"name": "worker", "image": "x", "command": ["true"]}
    container["resources"] = {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    request = _request(
        worker__template={"spec": {"containers": [container]}},
        failurePolicy={"memory": {"raisePercent": 50, "maxMemory": "4Gi"}},
    )
    spec = request.workload(1, 2)["spec"]["podSets"][0]["template"]["spec"]
    assert spec["containers"][0]["resources"]["requests"] == {"memory": "4096Mi"}
    assert _read(request.workload(1, 2)).memory == counted_memory(request.spec) == 4 * 2**30


def test_a_core_says_how_many_pods_of_each_role_it_counts() -> None:
    """Master and workers are no extra roles."""
    role = {"name": "eval", "replicas": 3, "template": TEMPLATE}
    core = _read(_request(extraRoles=[role]).workload(CORE, 2))
    assert (core.roles, core.memory) == ({"eval": 3}, 0)


def test_a_slice_waits_is_admitted_and_is_evicted() -> None:
    """Its state is what Kueue's conditions say, with Kueue's words."""
    waiting = _read(_changed(1, QuotaReserved="False"))
    assert waiting == Slice(index=1, name="gpt-1", workers=2, reason="QuotaReserved is False")
    reserved = _read(_changed(1, QuotaReserved="True"))
    assert (reserved.reserved, reserved.usable) == (True, False)
    admitted = _changed(1, QuotaReserved="True", Admitted="True")
    assert named_flavors(admitted) == {"spot"}
    placement = Placement({"pool": "spot"}, ({"key": "spot"},))
    assert _read(admitted).placements == {"worker": placement}
    gone = _read(_changed(1, QuotaReserved="True", Admitted="True", Evicted="True"))
    assert (gone.admitted, gone.usable, gone.reason) == (True, False, "Evicted is True")


def test_a_slice_of_another_queue_or_of_older_templates_is_stale() -> None:
    """What it reserves is not what the job's pods would use."""
    body = _changed(1, QuotaReserved="True")
    stale = [_read(body), _read(body, queue="other"), _read(body, revision="r2")]
    assert [one.stale for one in stale] == [False, True, True]


def test_a_queue_that_cannot_admit_is_named_with_what_follows() -> None:
    """Kueue's own words name the cause; a silent Kueue is named, too."""
    body = _changed(1, QuotaReserved="False")
    body["status"]["conditions"][0] |= {
        "reason": "Inadmissible",
        "message": "LocalQueue is stopped",
    }
    expected = "LocalQueue is stopped; the job goes on by itself once that is mended"
    assert _read(body).reason == expected
    assert "see whether its controller runs" in _read(_changed(1)).reason


def test_a_release_gives_the_quota_back_and_keeps_the_other_conditions() -> None:
    """After it the slice waits again, and Kueue knows that it was evicted before."""
    body = _changed(1, QuotaReserved="True", Admitted="True", Evicted="True")
    body["status"] = released(body, "2026-01-01T00:00:00Z")
    found = {one["type"]: one["status"] for one in body["status"]["conditions"]}
    assert found == {
        "Evicted": "True",
        "QuotaReserved": "False",
        "Admitted": "False",
        "Requeued": "False",
    }
    assert (_read(body).reserved, _read(body).evicted) == (False, False)


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [("Preempted", "True"), ("Deactivated", "False"), ("ClusterQueueStopped", "False")],
)
def test_a_release_is_requeued_as_kueue_does_it(reason: str, requeued: str) -> None:
    """A Workload that a person or a stopped queue holds back waits for them."""
    body = _changed(1, QuotaReserved="True", Admitted="True", Evicted="True")
    body["status"]["conditions"][2]["reason"] = reason
    found = released(body, "2026-01-01T00:00:00Z")["conditions"]
    (condition,) = (one for one in found if one["type"] == "Requeued")
    assert (condition["status"], condition["reason"]) == (requeued, reason)


def test_a_start_is_reported_and_a_release_takes_that_back() -> None:
    """Kueue counts the time until the next start from the next admission."""
    body = _changed(1, QuotaReserved="True", Admitted="True", Evicted="True")
    body["status"] |= started(body, "2026-01-01T00:00:00Z")
    assert _read(body).started
    body["status"] = released(body, "2026-01-01T00:00:00Z")
    assert not _read(body).started
