"""Carries out a plan's actions against the API server. Every action may be done twice."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_operator.kube.client import APPLY, MANAGER, MERGE, KubeClient, only
from holdfast_operator.kube.errors import ApiRefusedError, DroppedFieldsError, TakenError
from holdfast_operator.owned_resources import OwnedResources
from holdfast_operator.plan.actions import (
    Action,
    AskToStop,
    CreatePod,
    DeleteJob,
    DeletePod,
    FinishJob,
    Hold,
    LetGo,
    ScaleJob,
)
from holdfast_operator.plan.pods import MASTER_SLOT, Role
from holdfast_operator.pods.pod import EPOCHS_PER_POD, master_pod, worker_pod
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.expectations import EXISTS_SECONDS, EXPECT_SECONDS
from holdfast_operator.state.job_state import JobState
from holdfast_wire import keys
from holdfast_wire.messages import FinishDecision, ScaleResult, StopRequest

_log = logging.getLogger(__name__)
INVALID_TEMPLATE: Final = "InvalidTemplate"
"""Reason of a job whose pods the API server does not accept."""
_OWN_MASTER: Final = (
    "the job gives no spec.master.template, so that the operator's own is used: give one that the "
    "namespace takes, or have `master` among the chart's values changed (its resources, for "
    "example), or change what the namespace demands (a LimitRange, a quota)"
)
"""Remedy for a refused pod of the operator's own making."""
_OLDER_CRD: Final = (
    "the API server drops {}: the CRD elasticjobs.holdfast.dev is older than this operator; bring "
    "it up to date (`helm upgrade` with crds.enabled=true, or `kubectl apply` this release's CRD)"
)
"""Remedy for a CRD without a field that must not be forgotten."""
_NOTES: Final = ("masterPods", "templateRevision")
"""Fields that are written at once, each by a request of its own, and never with the rest of the
status: each plan makes the rest anew."""


