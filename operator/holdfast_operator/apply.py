"""Carries out what a plan asks for, against the API server. Every action may be done twice."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_operator.belongings import Belongings
from holdfast_operator.build.pod import EPOCHS_PER_POD, master_pod, worker_pod
from holdfast_operator.job_keeper import EXISTS_S, EXPECT_S, JobKeeper, by_force
from holdfast_operator.kube import paths
from holdfast_operator.kube.client import APPLY, MANAGER, MERGE, KubeClient
from holdfast_operator.kube.failures import RefusedError, TakenError
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
from holdfast_wire import keys
from holdfast_wire.messages import FinishDecision, ScaleResult, StopWish

_log = logging.getLogger(__name__)
INVALID_TEMPLATE: Final = "InvalidTemplate"
"""Reason of a job whose pods the API server does not take."""
_OWN_MASTER: Final = (
    "the job gives no spec.master.template, so that the operator's own is used: give one that the "
    "namespace takes, or change what the namespace demands (a LimitRange, for example)"
)
"""The remedy where nobody wrote what is refused."""
_NOTES: Final = ("masterPods", "templateRevision")
"""What is written down at once, each by a request of its own. Never with the rest of the status: a
request of an operator that was killed may be carried out late, after its successor has given out
the next epoch, and would take that back."""


def without_notes(status: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a status that is made anew with each plan."""
    return {name: value for name, value in status.items() if name not in _NOTES}


