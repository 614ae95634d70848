"""The shell around a job's slices: what it asks of Kueue, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast_operator.credentials import JobCredentials
from holdfast_operator.job_queues import FORBIDDEN, MISSING, JobQueues
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.pods.revision import templates_of
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.credentials import HeldCredentials
from holdfast_operator.state.job_state import JobState, Key
from holdfast_operator.state.status import WrittenStatus
from jobs.job_files import TEMPLATE, job, read
from jobs.pod_objects import pod_object, recorded

_SETTINGS = OperatorSettings(namespace="holdfast", identity="me", image="i")
_QUEUE = "kueue.x-k8s.io/queue-name"


class _Kueue(KubeClient):
    """An API server with Workloads; refuses what `refusals` names by a part of the path."""

    def __init__(self, refusals: dict[str, int] | None = None) -> None:
        super().__init__(1000.0, 1000)
        self.refusals = refusals or {}
        self.workloads: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.foreign: dict[str, Any] = {"metadata": {}}

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Answer a list; take everything else."""
        self.asked.append(f"{method} {path.rpartition('/')[2]}")
        for part, code in self.refusals.items():
            if part in f"{method} {path}":
                raise ApiRefusedError(f"{method} {path}", code, "No", f"{part} is refused")
        if method == "GET" and "workloads?fieldSelector" in path:
            return {"items": [self.foreign]}
        if method == "GET" and "workloads?" in path:
            return {"items": self.workloads, "metadata": {"resourceVersion": "1"}}
        if method == "GET" and "resourceflavors" in path:
            return {"spec": {"nodeLabels": {"pool": "spot"}}}
        if method == "POST" and self.foreign["metadata"].get("name") == body["metadata"]["name"]:
            raise ApiRefusedError(f"{method} {path}", 409, "AlreadyExists", "it exists")
        return body

    async def watch(self, path: str, patience_s: float) -> AsyncIterator[dict[str, Any]]:
        """Report nothing."""
        await asyncio.sleep(3600)
        yield {}

    def hold(self, name: str, workers: int, *, admitted: bool) -> None:
        """Have a Workload of the job."""
        labels = {"holdfast.dev/job": "t", "holdfast.dev/templates": "r1"}
        labels["holdfast.dev/slice"] = "0" if name == "t-core" else name[-1]
        metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}
        kinds = ("QuotaReserved", "Admitted")
        worker = {"name": "worker", "count": workers, "template": TEMPLATE}
        flavors = {"name": "worker", "flavors": {"cpu": "spot"}}
        self.workloads.append(
            {
                "metadata": {**metadata, "labels": labels, "ownerReferences": [{"uid": "u-1"}]},
                "spec": {"queueName": "gpus", "podSets": [worker]},
                "status": {
                    "admission": {"podSetAssignments": [flavors]} if admitted else None,
                    "conditions": [{"type": kind, "status": str(admitted)} for kind in kinds],
                },
            }
        )


def _state(*pods: PodRecord, labels: dict[str, str] | None = None, **spec: Any) -> JobState:
    found = read(job(**{"replicas": 3, "minReplicas": 1, **spec}))
    body = dict(found.body)
    body["metadata"] = {"name": "t", "namespace": "team", "uid": "u-1", "generation": 1}
    body["metadata"]["labels"] = {_QUEUE: "gpus", **(labels or {})}
    owner = Owner(name="t", namespace="team", uid="u-1")
    state = JobState(
        owner=owner,
        job=found,
        body=body,
        status=WrittenStatus({}),
        credentials=HeldCredentials(JobCredentials(bytes(32), owner, dt.timedelta(days=1))),
        pods_now=lambda _: pods,
        nodes=ClusterNodes(NodeHistory(KubeClient(1.0, 1), _SETTINGS)),
    )
    state.templates.put_in_force("r1", templates_of(found.spec))
    return state


def _pods(count: int) -> list[PodRecord]:
    return [recorded(pod_object(index=index, uid=f"p-{index}")) for index in range(count)]


