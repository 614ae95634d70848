"""Where a worker's memory of checkpoints lies, and that its container is started again beside it.

Belongs here: the volume, its place and size, the rule of the restart, what a template may say of
them. Does not belong here: what the agent keeps there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.build.template import main_container
from holdfast_wire import keys

ARENA_DIR: Final = "/var/run/holdfast/arena"
VOLUME: Final = "holdfast-arena"
_KILLED: Final = 137
"""Exit code of a container that SIGKILL ended: out of memory, or by somebody's hand. An agent that
ends by itself has another, and its pod ends with it."""


def keep_arenas(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Add the volume and the rule to a worker's pod.

    A template that sets HOLDFAST_ARENA_DIR has decided itself: empty, nothing outlives the
    container, and its end is the pod's. A volume of our name, or a mount at our place, is used.
    """
    named = [one for one in container.get("env") or () if one.get("name") == keys.ENV_ARENA_DIR]
    if named and not named[-1].get("value") and not named[-1].get("valueFrom"):
        return
    container["restartPolicy"] = "Never"
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [_KILLED]}}
    container["restartPolicyRules"] = [rule]
    if named:
        return
    container["env"] = [*(container.get("env") or ()), _variable()]
    mounts = container.get("volumeMounts") or ()
    if any(str(one.get("mountPath", "")).rstrip("/") == ARENA_DIR for one in mounts):
        return
    mount = {"name": VOLUME, "mountPath": ARENA_DIR}
    container["volumeMounts"] = [*mounts, mount]
    volumes = pod.get("volumes") or ()
    if all(one.get("name") != VOLUME for one in volumes):
        pod["volumes"] = [*volumes, {"name": VOLUME, "emptyDir": _memory(container)}]


def _variable() -> dict[str, str]:
    return {"name": keys.ENV_ARENA_DIR, "value": ARENA_DIR}


def _memory(container: Mapping[str, Any]) -> dict[str, str]:
    """As large as the container's limit, which counts these bytes anyway; else as the node is.

    Smaller, it would refuse arenas that fit: the agent looks at what is left before each.
    """
    limits = (container.get("resources") or {}).get("limits") or {}
    size = {"sizeLimit": str(limits["memory"])} if limits.get("memory") else {}
    return {"medium": "Memory", **size}


def fault(template: Mapping[str, Any]) -> str:
    """What is wrong with a worker template's own volume of our name; empty: nothing."""
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
