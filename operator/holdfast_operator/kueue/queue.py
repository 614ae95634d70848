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

from holdfast_operator.kube.client import MERGE, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.kube.reflector import Reflector
from holdfast_operator.kueue.slices import Placement, Slice, Verdict
from holdfast_operator.kueue.workloads import (
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
from holdfast_wire import keys

_log = logging.getLogger(__name__)
_DISCOVERY_SECONDS: Final = 30.0
"""Between two looks for a Kueue that is missing."""
_CACHE_SECONDS: Final = 60.0
"""Age at which flavors and priority classes are asked for again."""
MISSING: Final = (
    f"the label {QUEUE} names a queue, but Kueue ({API}) is not in this cluster; install it, or "
    "remove the label"
)
Key = tuple[str, str]


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
        self._bodies[uid] = body
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
        self._kept: dict[str, tuple[float, Any]] = {}

    @property
    def there(self) -> bool:
        """True once Kueue's Workloads are known."""
        return self._workloads.synced.is_set()

    async def run(self) -> None:
        """Look for Kueue, then watch its Workloads for ever."""
        while True:
            if await self._discover():
                break
            await asyncio.sleep(_DISCOVERY_SECONDS)
        _log.info("jobs with the label %s are admitted by Kueue", QUEUE)
        await self._workloads.run()

    async def _discover(self) -> bool:
        try:
            await self._client.call("GET", f"/apis/{API}")
        except KubeError as error:
            missing = isinstance(error, ApiRefusedError) and error.code == http.HTTPStatus.NOT_FOUND
            if not missing:
                _log.warning("Kueue cannot be looked for: %s", error)
            return False
        return True

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


def _key(body: Mapping[str, Any]) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"].get(keys.LABEL_JOB, "")


def _owned(body: Mapping[str, Any], owner: str) -> bool:
    return any(one["uid"] == owner for one in body["metadata"].get("ownerReferences") or ())