@contextlib.asynccontextmanager
async def _running(queues: JobQueues) -> AsyncIterator[None]:
    task = asyncio.create_task(queues.run())
    await asyncio.wait_for(queues.first_look(queues._namespace), 5)
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _settle(server: _Kueue, state: JobState) -> tuple[int, str, float | None]:
    """Return the admitted workers, the reason for fewer, and the wait of one look."""
    queues = JobQueues(server, ("",), lambda _: None)
    async with _running(queues):
        wait = await queues.settle(state, _SETTINGS)
    assert state.admission is not None
    return state.admission.workers, state.admission.reason, wait


@pytest.mark.parametrize(("code", "text"), [(404, MISSING), (403, FORBIDDEN)])
async def test_a_cluster_without_kueue_is_named_and_a_job_that_trains_is_kept(
    code: int, text: str
) -> None:
    """A new job must not run outside its quota; one that runs is neither stopped nor grown."""
    server = _Kueue({"workloads": code})
    assert await _settle(server, _state()) == (0, text, None)
    assert await _settle(server, _state(*_pods(2))) == (2, text, None)


async def test_a_refusal_of_kueue_s_webhook_does_not_stop_the_look_at_a_job() -> None:
    """Kueue is down: what trains is kept as it is, the cause is named, and it is tried again."""
    server = _Kueue({"POST": 500})
    server.hold("t-core", 1, admitted=True)
    workers, reason, wait = await _settle(server, _state(*_pods(1)))
    assert workers == 1
    assert reason == "the queue cannot be asked: POST is refused; it is tried again"
    assert wait is not None


async def test_a_priority_class_that_does_not_exist_is_named() -> None:
    """The job waits, and says for what."""
    server = _Kueue({"workloadpriorityclasses": 404})
    state = _state(labels={"kueue.x-k8s.io/priority-class": "gold"})
    workers, reason, _ = await _settle(server, state)
    assert (workers, "workloadpriorityclasses is refused" in reason) == (0, True)


async def test_a_flavor_that_cannot_be_read_stops_no_job() -> None:
    """Its pods could not be placed: they are kept as they are."""
    server = _Kueue({"resourceflavors": 403})
    server.hold("t-core", 1, admitted=True)
    workers, reason, _ = await _settle(server, _state(*_pods(1)))
    assert (workers, "resourceflavors is refused" in reason) == (1, True)


