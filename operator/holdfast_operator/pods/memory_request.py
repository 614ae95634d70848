"""A container with a higher memory limit than its template's, and the request that goes with it.

Pure. Does not belong here: the limit itself (`plan.memory_raise`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast_operator.spec.quantities import in_mebibytes, to_bytes


def limit_of(container: Mapping[str, Any]) -> int:
    """Return a container's memory limit, bytes; 0: it has none."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return to_bytes(limits.get("memory")) or 0


def raise_memory(container: dict[str, Any], limit: int) -> None:
    """Give a container this limit, bytes, and a request in the same relation to it as before.

    A template with as much or more keeps what it has, and so does one without a limit. Equal
    request and limit stay equal: the pod keeps its quality of service.
    """
    before = limit_of(container)
    if not 0 < before < limit:
        return
    resources = container["resources"]
    wanted = in_mebibytes(limit)
    resources["limits"]["memory"] = wanted
    requests = resources.get("requests") or {}
    request = to_bytes(requests.get("memory"))
    if request is not None:  # without one it is the limit
        more = min(limit, -(-request * limit // before))
        requests["memory"] = wanted if request >= before else in_mebibytes(more)