def without_notes(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a status that each plan makes anew."""
    return {name: value for name, value in status.items() if name not in _NOTES}


class Applier:
    """Writes to the cluster for all jobs."""

    def __init__(
        self, client: KubeClient, owned: OwnedResources, settings: OperatorSettings
    ) -> None:
        self._client = client
        self._owned = owned
        self._settings = settings
        self._undeclared: dict[str, float] = {}
        """Fields of the status that the CRD lacks; until when that counts, monotonic time, s."""
        self._named: set[str] = set()

    async def do(self, state: JobState, action: Action) -> None:
        """Carry out one action; raises KubeError if it has to be tried again."""
        match action:
            case CreatePod():
                await self.create(state, (action,))
            case DeletePod():
                await self._delete(state, action)
            case ScaleJob():
                await self._scale(state, action)
            case DeleteJob():
                await self._delete_job(state)
            case Hold() | LetGo():
                await self._set_finalizer(state, held=isinstance(action, Hold))
            case AskToStop():
                wish = StopRequest(reason=action.reason, grace_seconds=action.grace_s)
                state.link.ask_to_stop(wish)
            case FinishJob():
                pass  # the plan's own status reports it

    async def write_status(self, state: JobState, status: dict[str, Any]) -> None:
        """Write the whole status except its notes; the operator owns all of it.

        What the CRD lacks is left out, so that the rest does not wait for a newer one.
        """
        path = f"{state.owner.path}/status?fieldManager={MANAGER}&force=true"
        while True:
            body = {
                "apiVersion": keys.API_VERSION,
                "kind": keys.KIND,
                "metadata": {"name": state.owner.name, **state.version},
                "status": self._declared(status),
            }
            try:
                await self._patch(state, path, body, APPLY)
                break
            except ApiRefusedError as error:
                if not self._learns(error):
                    raise
        before = state.status.fields
        written = {**status, **{name: before[name] for name in _NOTES if name in before}}
        answered = state.body.get("status")
        # Equal ones are kept once.
        state.status.written(answered if answered == written else written)

    def _declared(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return a status without the fields that the CRD lacks."""
        now = time.monotonic()
        self._undeclared = {one: until for one, until in self._undeclared.items() if now < until}
        if not self._undeclared:
            return status
        kept = copy.deepcopy(status)
        for one in self._undeclared:
            _drop(kept, one.split("."))
        return kept

    def _learns(self, error: ApiRefusedError) -> bool:
        """Note the fields that the CRD lacks by a refusal; False: it names no new one."""
        new = error.undeclared - self._undeclared.keys()
        self._undeclared |= dict.fromkeys(new, time.monotonic() + self._settings.resync_s)
        if first := new - self._named:
            self._named |= first
            _log.error(_OLDER_CRD.format(", ".join(f"status.{one}" for one in sorted(first))))
        return bool(new)

    async def create(self, state: JobState, actions: Sequence[CreatePod]) -> set[str]:
        """Make pods side by side.

        Returns:
            Roles with a pod that the API server does not accept now.

        Raises:
            KubeError: One pod has to be tried again; the others were tried.
        """
        refused: set[str] = set()
        pods: list[tuple[CreatePod, dict[str, Any]]] = []
        for action in actions:  # one by one: they share the status and the Secrets
            try:
                pods.append((action, await self._manifest(state, action)))
            except (TakenError, DroppedFieldsError) as error:
                state.refuse(action.slot, str(error), time.time())
                refused.add(action.slot.name)
            except ApiRefusedError as error:
                self._take_refusal(state, action, error)
                refused.add(action.slot.name)
        made = await asyncio.gather(
            *(self._post(state, action, pod) for action, pod in pods), return_exceptions=True
        )
        for (action, _), taken in zip(pods, made, strict=True):
            if isinstance(taken, BaseException):
                raise taken
            if not taken:
                refused.add(action.slot.name)
        return refused

    async def _manifest(self, state: JobState, action: CreatePod) -> dict[str, Any]:
        """Return the pod's manifest, once all objects that it needs exist."""
        source = state.source(self._settings)
        if action.slot.role is Role.MASTER:
            return master_pod(source, action, await self._next_epoch(state))
        revision = state.templates.revision
        if state.status.revision != revision:  # before there is a pod of it: a successor needs it
            await self._note(state, templateRevision=revision)
        if action.slot.role is Role.WORKER:
            await self._owned.certify(state, action.slot)
        source = dataclasses.replace(source, starts_again=await self._client.starts_again())
        return worker_pod(source, action)

    async def _post(self, state: JobState, action: CreatePod, pod: dict[str, Any]) -> bool:
        # Not repeated with the epoch of a pod that was made all the same, and is gone again.
        again = action.slot.role is not Role.MASTER
        try:
            await self._client.call("POST", state.owner.core("pods"), pod, may_repeat=again)
        except ApiRefusedError as error:
            if not error.exists:
                self._take_refusal(state, action, error)
                return False
            # Made a moment ago, or by an earlier job of the name, whose pod is about to go.
            state.expect(action.name, time.monotonic() + EXISTS_SECONDS)
            return True
        state.accept(action.slot)
        state.expect(action.name, time.monotonic() + EXPECT_SECONDS)
        if action.slot.role is Role.MASTER:  # only now: a refused pod is no successor
            state.link.started(_first_epoch(state))
        _log.info("job %s: made pod %s: %s", state.key, action.name, action.reason)
        return True

    def _take_refusal(self, state: JobState, action: CreatePod, error: ApiRefusedError) -> None:
        """Judge the API server's refusal of a pod: it ends the job, or the pod is tried again."""
        if error.is_invalid:
            text = f"pod {action.name}: {error.message}"
            text += _remedy(state, action)
            end = FinishDecision(succeeded=False, reason=INVALID_TEMPLATE, text=text)
            state.receive(end, time.time())
        elif error.is_admission:
            if action.slot not in state.refused:
                _log.warning("job %s: %s", state.key, error)
            text = error.message + _remedy(state, action)
            state.refuse(action.slot, text, time.time())
        else:
            raise error

    async def _next_epoch(self, state: JobState) -> int:
        """Allocate the epochs of one more master pod: in the status, by compare and swap."""
        path = state.owner.path
        found = await self._client.call("GET", path)
        if found["metadata"]["uid"] != state.owner.uid:
            raise ApiRefusedError(f"GET {path}", 404, "NotFound", "another job has its name")
        state.patched(found)
        allocated = int((found.get("status") or {}).get("masterPods", 0)) + 1
        await self._note(state, masterPods=allocated, templateRevision=state.templates.revision)
        return _first_epoch(state)

    async def _note(self, state: JobState, **fields: Any) -> None:
        path = f"{state.owner.path}/status?fieldManager={MANAGER}"
        await self._patch(state, path, {"metadata": state.version, "status": fields}, MERGE)
        kept = state.body.get("status") or {}
        dropped = [f"status.{name}" for name in fields if kept.get(name) != fields[name]]
        if dropped:
            raise DroppedFieldsError(_OLDER_CRD.format(" and ".join(dropped)))
        state.status.written({**state.status.fields, **fields})

    async def _patch(self, state: JobState, path: str, body: dict[str, Any], kind: str) -> None:
        try:
            state.patched(await self._client.call("PATCH", path, body, kind))
        finally:  # a refused or unanswered request counts too
            state.status.asked(time.monotonic())

    async def _set_finalizer(self, state: JobState, *, held: bool) -> None:
        before = state.body["metadata"].get("finalizers") or ()
        others = [one for one in before if one != keys.FINALIZER]
        finalizers = [*others, keys.FINALIZER] if held else others
        body = {"metadata": {**state.version, "finalizers": finalizers}}
        path = f"{state.owner.path}?fieldManager={MANAGER}"
        state.patched(await self._client.call("PATCH", path, body, MERGE))

    async def _delete(self, state: JobState, action: DeletePod) -> None:
        until = time.monotonic() + EXPECT_SECONDS
        state.expectations.delete(action.uid, until, forced=action.grace_s == 0)
        body = {**only(action.uid), "gracePeriodSeconds": action.grace_s}
        try:
            await self._client.call("DELETE", f"{state.owner.core('pods')}/{action.name}", body)
        except ApiRefusedError as error:
            if not error.is_gone and action.grace_s:
                raise
            if not error.is_gone:
                _log.warning("job %s: %s stays in its Service: %s", state.key, action.name, error)
                return
        state.expect_deletion(action.uid, time.monotonic() + EXPECT_SECONDS)
        _log.info("job %s: deleted pod %s: %s", state.key, action.name, action.reason.value)

    async def _scale(self, state: JobState, action: ScaleJob) -> None:
        result = ScaleResult(decision_id=action.decision_id, ok=True)
        body = {"metadata": state.version, "spec": {"replicas": action.replicas}}
        try:
            path = f"{state.owner.path}/scale?fieldManager={MANAGER}"
            await self._client.call("PATCH", path, body, MERGE)
        except ApiRefusedError as error:
            if not error.is_invalid and error.code != 403:
                raise
            result = ScaleResult(decision_id=action.decision_id, ok=False, error=error.message)
        state.link.answered(action.decision_id)
        state.link.send(result)

    async def _delete_job(self, state: JobState) -> None:
        body = {**only(state.owner.uid), "propagationPolicy": "Background"}
        # A refusal of a job that is gone already makes the reconciler forget it.
        await self._client.call("DELETE", state.owner.path, body)


def _drop(value: Any, path: Sequence[str]) -> None:
    """Drop a field, in every item of the lists on its way."""
    if isinstance(value, list):
        for one in value:
            _drop(one, path)
    elif isinstance(value, dict) and len(path) == 1:
        value.pop(path[0], None)
    elif isinstance(value, dict):
        _drop(value.get(path[0]), path[1:])


def _remedy(state: JobState, action: CreatePod) -> str:
    own = action.slot == MASTER_SLOT and state.spec.master_template is None
    return f"; {_OWN_MASTER}" if own else ""


def _first_epoch(state: JobState) -> int:
    """Return the first of the epochs that the newest master pod owns."""
    return int(state.status.fields["masterPods"]) * EPOCHS_PER_POD + 1
