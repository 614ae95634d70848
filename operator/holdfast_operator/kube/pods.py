"""What of a pod is kept: a dozen values out of six kilobytes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.build.avoiding import avoided_by
from holdfast_operator.build.names import LABEL_INCARNATION
from holdfast_operator.build.template import main_container
from holdfast_operator.plan.pods import MASTER, ObservedPod, Slot
from holdfast_operator.plan.reach import Place
from holdfast_wire import keys
from holdfast_wire.messages import PodObservation, PodPhase

_PHASES: Final[Mapping[str, PodPhase]] = {
    "Pending": PodPhase.PENDING,
    "Running": PodPhase.RUNNING,
    "Succeeded": PodPhase.SUCCEEDED,
    "Failed": PodPhase.FAILED,
}
_WAITS: Final[Mapping[str, str]] = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "ImageInspectError": "ImagePullFailed",
    "InvalidImageName": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "RegistryUnavailable": "ImagePullFailed",
    "CreateContainerConfigError": "ContainerNotStarted",
    "CreateContainerError": "ContainerNotStarted",
    "RunContainerError": "ContainerNotStarted",
    "CrashLoopBackOff": "ContainerNotStarted",
}
"""What a kubelet says of a container that it cannot start, in one word for each kind."""
_UNSCHEDULABLE: Final = "Unschedulable"
_SIGNALLED: Final = 128
_NODE_LOST: Final = "NodeLost"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """One pod of a job, as last seen."""

    namespace: str
    job: str
    name: str
    uid: str
    slot: Slot
    incarnation: int
    owner: str
    """Uid of the job that made it."""
    phase: PodPhase
    exit_code: int | None
    """Of the main container; -N for signal N; None while it lives."""
    reason: str
    text: str
    """The last thing that its main container said."""
    deleting: bool
    gone_by: float | None
    """When its deletion should be over; Unix time, s."""
    ready: bool
    unheard: bool
    """Ready was taken from it by the cluster, which hears nothing of its node."""
    node: str
    avoids: tuple[str, ...]
    """The nodes that it was made to avoid."""
    address: str
    """Its IP; empty before it has one."""
    conditions: tuple[str, ...]
    """The true ones, as Type=Status."""
    created_at: float
    ended_at: float | None
    ends: int
    """Of its main container, after which its node starts it again."""
    last_end: tuple[int, str, str]
    """Exit code (-N for signal N), reason and text of the newest of them."""
    waiting: tuple[str, str]
    """Why it cannot begin, as reason and words; empty: nothing is known to be in its way."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of its job."""
        return self.namespace, self.job

    @property
    def serving(self) -> bool:
        """Whether all its containers were ready when its node was last heard of."""
        return "ContainersReady=True" in self.conditions

    @property
    def lost(self) -> bool:
        """Whether its node does not answer."""
        return self.reason == _NODE_LOST

    def observed(self, *, ready: bool, proven: bool) -> ObservedPod:
        """The pod as a planner sees it."""
        return ObservedPod(
            slot=self.slot,
            incarnation=self.incarnation,
            name=self.name,
            uid=self.uid,
            phase=self.phase,
            exit_code=self.exit_code,
            reason=self.reason,
            deleting=self.deleting,
            gone_by=self.gone_by,
            lost=self.lost,
            ready=ready,
            proven=proven,
            serving=self.serving,
            unheard=self.unheard,
            node=self.node,
            avoids=self.avoids,
            created_at=self.created_at,
            ended_at=self.ended_at,
            waiting=self.waiting[0],
            waiting_text=self.waiting[1],
        )

    @property
    def place(self) -> Place:
        """Where it can be asked whether its node answers."""
        is_master = self.slot.name == MASTER
        return Place(self.node, self.address, self.uid, self.phase, is_master)

    def observation(
        self, *, wanted: bool, unreachable: bool = False, phase: PodPhase | None = None
    ) -> PodObservation:
        """The pod as its master hears of it.

        Args:
            wanted: The operator itself deletes it.
            unreachable: Its node answers nothing.
            phase: Instead of its own: GONE for one that does not exist any more.
        """
        runs = phase is None and self.phase is PodPhase.RUNNING and self.ends > 0
        ended = self.last_end if runs else (self.exit_code or 0, self.reason, self.text)
        return PodObservation(
            node_rank=self.slot.index,
            pod_uid=self.uid,
            name=self.name,
            phase=self.phase if phase is None else phase,
            exit_code=ended[0],
            reason=ended[1],
            conditions=self.conditions,
            node=self.node,
            terminating=self.deleting,
            wanted=wanted,
            text=ended[2],
            ends=self.ends,
            unreachable=unreachable,
        )


