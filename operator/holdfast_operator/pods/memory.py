"""Memory of a worker's container: its limit and request, and the volume of its checkpoints. Pure.

Does not belong here: the choice of a limit (`plan.memory_raise`), the content of the volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.pods.template import main_container
from holdfast_operator.spec.quantities import in_mebibytes, to_bytes
from holdfast_wire import keys

ARENA_DIR: Final = "/var/run/holdfast/arena"
VOLUME: Final = "holdfast-arena"
_KILLED: Final = 137
"""Exit code of a container that SIGKILL ended: out of memory, or by a person. An agent that ends by
itself has another code, and its pod ends with it."""


def keep_arenas(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Add the volume and the rule to a worker's pod.

    A template that sets HOLDFAST_ARENA_DIR decides itself: if it is empty, nothing outlives the
    container, and its end is the pod's. An existing volume or mount of our name is used.
    """
    named = [one for one in container.get("env") or () if one.get("name") == keys.ENV_ARENA_DIR]
    if named and not named[-1].get("value") and not named[-1].get("valueFrom"):
        return
    container["restartPolicy"] = "Never"
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [_KILLED]}}
    container["restartPolicyRules"] = [rule]
    if named:
        return
    variable = {"name": keys.ENV_ARENA_DIR, "value": ARENA_DIR}
    container["env"] = [*(container.get("env") or ()), variable]
    mounts = container.get("volumeMounts") or ()
    if any(str(one.get("mountPath", "")).rstrip("/") == ARENA_DIR for one in mounts):
        return
    mount = {"name": VOLUME, "mountPath": ARENA_DIR}
    container["volumeMounts"] = [*mounts, mount]
    volumes = pod.get("volumes") or ()
    if all(one.get("name") != VOLUME for one in volumes):
        pod["volumes"] = [*volumes, {"name": VOLUME, "emptyDir": _memory(container)}]


def _memory(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the volume's size: the container's limit, which counts these bytes; else the node's.

    A smaller volume would refuse arenas that fit: the agent checks the free memory for each.
    """
    limits = (container.get("resources") or {}).get("limits") or {}
    size = {"sizeLimit": str(limits["memory"])} if limits.get("memory") else {}
    return {"medium": "Memory", **size}


def fault(template: Mapping[str, Any]) -> str:
    """Describe the fault of a worker template's own volume of our name; empty: none."""
    spec = template["spec"]
    main = spec["containers"][main_container(spec)]
    for at, one in enumerate(spec.get("volumes") or ()):
        if one.get("name") != VOLUME:
            continue
        medium = (one.get("emptyDir") or {}).get("medium")
        if medium != "Memory":
            return (
                f"spec.volumes[{at}]: {VOLUME} is the name of the volume in which "
                f"{main.get('name')} keeps checkpoints in memory: make it an emptyDir with "
                "medium: Memory, or give it another name"
            )
    return ""


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
