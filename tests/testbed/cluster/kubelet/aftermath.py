"""Pods that ran here before the kubelet or its node started anew: their processes are gone. Pure.

As after a reboot under containerd: what ran has ended with 255, and nothing of a pod whose
`restartPolicy` is Never starts again, whatever rules its containers have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cluster.kubelet.container import Container, restarts
from cluster.kubelet.status import ContainerState, timestamp, unix

_CODE: Final = 255
_REASON: Final = "Unknown"


def settle(
    manifest: Mapping[str, Any],
    inits: Sequence[Container],
    containers: Sequence[Container],
    now: float,
) -> bool:
    """Take over what an earlier kubelet reported of the pod's containers.

    Args:
        manifest: The pod, with the status that the API server has.
        inits: Its init containers, which have done nothing under this kubelet.
        containers: Its containers, likewise. The states of both are changed.
        now: Unix time.

    Returns:
        Whether nothing of it starts any more.
    """
    before = {
        one["name"]: one
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in manifest.get("status", {}).get(kind) or ()
    }
    if not any(one.get("containerID") for one in before.values()):
        return False
    policy = manifest["spec"].get("restartPolicy", "Always")
    over = policy == "Never" or "deletionTimestamp" in manifest["metadata"]
    for one in (*inits, *containers):
        ended = _ended(before.get(one.state.name, {}), now)
        done = one in containers and not restarts(one.manifest, policy, ended["exitCode"])
        one.state.restarts = before.get(one.state.name, {}).get("restartCount", 0)
        if over or done:
            _leave(one.state, ended)
        else:
            one.state.restarts += 1
            one.state.last = ended
    return over


def _ended(before: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    """Return a container's end, as it was reported or with the rest of the node."""
    state, last = before.get("state") or {}, before.get("lastState") or {}
    reported = state.get("terminated") or ("waiting" in state and last.get("terminated"))
    return reported or {
        "exitCode": _CODE,
        "reason": _REASON,
        "message": "",
        "startedAt": (state.get("running") or {}).get("startedAt") or timestamp(now),
        "finishedAt": timestamp(now),
        "containerID": before.get("containerID", ""),
    }


def _leave(state: ContainerState, ended: Mapping[str, Any]) -> None:
    """Have a container count as one that has ended for good."""
    state.started, state.ended = unix(ended["startedAt"]), unix(ended["finishedAt"])
    state.exit_code, state.reason = ended["exitCode"], ended.get("reason", "")
    state.message, state.identity = ended.get("message", ""), ended.get("containerID", "")
