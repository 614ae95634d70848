"""Record of a pod: a dozen values from six kilobytes. Pure.

A worker's pod ends with its training container: the run time and the end of other containers say
nothing about the training.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.plan.inputs import avoided_by, unix_time
from holdfast_operator.plan.pods import MASTER, UNSCHEDULABLE, ObservedPod, PodSlot
from holdfast_operator.pods.gang import backend_of
from holdfast_operator.pods.memory import limit_of
from holdfast_operator.pods.names import LABEL_INCARNATION, Owner
from holdfast_operator.pods.template import our_container
from holdfast_wire import keys
from holdfast_wire.messages import NoticeReceived, PodObservation, PodPhase

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
"""Texts of a kubelet about a container that it cannot start → one word for each kind."""
_DISRUPTED: Final = "DisruptionTarget"
_SIGNALLED: Final = 128
_OUT_OF_MEMORY: Final = "OOMKilled"
_NODE_LOST: Final = "NodeLost"
_INIT_FAILED: Final = "InitContainerFailed"
"""Reason of a pod whose training container never ran."""
_CONDITIONS: Final = 1024
"""Sets of conditions that are kept: pods of one cluster have a dozen."""
_PLACES: Final = 4096
"""Places that are kept for all jobs: those of a very large one."""
_OVER: Final = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord(ObservedPod):
    """One pod of a job in a cluster: what a planner sees of it, and what its master is told.

    `ready` is the pod's condition, `phase` that of its training container, once that has ended for
    good.
    """

    namespace: str
    job: str
    owner: str
    """Uid of the job that made it."""
    gang: str
    """Backend of the group that it is scheduled in; empty: none."""
    address: str
    """Its IP; empty before it has one."""
    conditions: tuple[str, ...]
    """Its conditions as Type=Status, sorted: their order says nothing, and writers change it."""
    ends: int
    """Ends of its main container, after which its node starts it again."""
    last_end: tuple[int, str, str]
    """Exit code (-N for signal N), reason and text of the newest of them."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of its job."""
        return self.namespace, self.job

    def observation(
        self,
        *,
        wanted: bool,
        unreachable: bool = False,
        phase: PodPhase | None = None,
        notice: NoticeReceived | None = None,
    ) -> PodObservation:
        """Return the pod in its master's form.

        Args:
            wanted: True: the operator itself deletes it.
            unreachable: True: its node answers nothing.
            phase: Instead of its own: GONE for a pod that does not exist any more.
            notice: Announcement of its node's end.
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
            notice=notice,
        )


def read_pod(body: Mapping[str, Any]) -> PodRecord | None:
    """Return the record of a pod object; None if the pod is not of our making."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    try:
        slot = _slot(labels)
        incarnation = int(labels[LABEL_INCARNATION])
        job = labels[keys.LABEL_JOB]
    except (KeyError, ValueError):
        return None
    owners = metadata.get("ownerReferences") or ()
    said = _PHASES.get(status.get("phase", ""), PodPhase.UNSPECIFIED)
    phase = _judged(said, spec, status)
    conditions = status.get("conditions") or ()
    ended = _ended(spec, status) if phase in _OVER else {}
    lost = "deletionTimestamp" in metadata and _unreachable(conditions)
    ends, last_end = _ends(spec, status)
    reason = _NODE_LOST if lost else status.get("reason") or ended.get("reason", "")
    waiting, waiting_text = _waiting(status)
    return PodRecord(
        namespace=sys.intern(metadata["namespace"]),
        job=sys.intern(job),
        name=metadata["name"],
        uid=sys.intern(metadata["uid"]),  # the history and both maps of pods keep it, too
        slot=slot,
        incarnation=incarnation,
        owner=sys.intern(next((one["uid"] for one in owners if one.get("controller")), "")),
        phase=phase,
        lingers=phase in _OVER and said not in _OVER and _others_run(spec, status),
        exit_code=_exit_code(phase, ended),
        reason=reason,
        text=(ended.get("message") or status.get("message") or "")[: keys.MAX_TEXT_BYTES],
        deleting="deletionTimestamp" in metadata,
        gone_by=unix_time(metadata["deletionTimestamp"])
        if "deletionTimestamp" in metadata
        else None,
        lost=reason == _NODE_LOST,
        ready=_is_true(conditions, "Ready"),
        serving=_is_true(conditions, "ContainersReady"),
        unheard=_unheard(conditions),
        node=sys.intern(spec.get("nodeName", "")),
        avoids=avoided_by(spec),
        gang=backend_of(body, Owner(name=job, namespace="", uid="").gang),
        address=status.get("podIP", ""),
        conditions=_shared(tuple(sorted(f"{one['type']}={one['status']}" for one in conditions))),
        created_at=unix_time(metadata["creationTimestamp"]),
        ended_at=unix_time(ended["finishedAt"]) if ended.get("finishedAt") else None,
        ends=ends,
        last_end=last_end,
        memory_limit=limit_of(spec["containers"][our_container(spec)]),
        ran_out_of_memory=_OUT_OF_MEMORY in (reason, last_end[1]),
        waiting=waiting,
        waiting_text=waiting_text,
        not_started="" if phase in _OVER else not_started(spec, status),
    )