def read_pod(body: Mapping[str, Any]) -> PodRecord | None:
    """The record of a pod object; None for one that is not of our making."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    try:
        slot = Slot(labels[keys.LABEL_ROLE], int(labels[keys.LABEL_INDEX]))
        incarnation = int(labels[LABEL_INCARNATION])
        job = labels[keys.LABEL_JOB]
    except (KeyError, ValueError):
        return None
    owners = metadata.get("ownerReferences") or ()
    phase = _PHASES.get(status.get("phase", ""), PodPhase.UNSPECIFIED)
    conditions = status.get("conditions") or ()
    ended = _ended(spec, status) if phase in {PodPhase.SUCCEEDED, PodPhase.FAILED} else {}
    lost = "deletionTimestamp" in metadata and _unreachable(conditions)
    ends, last_end = _ends(spec, status)
    return PodRecord(
        namespace=metadata["namespace"],
        job=job,
        name=metadata["name"],
        uid=metadata["uid"],
        slot=slot,
        incarnation=incarnation,
        owner=next((one["uid"] for one in owners if one.get("controller")), ""),
        phase=phase,
        exit_code=_exit_code(phase, ended),
        reason=_NODE_LOST if lost else status.get("reason") or ended.get("reason", ""),
        text=(ended.get("message") or status.get("message") or "")[: keys.MAX_TEXT_BYTES],
        deleting="deletionTimestamp" in metadata,
        gone_by=_unix(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else None,
        ready=_is_true(conditions, "Ready"),
        unheard=_unheard(conditions),
        node=spec.get("nodeName", ""),
        avoids=avoided_by(spec),
        address=status.get("podIP", ""),
        conditions=tuple(f"{one['type']}={one['status']}" for one in conditions),
        created_at=_unix(metadata["creationTimestamp"]),
        ended_at=_unix(ended["finishedAt"]) if ended.get("finishedAt") else None,
        ends=ends,
        last_end=last_end,
        waiting=_waiting(status),
    )


def _waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one.get("reason") == _UNSCHEDULABLE:
            return _UNSCHEDULABLE, one.get("message", "")
    kinds = ("initContainerStatuses", "containerStatuses")
    for one in (one for kind in kinds for one in status.get(kind) or ()):
        state = (one.get("state") or {}).get("waiting") or {}
        kind = _WAITS.get(state.get("reason", ""))
        if kind is not None:
            said = state.get("message") or state["reason"]
            return kind, f"container {one['name']}, image {one['image']}: {said}"
    return "", ""


def _ended(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the main container ended; empty where it never ran (evicted before)."""
    states = _main_status(spec, status).get("state") or {}
    ended: Mapping[str, Any] = states.get("terminated") or {}
    return ended


def _main_status(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    name = spec["containers"][main_container(spec)]["name"]
    found = (one for one in status.get("containerStatuses") or () if one["name"] == name)
    return next(found, {})


def _ends(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[int, tuple[int, str, str]]:
    """How often the main container has ended to be started again, and how it did last.

    It is counted from its end on, not from its next start, for which a kubelet may wait minutes.
    """
    main = _main_status(spec, status)
    states = main.get("state") or {}
    before = (main.get("lastState") or {}).get("terminated")
    now = states.get("terminated") if _again(spec, states) else None
    waits = "waiting" in states and before is not None
    ended = now or before
    if ended is None:
        return 0, (0, "", "")
    code, text = _signed(int(ended.get("exitCode", 1))), ended.get("message") or ""
    count = int(main.get("restartCount", 0)) + (now is not None or waits)
    return count, (code, ended.get("reason", ""), text[: keys.MAX_TEXT_BYTES])


def _again(spec: Mapping[str, Any], states: Mapping[str, Any]) -> bool:
    """Whether a rule of its container says that what has ended so is started again."""
    code = (states.get("terminated") or {}).get("exitCode")
    rules = spec["containers"][main_container(spec)].get("restartPolicyRules") or ()
    return any(code in (one.get("exitCodes") or {}).get("values", ()) for one in rules)


def _signed(code: int) -> int:
    return _SIGNALLED - code if code > _SIGNALLED else code


def _exit_code(phase: PodPhase, ended: Mapping[str, Any]) -> int | None:
    if phase is PodPhase.SUCCEEDED:
        return 0
    if phase is not PodPhase.FAILED:
        return None
    return _signed(int(ended.get("exitCode", 1))) or 1


def _is_true(conditions: Any, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _unreachable(conditions: Any) -> bool:
    """Whether the node's own controller has given the pod up."""
    return any(
        one["type"] == "DisruptionTarget"
        and one["status"] == "True"
        and one.get("reason") == "DeletionByTaintManager"
        for one in conditions
    ) and not _is_true(conditions, "Ready")


def _unheard(conditions: Any) -> bool:
    """Whether the node controller has taken Ready away.

    It gives no reason. A kubelet does, and takes it from the containers too, unless a readiness
    gate is missing, of which it says so.
    """
    return _is_true(conditions, "ContainersReady") and any(
        one["type"] == "Ready" and one["status"] == "False" and not one.get("reason")
        for one in conditions
    )


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def is_master(record: PodRecord) -> bool:
    """Whether the pod is a job master's."""
    return record.slot.name == MASTER
