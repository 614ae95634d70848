"""Keeps the Workloads of queued jobs in step with what `slices` decides.

A job has a queue if its object has the label of Kueue. Where Kueue is missing such a job waits: it
must not run outside the quota that its owner asked for.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import http
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from holdfast_operator.kube.client import MERGE, KubeClient, without_managers
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.kube.reflector import Reflector
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.slices import Demand, Placement, Slice, Verdict, judge
from holdfast_operator.pods.pod import master_template
from holdfast_operator.pods.workloads import (
    API,
    LABEL_SLICE,
    PRIORITY,
    QUEUE,
    Priority,
    Request,
    named_flavors,
    path,
    read,
    read_flavor,
    released,
)
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.job_state import JobState, Key
from holdfast_wire import keys
from holdfast_wire.messages import PodPhase

_log = logging.getLogger(__name__)
_DISCOVERY_SECONDS: Final = 30.0
"""Between two looks for a Kueue that is missing."""
_CACHE_SECONDS: Final = 60.0
"""Age at which flavors and priority classes are asked for again."""
MISSING: Final = (
    f"the label {QUEUE} names a queue, but Kueue ({API}) is not in this cluster; install it, or "
    "remove the label"
)
_RETRY_SECONDS: Final = 1.0
_LIVING: Final = frozenset({PodPhase.UNSPECIFIED, PodPhase.PENDING, PodPhase.RUNNING})


class WorkloadReflector(Reflector):
    """Workloads of jobs by namespace and name of the job."""

    def __init__(self, client: KubeClient, namespace: str, heard: Callable[[Key], None]) -> None:
        """Begin without Workloads; `namespace`: the only one, empty: all."""
        where = path(namespace) if namespace else f"/apis/{API}/workloads"
        super().__init__(client, f"{where}?labelSelector={LABEL_SLICE}")
        self._heard = heard
        self._bodies: dict[str, dict[str, Any]] = {}
        self._of: dict[Key, set[str]] = {}

    def of(self, key: Key, owner: str) -> list[dict[str, Any]]:
        """Return the Workloads of a job; `owner`: its uid."""
        return [
            self._bodies[uid] for uid in self._of.get(key, ()) if _owned(self._bodies[uid], owner)
        ]

    def _uids(self) -> Collection[str]:
        return self._bodies.keys()

    def _take(self, body: dict[str, Any]) -> None:
        uid, key = body["metadata"]["uid"], _key(body)
        self._bodies[uid] = without_managers(body)
        self._of.setdefault(key, set()).add(uid)
        self._heard(key)

    def _drop(self, uid: str) -> None:
        body = self._bodies.pop(uid, None)
        if body is None:
            return
        key = _key(body)
        self._of[key].discard(uid)
        if not self._of[key]:
            del self._of[key]
        self._heard(key)


class JobQueues:
    """The queues of all jobs."""

    def __init__(self, client: KubeClient, namespace: str, wake: Callable[[Key], None]) -> None:
        """Know of no Kueue yet.

        namespace: The only one whose jobs are looked after; empty: all.
        wake: Has a job looked at.
        """
        self._client = client
        self._workloads = WorkloadReflector(client, namespace, wake)
        self._namespace = namespace
        self._kept: dict[str, tuple[float, Any]] = {}
        self.known = asyncio.Event()
        """Set once it is known whether Kueue is there, and which Workloads there are."""

    async def run(self) -> None:
        """Look for Kueue, then watch its Workloads for ever."""
        while not await self._discover():
            self.known.set()
            await asyncio.sleep(_DISCOVERY_SECONDS)
        _log.info("jobs with the label %s are admitted by Kueue", QUEUE)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._workloads.run())
            await self._workloads.synced.wait()
            self.known.set()

    async def _discover(self) -> bool:
        """Return True if Kueue is there; without an answer of the API server ask again."""
        while True:
            try:
                await self._client.call("GET", path(self._namespace or "default") + "?limit=1")
            except ApiRefusedError as error:
                if error.code not in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN}:
                    raise
                if error.code == http.HTTPStatus.FORBIDDEN:
                    _log.warning("no right to Kueue's Workloads: %s", error)
                return False
            except KubeError as error:
                _log.warning("Kueue cannot be looked for: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return True

    async def settle(self, state: JobState, settings: OperatorSettings) -> None:
        """Note what a job's queue admits now, and ask for what it lacks; raises KubeError."""
        now = time.time()
        if not state.queue:
            for body in self._workloads.of(state.key, state.owner.uid):  # it had one before
                await self._delete(state.owner.namespace, body["metadata"]["name"])
            state.admits(None, now)
            return
        if not self._workloads.synced.is_set():
            # A job that trains goes on where Kueue was taken away.
            trains = any(pod.slot.role is Role.WORKER for pod in state.pods())
            state.admits(None if trains else Verdict(workers=0, reason=MISSING), now)
            return
        verdict = judge(await self.slices(state.key, state.owner.uid), demand_of(state))
        state.admits(verdict, now)
        if verdict.create or verdict.release or verdict.delete:
            await self.carry_out(verdict, await self._request(state, settings))

    async def _request(self, state: JobState, settings: OperatorSettings) -> Request:
        labels = state.body["metadata"].get("labels") or {}
        pods = state.body["spec"]["scheduling"].get("priorityClassName", "")
        return Request(
            owner=state.owner,
            queue=state.queue,
            priority=await self.priority(labels, pods),
            worker=state.asked.worker_template,
            master=master_template(state.source(settings)),
        )

    async def slices(self, key: Key, owner: str) -> list[Slice]:
        """Return the slices of a job as Kueue has them now; raises KubeError."""
        bodies = self._workloads.of(key, owner)
        flavors = {
            name: await self._flavor(name) for body in bodies for name in named_flavors(body)
        }
        return [read(body, flavors) for body in bodies]

    async def priority(self, labels: Mapping[str, str], pods: str) -> Priority:
        """Return a job's priority: of its label's WorkloadPriorityClass, else of its pods' class.

        pods: PriorityClass of its pods; empty: none is named.
        """
        own = labels.get(PRIORITY)
        if own:
            where = f"/apis/{API}/workloadpriorityclasses/{own}"
            return Priority(await self._value(where), "WorkloadPriorityClass", own)
        if pods:
            where = f"/apis/scheduling.k8s.io/v1/priorityclasses/{pods}"
            return Priority(await self._value(where), "PriorityClass", pods)
        return Priority()

    async def carry_out(self, verdict: Verdict, request: Request) -> None:
        """Make, release and delete Workloads; raises KubeError."""
        owner = request.owner
        for name in verdict.delete:
            await self._delete(owner.namespace, name)
        for name in verdict.release:
            await self._release((owner.namespace, owner.name), owner.uid, name)
        for index, workers in verdict.create:
            body = request.workload(index, workers)
            if await self._client.make(path(owner.namespace), body):
                name = body["metadata"]["name"]
                _log.info("job %s: asked %s for %d workers", owner.name, request.queue, workers)
                _log.debug("job %s: made Workload %s", owner.name, name)

    async def _release(self, key: Key, owner: str, name: str) -> None:
        for body in self._workloads.of(key, owner):
            if body["metadata"]["name"] != name:
                continue
            now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            version = {"resourceVersion": body["metadata"]["resourceVersion"]}
            change = {"metadata": version, "status": released(body, now)}
            await self._client.call("PATCH", f"{path(key[0], name)}/status", change, MERGE)
            _log.info("job %s: gave the quota of %s back", key[1], name)

    async def _delete(self, namespace: str, name: str) -> None:
        try:
            await self._client.call("DELETE", path(namespace, name))
        except ApiRefusedError as error:
            if not error.is_gone:
                raise

    async def _flavor(self, name: str) -> Placement:
        found = await self._cached(f"/apis/{API}/resourceflavors/{name}")
        return read_flavor(found)

    async def _value(self, where: str) -> int:
        found = await self._cached(where)
        return int(found.get("value", 0))

    async def _cached(self, where: str) -> Mapping[str, Any]:
        now = time.monotonic()
        age, found = self._kept.get(where, (-_CACHE_SECONDS, None))
        if found is None or now - age >= _CACHE_SECONDS:
            found = await self._client.call("GET", where)
            self._kept[where] = (now, found)
        return dict(found)


def demand_of(state: JobState) -> Demand:
    """Return what a job asks of its queue, and the pods that it has."""
    asked, size = state.asked, state.asked.size
    pods = [pod for pod in state.pods() if pod.phase in _LIVING]
    return Demand(
        workers=asked.worker_pods,
        least=size.least,
        most=max(size.most, size.desired) + asked.standbys,
        unit=asked.unit,
        pods=sum(pod.slot.role is Role.WORKER for pod in pods),
        master=any(pod.slot.role is Role.MASTER for pod in pods),
        stopped=asked.suspend or state.deleted or state.status.ended,
    )


def _key(body: Mapping[str, Any]) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"].get(keys.LABEL_JOB, "")


def _owned(body: Mapping[str, Any], owner: str) -> bool:
    return any(one["uid"] == owner for one in body["metadata"].get("ownerReferences") or ())
