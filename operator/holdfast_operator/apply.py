"""Carries out what a plan asks for, against the API server. Every action may be done twice."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from holdfast_operator.build.names import KEYS_PER_SECRET
from holdfast_operator.build.pod import EPOCHS_PER_POD, master_pod, worker_pod
from holdfast_operator.credentials import LABEL_RANKS
from holdfast_operator.job_keeper import JobKeeper
from holdfast_operator.kube.client import APPLY, MANAGER, MERGE, KubeClient
from holdfast_operator.kube.failures import RefusedError
from holdfast_operator.plan.actions import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    FinishJob,
    ScaleJob,
)
from holdfast_operator.plan.pods import WORKER, Role, Slot
from holdfast_wire import keys
from holdfast_wire.messages import FinishDecision, ScaleResult

_log = logging.getLogger(__name__)
INVALID_TEMPLATE: Final = "InvalidTemplate"
"""Reason of a job whose pods the API server does not take."""


class Applier:
    """Writes to the cluster for all jobs."""

    def __init__(self, client: KubeClient, image: str) -> None:
        self._client = client
        self._image = image

    async def do(self, keeper: JobKeeper, action: Action) -> None:
        """Carry out one action; raises KubeError where it has to be tried again."""
        match action:
            case CreatePod():
                await self._create(keeper, action)
            case DeletePod():
                await self._delete(keeper, action)
            case ScaleJob():
                await self._scale(keeper, action)
            case DeleteJob():
                await self._delete_job(keeper)
            case FinishJob():
                pass  # the status that the plan made says it

    async def prepare(self, keeper: JobKeeper, objects: list[dict[str, Any]]) -> None:
        """Make objects that exist for the whole life of a job; those that exist stay."""
        for one in objects:
            kind = {"Secret": "secrets", "Service": "services"}[one["kind"]]
            try:
                await self._client.call("POST", self._path(keeper, kind), one)
            except RefusedError as error:
                if not error.exists:
                    raise

    async def try_pod(self, keeper: JobKeeper) -> str:
        """Have the API server check the worker's template; return what it says against it."""
        slot = Slot(WORKER, 0)
        action = CreatePod(
            slot=slot, incarnation=0, name=slot.pod_name(keeper.owner.name, 0), reason=""
        )
        pod = worker_pod(keeper.source(self._image), action)
        try:
            await self._client.call("POST", f"{self._path(keeper, 'pods')}?dryRun=All", pod)
        except RefusedError as error:
            if error.is_invalid:
                return error.message
            if not error.exists:
                raise
        return ""

    async def write_status(self, keeper: JobKeeper, status: dict[str, Any]) -> None:
        """Write the whole status; the operator owns all of it."""
        body = {
            "apiVersion": keys.API_VERSION,
            "kind": keys.KIND,
            "metadata": {"name": keeper.owner.name, "uid": keeper.owner.uid},
            "status": status,
        }
        path = f"{self._job(keeper)}/status?fieldManager={MANAGER}&force=true"
        await self._client.call("PATCH", path, body, APPLY)
        keeper.status, keeper.written_at = status, time.monotonic()

    async def _create(self, keeper: JobKeeper, action: CreatePod) -> None:
        source = keeper.source(self._image)
        if action.slot.role is Role.MASTER:
            pod = master_pod(source, action, await self._next_epoch(keeper))
        else:
            if action.slot.role is Role.WORKER:
                await self._ensure_certificate(keeper, action.slot)
            pod = worker_pod(source, action)
        try:
            await self._client.call("POST", self._path(keeper, "pods"), pod)
        except RefusedError as error:
            if error.exists:
                return
            if not error.is_invalid:
                raise
            text = f"pod {action.name}: {error.message}"
            said = FinishDecision(succeeded=False, reason=INVALID_TEMPLATE, text=text)
            keeper.hear(said, time.time())
            return
        _log.info("job %s: made pod %s: %s", keeper.key, action.name, action.reason)

    async def _next_epoch(self, keeper: JobKeeper) -> int:
        """Allocate the epochs of one more master pod: in the status, by compare and swap."""
        found = await self._client.call("GET", self._job(keeper))
        allocated = int((found.get("status") or {}).get("masterPods", 0)) + 1
        body = {
            "metadata": {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "uid": keeper.owner.uid,
            },
            "status": {"masterPods": allocated},
        }
        path = f"{self._job(keeper)}/status?fieldManager={MANAGER}"
        await self._client.call("PATCH", path, body, MERGE)
        keeper.status = {**keeper.status, "masterPods": allocated}
        return allocated * EPOCHS_PER_POD + 1

    async def _ensure_certificate(self, keeper: JobKeeper, slot: Slot) -> None:
        if slot.index in keeper.certified:
            return
        spec = keeper.job.spec
        most = max(spec.size.most, spec.replicas) + spec.standbys
        secret = await keeper.credentials.worker_secret(slot.index, most)
        path = self._path(keeper, "secrets")
        try:
            await self._client.call("POST", path, secret)
        except RefusedError as error:
            if not error.exists:
                raise
            await self._complete_secret(f"{path}/{secret['metadata']['name']}", secret)
        first = slot.index - slot.index % KEYS_PER_SECRET
        ranks = int(secret["metadata"]["labels"][LABEL_RANKS])
        keeper.certified.update(range(first, first + ranks))

    async def _complete_secret(self, path: str, secret: dict[str, Any]) -> None:
        """Add the key pairs that an existing Secret lacks; those that pods may use stay."""
        found = await self._client.call("GET", path)
        missing = {file: data for file, data in secret["data"].items() if file not in found["data"]}
        if missing:
            labels = {LABEL_RANKS: secret["metadata"]["labels"][LABEL_RANKS]}
            body = {"metadata": {"labels": labels}, "data": missing}
            await self._client.call("PATCH", path, body, MERGE)

    async def _delete(self, keeper: JobKeeper, action: DeletePod) -> None:
        keeper.deletions.add(action.uid)
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": action.grace_s,
            "preconditions": {"uid": action.uid},
        }
        try:
            await self._client.call("DELETE", f"{self._path(keeper, 'pods')}/{action.name}", body)
        except RefusedError as error:
            if not error.is_gone:
                raise
        _log.info("job %s: deleted pod %s: %s", keeper.key, action.name, action.reason.value)

    async def _scale(self, keeper: JobKeeper, action: ScaleJob) -> None:
        result = ScaleResult(decision_id=action.decision_id, ok=True)
        body = {"spec": {"replicas": action.replicas}}
        try:
            path = f"{self._job(keeper)}/scale?fieldManager={MANAGER}"
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
        try:
            await self._client.call("DELETE", self._job(keeper), body)
        except RefusedError as error:
            if not error.is_gone:
                raise

    def _path(self, keeper: JobKeeper, kind: str) -> str:
        return f"/api/v1/namespaces/{keeper.owner.namespace}/{kind}"

    def _job(self, keeper: JobKeeper) -> str:
        where = f"/apis/{keys.API_VERSION}/namespaces/{keeper.owner.namespace}"
        return f"{where}/elasticjobs/{keeper.owner.name}"