class Applier:
    """Writes to the cluster for all jobs."""

    def __init__(self, client: KubeClient, belongings: Belongings, image: str) -> None:
        self._client = client
        self._belongings = belongings
        self._image = image

    async def do(self, keeper: JobKeeper, action: Action) -> None:
        """Carry out one action; raises KubeError where it has to be tried again."""
        match action:
            case CreatePod():
                await self.create(keeper, (action,))
            case DeletePod():
                await self._delete(keeper, action)
            case ScaleJob():
                await self._scale(keeper, action)
            case DeleteJob():
                await self._delete_job(keeper)
            case Hold() | LetGo():
                await self._set_finalizer(keeper, held=isinstance(action, Hold))
            case AskToStop():
                keeper.ask_to_stop(StopWish(reason=action.reason, grace_seconds=action.grace_s))
            case FinishJob():
                pass  # the status that the plan made says it

    async def write_status(self, keeper: JobKeeper, status: dict[str, Any]) -> None:
        """Write the whole status but its notes; the operator owns all of it."""
        body = {
            "apiVersion": keys.API_VERSION,
            "kind": keys.KIND,
            "metadata": {"name": keeper.owner.name, "uid": keeper.owner.uid},
            "status": status,
        }
        path = f"{paths.job(keeper.owner)}/status?fieldManager={MANAGER}&force=true"
        await self._patch(keeper, path, body, APPLY)
        notes = {name: keeper.status[name] for name in _NOTES if name in keeper.status}
        keeper.status = {**status, **notes}

    async def create(self, keeper: JobKeeper, actions: Sequence[CreatePod]) -> set[str]:
        """Make pods side by side.

        Returns:
            Roles of which the API server does not take one now.

        Raises:
            KubeError: one has to be tried again; the others were.
        """
        refused: set[str] = set()
        pods: list[tuple[CreatePod, dict[str, Any]]] = []
        for action in actions:  # one by one: they share the status and the Secrets
            try:
                pods.append((action, await self._manifest(keeper, action)))
            except TakenError as error:
                keeper.refuse(action.slot, str(error), time.time())
                refused.add(action.slot.name)
            except RefusedError as error:
                self._take_refusal(keeper, action, error)
                refused.add(action.slot.name)
        made = await asyncio.gather(
            *(self._post(keeper, action, pod) for action, pod in pods), return_exceptions=True
        )
        for (action, _), taken in zip(pods, made, strict=True):
            if isinstance(taken, BaseException):
                raise taken
            if not taken:
                refused.add(action.slot.name)
        return refused

    async def _manifest(self, keeper: JobKeeper, action: CreatePod) -> dict[str, Any]:
        """The pod, once everything is there that it needs."""
        source = keeper.source(self._image)
        if action.slot.role is Role.MASTER:
            return master_pod(source, action, await self._next_epoch(keeper))
        await self._note_revision(keeper)
        if action.slot.role is Role.WORKER:
            await self._belongings.certify(keeper, action.slot)
        source = dataclasses.replace(source, starts_again=await self._client.starts_again())
        return worker_pod(source, action)

    async def _post(self, keeper: JobKeeper, action: CreatePod, pod: dict[str, Any]) -> bool:
        try:
            await self._client.call("POST", paths.core(keeper.owner, "pods"), pod)
        except RefusedError as error:
            if not error.exists:
                self._take_refusal(keeper, action, error)
                return False
            # Made a moment ago, or by an earlier job of the name, whose pod is about to go.
            keeper.expect(action.name, time.monotonic() + EXISTS_S)
            return True
        keeper.refused.pop(action.slot, None)
        keeper.expect(action.name, time.monotonic() + EXPECT_S)
        if action.slot.role is Role.MASTER:  # not before: a pod that is refused follows nobody
            keeper.master = keeper.master.started(_first_epoch(keeper))
        _log.info("job %s: made pod %s: %s", keeper.key, action.name, action.reason)
        return True

    def _take_refusal(self, keeper: JobKeeper, action: CreatePod, error: RefusedError) -> None:
        """What the API server says against a pod: it ends the job, or is waited for."""
        if error.is_invalid:
            text = f"pod {action.name}: {error.message}"
            if action.slot == MASTER_SLOT and keeper.spec.master_template is None:
                text = f"{text}; {_OWN_MASTER}"
            said = FinishDecision(succeeded=False, reason=INVALID_TEMPLATE, text=text)
            keeper.hear(said, time.time())
        elif error.is_admission:
            if action.slot not in keeper.refused:
                _log.warning("job %s: %s", keeper.key, error)
            keeper.refuse(action.slot, error.message, time.time())
        else:
            raise error

    async def _next_epoch(self, keeper: JobKeeper) -> int:
        """Allocate the epochs of one more master pod: in the status, by compare and swap."""
        found = await self._client.call("GET", paths.job(keeper.owner))
        allocated = int((found.get("status") or {}).get("masterPods", 0)) + 1
        version = found["metadata"]["resourceVersion"]
        await self._note(keeper, version, masterPods=allocated, templateRevision=keeper.revision)
        return _first_epoch(keeper)

    async def _note_revision(self, keeper: JobKeeper) -> None:
        """Write down what the pods are made from before there is one: a successor must know."""
        if keeper.status.get("templateRevision") != keeper.revision:
            await self._note(keeper, None, templateRevision=keeper.revision)

    async def _note(self, keeper: JobKeeper, version: str | None, **fields: Any) -> None:
        metadata = {"uid": keeper.owner.uid}
        if version is not None:
            metadata["resourceVersion"] = version
        path = f"{paths.job(keeper.owner)}/status?fieldManager={MANAGER}"
        await self._patch(keeper, path, {"metadata": metadata, "status": fields}, MERGE)
        keeper.status = {**keeper.status, **fields}

    async def _patch(self, keeper: JobKeeper, path: str, body: dict[str, Any], kind: str) -> None:
        try:
            await self._client.call("PATCH", path, body, kind)
        finally:  # what was refused, or not answered, was a request all the same
            keeper.written_at = time.monotonic()

    async def _set_finalizer(self, keeper: JobKeeper, *, held: bool) -> None:
        metadata = keeper.body["metadata"]
        others = [one for one in metadata.get("finalizers") or () if one != keys.FINALIZER]
        body = {
            "metadata": {
                "uid": keeper.owner.uid,
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*others, keys.FINALIZER] if held else others,
            }
        }
        path = f"{paths.job(keeper.owner)}?fieldManager={MANAGER}"
        keeper.body = await self._client.call("PATCH", path, body, MERGE)

    async def _delete(self, keeper: JobKeeper, action: DeletePod) -> None:
        keeper.deletions.add(action.uid)
        if action.grace_s == 0:
            # Whatever comes of it: it only spares connections, and must keep nothing waiting.
            keeper.expected[by_force(action.uid)] = time.monotonic() + EXPECT_S
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": action.grace_s,
            "preconditions": {"uid": action.uid},
        }
        try:
            await self._client.call(
                "DELETE", f"{paths.core(keeper.owner, 'pods')}/{action.name}", body
            )
        except RefusedError as error:
            if not error.is_gone and action.grace_s:
                raise
            if not error.is_gone:
                _log.warning("job %s: %s stays in its Service: %s", keeper.key, action.name, error)
                return
        keeper.expect_deletion(action.uid, time.monotonic() + EXPECT_S)
        _log.info("job %s: deleted pod %s: %s", keeper.key, action.name, action.reason.value)

    async def _scale(self, keeper: JobKeeper, action: ScaleJob) -> None:
        result = ScaleResult(decision_id=action.decision_id, ok=True)
        body = {"spec": {"replicas": action.replicas}}
        try:
            path = f"{paths.job(keeper.owner)}/scale?fieldManager={MANAGER}"
            await self._client.call("PATCH", path, body, MERGE)
        except RefusedError as error:
            if not error.is_invalid and error.code != 403:
                raise
            result = ScaleResult(decision_id=action.decision_id, ok=False, error=error.message)
        keeper.view = keeper.view.answered(action.decision_id)
        if keeper.link is not None:
            keeper.link.send(result)

    async def _delete_job(self, keeper: JobKeeper) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": keeper.owner.uid},
        }
        # One that is gone already is refused, which has the reconciler forget it.
        await self._client.call("DELETE", paths.job(keeper.owner), body)


def _first_epoch(keeper: JobKeeper) -> int:
    """The first of the epochs that the newest master pod owns."""
    return int(keeper.status["masterPods"]) * EPOCHS_PER_POD + 1
