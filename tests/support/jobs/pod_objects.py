"""A pod of a job as the API server has it, and its record."""

from __future__ import annotations

from typing import Any

from holdfast_operator.pods.record import PodRecord, read_pod


def pod_object(
    role: str = "worker",
    index: int = 1,
    incarnation: int = 0,
    *,
    job: str = "t",
    owner: str = "u-1",
    phase: str = "Running",
    **metadata: Any,
) -> dict[str, Any]:
    """A pod with one container; `metadata` goes over its own."""
    labels = {
        "holdfast.dev/job": job,
        "holdfast.dev/role": role,
        "holdfast.dev/index": str(index),
        "holdfast.dev/incarnation": str(incarnation),
    }
    own = {
        "name": f"{job}-{role}-{index}-{incarnation}",
        "namespace": "team",
        "uid": "p-1",
        "labels": labels,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    spec = {"containers": [{"name": "worker"}]}
    return {"metadata": {**own, **metadata}, "spec": spec, "status": {"phase": phase}}


def recorded(body: dict[str, Any]) -> PodRecord:
    """The record of a pod that is a job's."""
    record = read_pod(body)
    assert record is not None
    return record
