"""Keeps the Workloads of queued jobs in step with what `slices` decides.

A job has a queue if its object has the label of Kueue. Where Kueue is missing such a job waits: it
must not run outside the quota that its owner asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import http
import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.kube.client import MERGE, KubeClient, only, without_managers
from holdfast_operator.kube.errors import ApiRefusedError, KubeError, NotYetError, TakenError
from holdfast_operator.kube.reflector import Reflector
from holdfast_operator.owned_resources import check_owner
from holdfast_operator.plan.pods import WORKER, Role
from holdfast_operator.plan.slices import CORE, Demand, Placement, Slice, Verdict, judge
from holdfast_operator.pods.pod import master_template
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.pods.workloads import (
    API,
    KIND,
    LABEL_SLICE,
    MOST_EXTRA_ROLES,
    PRIORITY,
    QUEUE,
    Priority,
    Request,
    counted_memory,
    named_flavors,
    path,
    read,
    read_flavor,
    released,
    started,
)
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.job_state import JobState, Key
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
FORBIDDEN: Final = (
    f"the label {QUEUE} names a queue, but the operator may not read Kueue's Workloads; set "
    "kueue.enabled=true among the chart's values, or remove the label"
)
_NOT_READ: Final = "Kueue's Workloads have not been read yet"
_TOO_MANY_ROLES: Final = (
    f"a queued job has at most {MOST_EXTRA_ROLES} extra roles, and this one has {{}}; leave some "
    "out, or remove the label of the queue"
)
_REFUSED: Final = "the queue cannot be asked: {}; it is tried again"
_FIRST_LOOK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 5.0
"""Until a refused request of a job is made again."""


class WorkloadReflector(Reflector):
    """Workloads of jobs by namespace and name of the job."""

    def __init__(self, client: KubeClient, namespace: str, heard: Callable[[Key], None]) -> None:
        """Begin without Workloads; `namespace`: the only one, empty: all."""
        where = path(namespace) if namespace else f"/apis/{API}/workloads"
        super().__init__(client, f"{where}?labelSelector={LABEL_SLICE}")
        self._heard = heard
        self._bodies: dict[str, dict[str, Any]] = {}
        self._of: dict[Key, set[str]] = {}
        self._deleted: set[str] = set()

    def of(self, key: Key, owner: str) -> list[dict[str, Any]]:
        """Return the Workloads of a job that were not deleted; `owner`: its uid."""
        uids = self._of.get(key, set()) - self._deleted
        return [self._bodies[uid] for uid in uids if _owned(self._bodies[uid], owner)]

    def deleted(self, uid: str) -> None:
        """Note a Workload whose deletion does not show yet: its quota may be another job's."""
        if uid in self._bodies:
            self._deleted.add(uid)

    def _uids(self) -> Collection[str]:
        return self._bodies.keys()

    def _take(self, body: dict[str, Any]) -> None:
        uid, key = body["metadata"]["uid"], _key(body)
        self._bodies[uid] = without_managers(body)
        self._of.setdefault(key, set()).add(uid)
        self._heard(key)

    def _drop(self, uid: str) -> None:
        body = self._bodies.pop(uid, None)
        self._deleted.discard(uid)
        if body is None:
            return
        key = _key(body)
        self._of[key].discard(uid)
        if not self._of[key]:
            del self._of[key]
        self._heard(key)


