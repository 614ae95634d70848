"""Names the container of a pod that has not started, and its reason. Pure.

Belongs here: the order in which a kubelet starts containers. Does not belong here: errors that a
kubelet reports (`record`), the end of containers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast_operator.pods.template import our_container


def not_started(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Say what keeps a pod's main container from its start; empty: it started, or unknown.

    Args:
        spec: Spec of the pod.
        status: Status of the pod, as its node or the scheduler has written it.
    """
    stated = {one["name"]: one for one in status.get("containerStatuses") or ()}
    name = spec["containers"][our_container(spec)]["name"]
    main = (stated.get(name) or {}).get("state") or {}
    if "running" in main or "terminated" in main:
        return ""
    if not spec.get("nodeName"):
        return "it has no node yet"
    ahead = next(_ahead(spec, status), None)
    return ahead if ahead is not None else f"container {name} {_state(main)}"


def _ahead(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """Yield init containers that are not done, or restartable ones not started, in order."""
    stated = {one["name"]: one for one in status.get("initContainerStatuses") or ()}
    for one in spec.get("initContainers") or ():
        said = stated.get(one["name"]) or {}
        state = said.get("state") or {}
        words = f"init container {one['name']} {_state(state)}"
        if one.get("restartPolicy") == "Always":
            if not said.get("started"):
                probed = "running" in state
                yield f"{words}, and its startup probe has not succeeded" if probed else words
        elif (state.get("terminated") or {}).get("exitCode") != 0:
            yield words


def _state(state: Mapping[str, Any]) -> str:
    if "running" in state:
        return "runs"
    if "terminated" in state:
        return f"ended with exit code {state['terminated'].get('exitCode')}"
    waiting = state.get("waiting") or {}
    said = ": ".join(waiting[key] for key in ("reason", "message") if waiting.get(key))
    return f"waits: {said}" if said else "waits"