@functools.lru_cache(maxsize=_CONDITIONS)
def _shared(conditions: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for all pods with these conditions: they are a third of a record."""
    return conditions


def _slot(labels: Mapping[str, str]) -> PodSlot:
    """Return the place in a pod's labels; a master's index is 0, and only older masters have it."""
    role = labels[keys.LABEL_ROLE]
    given = labels.get(keys.LABEL_INDEX, "0") if role == MASTER else labels[keys.LABEL_INDEX]
    return _place(role, int(given))


@functools.lru_cache(maxsize=_PLACES)
def _place(role: str, index: int) -> PodSlot:
    """Return one value for the same place of all jobs."""
    return PodSlot(role, index)


def _waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one.get("reason") == UNSCHEDULABLE:
            return UNSCHEDULABLE, one.get("message", "")
    kinds = ("initContainerStatuses", "containerStatuses")
    for one in (one for kind in kinds for one in status.get(kind) or ()):
        state = (one.get("state") or {}).get("waiting") or {}
        kind = _WAITS.get(state.get("reason", ""))
        if kind is not None:
            said = state.get("message") or state["reason"]
            return kind, f"container {one['name']}, image {one['image']}: {said}"
    return "", ""


def _judged(said: PodPhase, spec: Mapping[str, Any], status: Mapping[str, Any]) -> PodPhase:
    """Return a pod's phase by its training container.

    While another container runs, Kubernetes calls the pod Running; if another one failed, it calls
    the pod Failed. A phase that the node set (Evicted, a shutdown) stands: a process that was told
    to leave may well end with 0.
    """
    states = _main_status(spec, status).get("state") or {}
    ended = states.get("terminated")
    if ended is None or said is PodPhase.SUCCEEDED:
        return said
    if said is not PodPhase.FAILED and (
        spec.get("restartPolicy") != "Never" or _again(spec, states)
    ):
        return said
    taken = status.get("reason") or _is_true(status.get("conditions") or (), _DISRUPTED)
    return PodPhase.FAILED if ended.get("exitCode", 1) or taken else PodPhase.SUCCEEDED


def _others_run(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return True if a container beside the main one, no init container, has not ended."""
    stated = status.get("containerStatuses") or ()
    over = {one["name"] for one in stated if (one.get("state") or {}).get("terminated")}
    main = spec["containers"][our_container(spec)]["name"]
    return any(one["name"] not in {main, *over} for one in spec["containers"])


def _ended(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the end of the main container.

    If it never ran: the failure of an init container, without an exit code, which would be taken
    for the training's; empty if nothing ran (evicted before).
    """
    states = _main_status(spec, status).get("state") or {}
    ended: Mapping[str, Any] | None = states.get("terminated")
    return _failed_init(spec, status) if ended is None else ended


def _failed_init(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    inits = spec.get("initContainers") or ()
    steps = {one["name"] for one in inits if one.get("restartPolicy") != "Always"}
    for one in status.get("initContainerStatuses") or ():
        if one["name"] not in steps:
            continue
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            words = f"init container {one['name']} ended with exit code {ended['exitCode']}"
            told = f"{words}: {ended['message']}" if ended.get("message") else words
            when = ended.get("finishedAt")
            return {"reason": _INIT_FAILED, "message": told, "exitCode": None, "finishedAt": when}
    return {}


def _main_status(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    name = spec["containers"][our_container(spec)]["name"]
    found = (one for one in status.get("containerStatuses") or () if one["name"] == name)
    return next(found, {})


def _ends(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[int, tuple[int, str, str]]:
    """Return the number of ends after which the main container starts again, and the last end.

    It counts from the end on, not from the next start, for which a kubelet may wait minutes.
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
    """Return True if the container's own rule restarts it after such an end."""
    code = (states.get("terminated") or {}).get("exitCode")
    if code is None:
        return False
    main = spec["containers"][our_container(spec)]
    for rule in main.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (code in codes.get("values", ())) is (codes.get("operator", "In") == "In"):
            return True
    if main.get("restartPolicy") == "OnFailure":
        return bool(code)
    return bool(main.get("restartPolicy") == "Always")


def _signed(code: int) -> int:
    return _SIGNALLED - code if code > _SIGNALLED else code


def _exit_code(phase: PodPhase, ended: Mapping[str, Any]) -> int | None:
    if phase is PodPhase.SUCCEEDED:
        return 0
    if phase is not PodPhase.FAILED:
        return None
    code = ended.get("exitCode", 1)
    return None if code is None else _signed(int(code)) or 1


def _is_true(conditions: Any, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _unreachable(conditions: Any) -> bool:
    """Return True if the node's own controller has given the pod up."""
    return any(
        one["type"] == _DISRUPTED
        and one["status"] == "True"
        and one.get("reason") == "DeletionByTaintManager"
        for one in conditions
    ) and not _is_true(conditions, "Ready")


def _unheard(conditions: Any) -> bool:
    """Return True if the node controller has taken Ready away.

    It gives no reason. A kubelet does, and takes it from the containers too, unless a readiness
    gate is missing, which it names.
    """
    return _is_true(conditions, "ContainersReady") and any(
        one["type"] == "Ready" and one["status"] == "False" and not one.get("reason")
        for one in conditions
    )


def not_started(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return the reason why a pod's main container has not started; empty: it has, or unknown."""
    main = _main_status(spec, status).get("state") or {}
    if "running" in main or "terminated" in main:
        return ""
    if not spec.get("nodeName"):
        return "it has no node yet"
    ahead = next(_ahead(spec, status), None)
    name = spec["containers"][our_container(spec)]["name"]
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