async def test_what_was_admitted_stays_while_a_flavor_cannot_be_read_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker is just lost: the job is not shrunk, and its successor comes to the same flavor."""
    monkeypatch.setattr("holdfast_operator.job_queues._CACHE_SECONDS", 0.0)
    server = _Kueue()
    server.hold("t-core", 1, admitted=True)
    server.hold("t-1", 2, admitted=True)
    state = _state(*_pods(2))
    queues = JobQueues(server, ("",), lambda _: None)
    async with _running(queues):
        await queues.settle(state, _SETTINGS)
        before = state.admission
        server.refusals["resourceflavors"] = 403
        await queues.settle(state, _SETTINGS)
        assert state.admission == before  # by what was read before
        queues._kept.clear()
        await queues.settle(state, _SETTINGS)
    assert before is not None
    assert (before.workers, before.placements["worker"].node_selector) == (3, {"pool": "spot"})
    assert state.admission is not None
    assert "resourceflavors is refused" in state.admission.reason
    assert dataclasses.replace(state.admission, reason="") == before


async def test_a_process_that_knows_nothing_yet_counts_each_rank_once() -> None:
    """A lost pod beside its successor is one worker; a role has the pods that it has."""
    pods = [*_pods(2), recorded(pod_object(index=1, incarnation=1, uid="next"))]
    pods.append(recorded(pod_object("eval", index=1, uid="e")))
    pods[0] = dataclasses.replace(pods[0], memory_limit=2**30)
    role = {"name": "eval", "replicas": 5, "template": TEMPLATE}
    state = _state(*pods, extraRoles=[role])
    assert (await _settle(_Kueue({"workloads": 404}), state))[0] == 2
    assert (state.spec.extra_roles[0].replicas, state.admission.memory) == (2, 2**30)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        ({"kind": "Job", "name": "t", "uid": "j"}, "is not this job's; delete it, or give the job"),
        ({"kind": "ElasticJob", "name": "t", "uid": "j"}, "is an earlier job's of this name"),
    ],
)
async def test_a_workload_of_its_name_that_is_another_s_is_named(
    owner: dict[str, str], text: str
) -> None:
    """The job would wait for a look at it for ever; it is tried again."""
    server = _Kueue()
    server.foreign = {"metadata": {"name": "t-core", "ownerReferences": [owner]}}
    workers, reason, wait = await _settle(server, _state())
    assert (workers, wait is not None) == (0, True)
    assert f"Workload t-core {text}" in reason.replace("exists and ", "")
    server.foreign["metadata"]["ownerReferences"] = [{"uid": "u-1"}]
    assert await _settle(server, _state()) == (0, "it is being queued", None)


async def test_nothing_is_given_back_while_a_new_pod_may_not_show_yet() -> None:
    """The copy of the cluster lags: a pod that was just made uses quota."""
    server = _Kueue()
    server.hold("t-core", 1, admitted=True)
    server.hold("t-1", 1, admitted=True)
    server.workloads[1]["status"]["conditions"].append({"type": "Evicted", "status": "True"})
    state = _state(*_pods(1))
    state.expect("t-worker-1-0", 1e12)
    await _settle(server, state)
    assert "PATCH status" not in server.asked
    state.expectations.expire(2e12)
    server.workloads[1]["status"]["conditions"][2]["reason"] = "Preempted"
    await _settle(server, state)
    assert "PATCH status" in server.asked


async def test_the_quota_of_a_deleted_workload_is_not_used_though_it_still_shows() -> None:
    """A job scales down, and up again before the watch has told of the deletion."""
    server = _Kueue()
    for name in ("t-core", "t-1", "t-2"):
        server.hold(name, 1, admitted=True)
    queues = JobQueues(server, ("",), lambda _: None)
    async with _running(queues):
        await queues.settle(_state(*_pods(2), replicas=2), _SETTINGS)
        assert "DELETE t-2" in server.asked
        state = _state(*_pods(2))
        await queues.settle(state, _SETTINGS)
    assert state.admission is not None
    assert state.admission.workers == 2


async def test_a_job_whose_queue_changed_gives_its_quota_back() -> None:
    """What it holds is of another queue."""
    server = _Kueue()
    server.hold("t-core", 1, admitted=True)
    state = _state(labels={_QUEUE: "others"})
    workers, reason, _ = await _settle(server, state)
    assert (workers, reason.startswith("its queue or its templates changed")) == (0, True)
    assert "DELETE t-core" in server.asked


async def test_a_job_with_too_many_kinds_of_pods_is_told() -> None:
    """A Workload has room for eight."""
    roles = [{"name": f"e{one}", "replicas": 1, "template": TEMPLATE} for one in range(7)]
    workers, reason, _ = await _settle(_Kueue(), _state(extraRoles=roles))
    assert (workers, "at most 6 extra roles" in reason) == (0, True)


async def test_jobs_that_waited_for_kueue_are_looked_at_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without this they would wait for the next look at all jobs."""
    monkeypatch.setattr("holdfast_operator.job_queues._DISCOVERY_SECONDS", 0.01)
    server, woken = _Kueue({"workloads": 404}), asyncio.Queue[Key]()
    queues = JobQueues(server, ("",), woken.put_nowait)
    async with _running(queues):
        await queues.settle(_state(), _SETTINGS)
        server.refusals.clear()
        assert await asyncio.wait_for(woken.get(), 5) == ("team", "t")


async def test_a_namespace_that_may_not_be_read_keeps_no_other_from_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is asked for Kueue in its turn, and each has its Workloads by itself."""
    monkeypatch.setattr("holdfast_operator.job_queues._DISCOVERY_SECONDS", 0.01)
    server = _Kueue({"/namespaces/gone/": 403})
    queues = JobQueues(server, ("gone", "team"), lambda _: None)
    running = asyncio.create_task(queues.run())
    await asyncio.wait_for(queues.known.wait(), 5)
    while queues._namespace == "gone" or not queues._workloads["team"].synced.is_set():
        await asyncio.wait_for(asyncio.sleep(0.01), 5)
    server.hold("t-core", 1, admitted=True)
    queues._workloads["team"]._take(server.workloads[0])
    state = _state(*_pods(1))
    await queues.settle(state, _SETTINGS)
    assert state.admission is not None
    assert state.admission.workers == 1
    assert not queues._workloads["gone"].synced.is_set()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