class JobQueues:
    """The queues of all jobs."""

    def __init__(
        self, client: KubeClient, scopes: Sequence[str], wake: Callable[[Key], None]
    ) -> None:
        """Know of no Kueue yet.

        scopes: Namespaces whose jobs are looked after; the one empty name stands for all.
        wake: Has a job looked at.
        """
        self._client = client
        self._workloads = {one: WorkloadReflector(client, one, wake) for one in scopes}
        self._turns = itertools.cycle(scopes)
        """Of several namespaces one may be gone: each is asked for Kueue in its turn."""
        self._namespace = next(self._turns)
        self._wake = wake
        self._kept: dict[str, tuple[float, Any]] = {}
        self._lacks = MISSING
        self._waiting: set[Key] = set()
        """Jobs that wait for Kueue to be found."""
        self.known = asyncio.Event()
        """Set once it is known whether Kueue is there."""

    async def run(self) -> None:
        """Look for Kueue, then watch its Workloads for ever."""
        while not await self._discover():
            self.known.set()
            self._namespace = next(self._turns)
            await asyncio.sleep(_DISCOVERY_SECONDS)
        _log.info("jobs with the label %s are admitted by Kueue", QUEUE)
        self._lacks = _NOT_READ
        async with asyncio.TaskGroup() as group:
            for one in self._workloads.values():
                group.create_task(self._follow(one))
            self.known.set()

    async def _follow(self, workloads: WorkloadReflector) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(workloads.run())
            await workloads.synced.wait()
            for key in [one for one in self._waiting if self._in(one) is workloads]:
                self._waiting.discard(key)
                self._wake(key)

    def _in(self, key: Key) -> WorkloadReflector:
        """Return the Workloads of a job's namespace."""
        return self._workloads.get(key[0]) or self._workloads[""]

    async def first_look(self, scope: str) -> None:
        """Wait until Kueue and a namespace's Workloads are known.

        For a while at most: queued jobs then keep what they have.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK_SECONDS):
                await self.known.wait()
                if self._lacks == _NOT_READ:
                    await self._workloads[scope].synced.wait()

    async def _discover(self) -> bool:
        """Return True if Kueue is there; without an answer of the API server ask again."""
        while True:
            try:
                await self._client.call("GET", path(self._namespace or "default") + "?limit=1")
            except KubeError as error:
                code = error.code if isinstance(error, ApiRefusedError) else 0
                if code == http.HTTPStatus.NOT_FOUND:
                    self._lacks = MISSING
                    return False
                if code == http.HTTPStatus.FORBIDDEN:
                    self._lacks = FORBIDDEN
                    return False
                _log.warning("Kueue cannot be looked for: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return True

    async def settle(self, state: JobState, settings: OperatorSettings) -> float | None:
        """Note what a job's queue admits now, and ask for what it lacks; raises KubeError.

        Returns:
            Seconds after which a refused request has to be made again; None: none was refused.
        """
        now = time.time()
        if not state.queue:
            for body in self._in(state.key).of(state.key, state.owner.uid):  # it had one before
                await self._delete(body)
            state.admits(None, now)
            return None
        demand = demand_of(state)
        if not (state.templates.revision or demand.stopped):
            return None  # nothing of it is made before its templates are known
        if not self._in(state.key).synced.is_set():
            self._waiting.add(state.key)
            state.admits(_kept(state, demand, self._lacks), now)
            return None
        if len(state.asked.extra_roles) > MOST_EXTRA_ROLES:
            reason = _TOO_MANY_ROLES.format(len(state.asked.extra_roles))
            state.admits(Verdict(workers=0, reason=reason), now)
            return None
        verdict, refusal = await self._ask(state, demand, settings)
        if refusal:
            _log.warning("job %s: %s", state.key, refusal)
            verdict = dataclasses.replace(verdict, reason=_REFUSED.format(refusal))
        state.admits(verdict, now)
        return _AGAIN_SECONDS if refusal else None

    async def _ask(
        self, state: JobState, demand: Demand, settings: OperatorSettings
    ) -> tuple[Verdict, str]:
        """Return what may run; and the refusal of a request, which must not stop the job."""
        verdict = _kept(state, demand, "")
        try:
            verdict = judge(await self.slices(state), demand)
            if state.expectations.open:  # pods that were made may not show yet
                verdict = dataclasses.replace(verdict, release=(), delete=())
            for body in self._in(state.key).of(state.key, state.owner.uid):
                name = body["metadata"]["name"]
                if name in verdict.delete:
                    await self._delete(body)
                elif name in verdict.release:
                    await self._report(body, released)
                elif name in verdict.started:
                    await self._report(body, started)
            if verdict.create:
                await self._create(verdict, await self._request(state, settings))
        except ApiRefusedError as error:
            if not error.is_outdated:  # a newer version of the Workload is about to be seen
                return verdict, error.message
        except (NotYetError, TakenError) as error:
            return verdict, str(error)
        return verdict, ""

    async def _request(self, state: JobState, settings: OperatorSettings) -> Request:
        labels = state.body["metadata"].get("labels") or {}
        pods = state.body["spec"]["scheduling"].get("priorityClassName", "")
        return Request(
            owner=state.owner,
            queue=state.queue,
            priority=await self.priority(labels, pods),
            spec=state.asked,
            master=master_template(state.source(settings)),
            revision=state.templates.revision,
        )

    async def slices(self, state: JobState) -> list[Slice]:
        """Return the slices of a job as Kueue has them now; raises KubeError."""
        bodies = self._in(state.key).of(state.key, state.owner.uid)
        names = frozenset[str]().union(*map(named_flavors, bodies))
        flavors = {name: await self._flavor(name) for name in sorted(names)}
        return [read(body, flavors, state.queue, state.templates.revision) for body in bodies]

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

    async def _create(self, verdict: Verdict, request: Request) -> None:
        """Ask for slices; raises TakenError or NotYetError if a name is another's."""
        owner = request.owner
        for index, workers in verdict.create:
            core = None if index == CORE else verdict.placements.get(WORKER)
            body = request.workload(index, workers, core)
            name = body["metadata"]["name"]
            if await self._client.make(path(owner.namespace), body):
                _log.info("job %s: asked %s for %d workers", owner.name, request.queue, workers)
                _log.debug("job %s: made Workload %s", owner.name, name)
                continue
            # A list: the operator has no right to get a single one.
            where = f"{path(owner.namespace)}?fieldSelector=metadata.name%3D{name}"
            for found in (await self._client.call("GET", where))["items"]:
                check_owner(owner, {"kind": KIND, **found})

    async def _report(
        self, body: Mapping[str, Any], change: Callable[[Mapping[str, Any], str], dict[str, Any]]
    ) -> None:
        """Change the status of a Workload, if it is still the one that was judged."""
        metadata = body["metadata"]
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        version = {"resourceVersion": metadata["resourceVersion"]}
        where = f"{path(metadata['namespace'], metadata['name'])}/status"
        changed = {"metadata": version, "status": change(body, now)}
        await self._client.call("PATCH", where, changed, MERGE)
        _log.info("job %s: %s: %s", _key(body)[1], metadata["name"], change.__name__)

    async def _delete(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        try:
            where = path(metadata["namespace"], metadata["name"])
            await self._client.call("DELETE", where, only(metadata["uid"]))
        except ApiRefusedError as error:
            if not error.is_gone:
                raise
        self._in(_key(body)).deleted(metadata["uid"])

    async def _flavor(self, name: str) -> Placement:
        where = f"/apis/{API}/resourceflavors/{name}"
        try:
            return read_flavor(await self._cached(where))
        except ApiRefusedError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            return Placement()

    async def _value(self, where: str) -> int:
        found = await self._cached(where)
        return int(found.get("value", 0))

    async def _cached(self, where: str) -> Mapping[str, Any]:
        now = time.monotonic()
        age, found = self._kept.get(where, (-_CACHE_SECONDS, None))
        if found is None or now - age >= _CACHE_SECONDS:
            try:
                found = await self._client.call("GET", where)
            except ApiRefusedError as error:
                # What was read before is better than a job whose pods cannot be placed.
                if found is None or error.code == http.HTTPStatus.NOT_FOUND:
                    raise
                _log.warning("%s; what was read before counts", error)
            self._kept[where] = (now, found)
        return dict(found)


def _kept(state: JobState, demand: Demand, reason: str) -> Verdict:
    """Return what a job has: without an answer of its queue it neither grows nor stops.

    What was admitted before counts, as nobody but this operator gives it back. A process that has
    seen nothing of it yet takes the pods for it.
    """
    if state.admission is not None:
        return dataclasses.replace(
            state.admission, create=(), release=(), started=(), delete=(), reason=reason
        )
    ranks = set(demand.ranks)
    roles: dict[str, int] = {}
    memory = 0
    for pod in _using(state):
        if pod.slot.role is Role.WORKER:
            memory = max(memory, pod.memory_limit)
        elif pod.slot.role is Role.EXTRA:
            roles[pod.slot.name] = max(roles.get(pod.slot.name, 0), pod.slot.index + 1)
    workers = max(len(ranks), demand.least) if ranks else 0
    return Verdict(workers=workers, roles=roles, memory=memory, reason=reason)


def _using(state: JobState) -> list[PodRecord]:
    """Return the pods that use quota: one that is being deleted until its object is gone."""
    return [pod for pod in state.pods() if pod.occupies or pod.deleting]


def demand_of(state: JobState) -> Demand:
    """Return what a job asks of its queue, and the pods that it has."""
    asked, size = state.asked, state.asked.size
    pods = _using(state)
    workers = [pod for pod in pods if pod.slot.role is Role.WORKER]
    return Demand(
        workers=asked.worker_pods,
        least=size.least,
        most=max(size.most, size.desired) + asked.standbys,
        unit=asked.unit,
        ranks=tuple(pod.slot.index for pod in workers),
        ready=sum(pod.ready and not pod.deleting for pod in workers),
        others=len(pods) > len(workers),
        stopped=asked.suspend or state.deleted or state.status.ended,
        roles={role.name: role.replicas for role in asked.extra_roles},
        memory=counted_memory(asked),
    )


def _key(body: Mapping[str, Any]) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"].get(keys.LABEL_JOB, "")


def _owned(body: Mapping[str, Any], owner: str) -> bool:
    return any(one["uid"] == owner for one in body["metadata"].get("ownerReferences") or ())
