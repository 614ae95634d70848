"""The status of a pod, as a kubelet reports it, from what its containers do. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def timestamp(unix: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(stamp: str) -> float:
    """The time that Kubernetes wrote so."""
    return datetime.fromisoformat(stamp).timestamp()


@dataclasses.dataclass(slots=True, kw_only=True)
class ContainerState:
    """One container, as far as it is."""

    name: str
    image: str
    waiting: str = "ContainerCreating"
    """Why it does not run; where it neither ran nor ended."""
    waiting_message: str = ""
    identity: str = ""
    started: float | None = None
    """Unix time of its newest start; None before the first."""
    ended: float | None = None
    """Unix time; None while it runs."""
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    """What it wrote into its termination log."""
    restarts: int = 0
    last: Mapping[str, Any] | None = None
    """How the start before ended."""
    restarting: bool = False
    """It has ended and will be started again."""
    ready: bool = False
    is_started: bool = True
    """Its startup probe has succeeded, where it has one."""
    sidecar: bool = False
    """It is an init container that runs beside the others (`restartPolicy: Always`)."""

    @property
    def running(self) -> bool:
        """Return whether the container's process lives."""
        return self.started is not None and self.ended is None

    @property
    def finished(self) -> bool:
        """Return whether the container has ended for good."""
        return self.ended is not None and not self.restarting

    @property
    def lets_others_start(self) -> bool:
        """Return whether an init container holds up none behind it any more."""
        if self.sidecar:
            return self.started is not None and self.is_started
        return self.finished and self.exit_code == 0

    def terminated(self) -> dict[str, Any]:
        """Return the container's end as a pod's status shows it."""
        assert self.started is not None
        assert self.ended is not None
        return {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "message": self.message,
            "startedAt": timestamp(self.started),
            "finishedAt": timestamp(self.ended),
            "containerID": self.identity,
        }

    def report(self) -> dict[str, Any]:
        """Its part of `containerStatuses`."""
        state: dict[str, Any]
        if self.running:
            assert self.started is not None
            state = {"running": {"startedAt": timestamp(self.started)}}
        elif self.finished:
            state = {"terminated": self.terminated()}
        else:
            waiting = "CrashLoopBackOff" if self.restarting else self.waiting
            state = {"waiting": {"reason": waiting, "message": self.waiting_message}}
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "containerID": self.identity,
            "ready": self.ready and self.running,
            "started": self.running and self.is_started,
            "restartCount": self.restarts,
            "state": state,
            "lastState": {} if self.last is None else {"terminated": dict(self.last)},
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodLook:
    """Everything that a status is made from."""

    conditions: Sequence[Mapping[str, Any]]
    """Those of the status as the API server has it: their times, and those of others."""
    host: str
    address: str
    since: float
    """Unix time at which the kubelet took the pod."""
    inits: Sequence[ContainerState]
    containers: Sequence[ContainerState]
    now: float
    failure: tuple[str, str] | None = None
    """Reason and message of a pod that the kubelet itself ended (evicted)."""
    disrupted: bool = False
    """Its node took it down for its own sake, not for what the pod did."""


def report(look: PodLook) -> dict[str, Any]:
    """The whole status."""
    phase = _phase(look)
    initialized = phase == "Running" or all(one.lets_others_start for one in look.inits)
    beside = [one for one in look.inits if one.sidecar]
    serving = all(one.ready and one.running for one in (*beside, *look.containers))
    ready = phase == "Running" and serving
    stated = {
        "PodReadyToStartContainers": bool(look.address),
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": True,
    }
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": timestamp(look.since),
        "hostIP": look.host,
        "hostIPs": [{"ip": look.host}],
        "initContainerStatuses": [one.report() for one in look.inits],
        "containerStatuses": [one.report() for one in look.containers],
        "conditions": _conditions(look, stated, phase),
    }
    if look.failure is not None:
        status["reason"], status["message"] = look.failure
    if look.address:
        status |= {"podIP": look.address, "podIPs": [{"ip": look.address}]}
    return status


def _phase(look: PodLook) -> str:
    if look.failure is not None:
        return "Failed"
    steps = [one for one in look.inits if not one.sidecar]
    beside = [one for one in look.inits if one.sidecar]
    # What runs beside the others decides nothing by its end, but is waited for.
    quiet = all(one.finished or one.started is None for one in beside)
    if any(one.finished and one.exit_code for one in steps):
        return "Failed" if quiet else "Pending"
    if all(one.finished for one in look.containers) and quiet:
        return "Failed" if any(one.exit_code for one in look.containers) else "Succeeded"
    if all(one.started is None for one in look.containers):
        return "Pending"
    return "Running"


def _conditions(look: PodLook, stated: Mapping[str, bool], phase: str) -> list[dict[str, Any]]:
    before = {one["type"]: one for one in look.conditions}
    result = []
    for kind, holds in stated.items():
        old = before.pop(kind, None)
        status = str(holds)
        same = old is not None and old["status"] == status and old.get("lastTransitionTime")
        condition: dict[str, Any] = {
            "type": kind,
            "status": status,
            "lastTransitionTime": old["lastTransitionTime"]
            if old and same
            else timestamp(look.now),
        }
        if not holds and phase == "Succeeded":
            condition["reason"] = "PodCompleted"
        result.append(condition)
    if look.disrupted:
        before["DisruptionTarget"] = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "lastTransitionTime": timestamp(look.now),
        }
    # Others' conditions stay as they are.
    return [*result, *(dict(one) for one in before.values())]
