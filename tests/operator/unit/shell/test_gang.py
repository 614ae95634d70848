"""A job's workers are scheduled together by what the cluster has."""

from __future__ import annotations

import datetime as dt
import http
from typing import Any

import pytest

from holdfast_operator.credentials import JobCredentials
from holdfast_operator.gangs import Gangs
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.pods.gang import (
    AUTO,
    BACKENDS,
    COSCHEDULING,
    NONE,
    UPSTREAM,
    VOLCANO,
    Gang,
    GangBackend,
    backend_of,
    choose,
    in_force,
)
from holdfast_operator.pods.names import Owner
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.credentials import HeldCredentials
from holdfast_operator.state.job_state import JobState
from holdfast_operator.state.status import WrittenStatus
from jobs.job_files import job, read
from jobs.pod_objects import pod_object, recorded

_OWNER = Owner(name="gpt", namespace="team", uid="u")
_GANG = Gang(owner=_OWNER, least=4, timeout_s=60, priority_class="high", within="zone")
_ALL = {one.api for one in BACKENDS}


@pytest.mark.parametrize(
    ("wanted", "apis", "found"),
    [
        (NONE, _ALL, None),
        (AUTO, _ALL, UPSTREAM),
        (AUTO, {VOLCANO.api}, VOLCANO),
        (AUTO, set(), None),
        ("Coscheduling", {UPSTREAM.api, COSCHEDULING.api}, COSCHEDULING),
    ],
)
def test_a_backend_is_found_by_what_the_cluster_serves(
    wanted: str, apis: set[str], found: GangBackend | None
) -> None:
    """Auto takes the upstream scheduler's first, and does without where there is none."""
    chosen = choose(wanted, apis)
    assert (chosen.backend, chosen.blocked) == (found, False)
    assert bool(chosen.fault) is (wanted == AUTO and not apis)


def test_a_backend_that_is_missing_is_named_with_what_is_there() -> None:
    """A person learns what to install or to write; the job does not start."""
    chosen = choose("Volcano", {UPSTREAM.api})
    assert chosen.blocked
    assert "Volcano needs PodGroups of scheduling.volcano.sh/v1beta1" in chosen.fault
    assert "(it has: Upstream)" in chosen.fault


@pytest.mark.parametrize(
    ("wanted", "living", "found"),
    [
        (NONE, ["Volcano", "Volcano"], VOLCANO),
        (AUTO, ["Volcano", ""], VOLCANO),
        ("Upstream", ["Volcano"], VOLCANO),
        ("Upstream", ["", ""], None),
        (AUTO, [""], None),
        (NONE, [""], None),
    ],
)
def test_living_workers_decide_for_those_that_come_to_them(
    wanted: str, living: list[str], found: GangBackend | None
) -> None:
    """A worker alone in a group of four would wait for ever; an edit holds at the next start."""
    chosen = in_force(wanted, living, _ALL)
    assert (chosen.backend, chosen.blocked) == (found, False)
    assert bool(chosen.fault) is (found is None and wanted != NONE)


@pytest.mark.parametrize(
    ("backend", "spec"),
    [
        (
            UPSTREAM,
            {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "disruptionMode": {"single": {}},
                "priorityClassName": "high",
                "schedulingConstraints": {"topology": [{"key": "zone"}]},
            },
        ),
        (COSCHEDULING, {"minMember": 4, "scheduleTimeoutSeconds": 60}),
        (VOLCANO, {"minMember": 4, "priorityClassName": "high"}),
    ],
)
def test_a_group_has_the_least_size(backend: GangBackend, spec: dict[str, object]) -> None:
    """What has to fit at once is minReplicas, whatever the job's size is now."""
    body = backend.body(_GANG)
    assert (body["apiVersion"], body["spec"]) == (backend.api, spec)
    assert body["metadata"]["name"] == "gpt-worker"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
def test_a_pod_names_its_group(backend: GangBackend) -> None:
    """Each scheduler finds the group in its own place; a template's scheduler stays."""
    pod: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"schedulerName": "mine"}}
    assert backend_of(pod, "gpt-worker") == ""
    backend.additions("gpt-worker").apply(pod)
    assert backend_of(pod, "gpt-worker") == backend.name
    assert backend_of(pod, "other-worker") == ""
    assert pod["spec"]["schedulerName"] == "mine"
    assert pod["metadata"]["labels"]["a"] == "b"


class Server(KubeClient):
    """An API server that serves some PodGroups, and has those that were made."""

    def __init__(self, *backends: GangBackend) -> None:
        super().__init__(1000.0, 1000)
        self.apis = {one.api for one in backends}
        self.groups: dict[str, dict[str, Any]] = {}
        """By path."""
        self.asked: list[str] = []
        self.forbids = False
        self.broken = False

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Answer a request."""
        self.asked.append(method)
        api = "/".join(path.split("/")[2:4])
        if api not in self.apis:
            raise ApiRefusedError(f"{method} {path}", http.HTTPStatus.NOT_FOUND, "NotFound", "")
        if path == f"/apis/{api}":
            return {"resources": [{"name": "podgroups"}]}
        if self.broken:
            raise ApiRefusedError(f"{method} {path}", 500, "InternalError", "conversion failed")
        if self.forbids:
            raise ApiRefusedError(f"{method} {path}", http.HTTPStatus.FORBIDDEN, "Forbidden", "no")
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            metadata = {**body["metadata"], "uid": "g-1"}
            self.groups[path] = {**body, "metadata": metadata}
        if path not in self.groups:
            raise ApiRefusedError(f"{method} {path}", http.HTTPStatus.NOT_FOUND, "NotFound", "")
        if method == "PATCH":
            self.groups[path]["spec"] |= body["spec"]
        return self.groups.pop(path) if method == "DELETE" else self.groups[path]

    @property
    def sizes(self) -> list[int]:
        """What has to fit at once, of each group."""
        specs = [one["spec"] for one in self.groups.values()]
        return [
            one["minMember"] if "minMember" in one else one["schedulingPolicy"]["gang"]["minCount"]
            for one in specs
        ]


def _state(backend: str, *pods: dict[str, Any], **fields: Any) -> JobState:
    settings = OperatorSettings(namespace="holdfast", identity="me", image="i")
    owner = Owner(name="t", namespace="team", uid="u-1")
    found = read(job(scheduling__gang__backend=backend, **fields))
    body = {**found.body, "metadata": {"name": "t", "namespace": "team", "uid": "u-1"}}
    return JobState(
        owner=owner,
        job=found,
        body=body,
        status=WrittenStatus({}),
        credentials=HeldCredentials(JobCredentials(bytes(32), owner, dt.timedelta(days=1))),
        pods_now=lambda _: [recorded(one) for one in pods],
        nodes=ClusterNodes(NodeHistory(KubeClient(1.0, 1), settings)),
    )


def _edit(state: JobState, backend: str = AUTO, **fields: Any) -> None:
    found = read(job(scheduling__gang__backend=backend, **fields))
    state.update({**found.body, "metadata": state.body["metadata"]})


def _worker(backend: GangBackend | None) -> dict[str, Any]:
    pod = pod_object()
    if backend is not None:
        backend.additions("t-worker").apply(pod)
    return pod


async def test_a_group_is_made_once_and_follows_the_size() -> None:
    """A look at a job that is as it was asks for nothing."""
    server, state = Server(COSCHEDULING, VOLCANO), _state(AUTO, replicas=4)
    gangs = Gangs(server)
    assert await gangs.settle(state) is None
    assert (state.grouping.backend, server.sizes) == (COSCHEDULING, [4])
    before = len(server.asked)
    await gangs.settle(state)
    assert len(server.asked) == before
    _edit(state, replicas=6)
    await gangs.settle(state)
    assert server.sizes == [6]


async def test_a_group_that_somebody_deleted_comes_back() -> None:
    """At the next check of the job's objects."""
    server, state = Server(UPSTREAM), _state(AUTO, replicas=4)
    gangs = Gangs(server)
    await gangs.settle(state)
    server.groups.clear()
    state.credentials.look(0.0, hurry=False)
    await gangs.settle(state)
    assert server.sizes == [4]


async def test_a_suspended_job_has_no_group() -> None:
    """Its next start takes what the spec says then; a group that is still going is waited for."""
    server, state = Server(UPSTREAM), _state(AUTO, replicas=4)
    gangs = Gangs(server)
    await gangs.settle(state)
    (going,) = server.groups.items()
    _edit(state, replicas=4, suspend=True)
    await gangs.settle(state)
    assert (state.grouping.backend, server.groups) == (None, {})
    _edit(state, replicas=4)
    going[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    server.groups[going[0]] = going[1]
    assert await gangs.settle(state) == 1.0
    assert state.grouping.blocked
    assert "goes by itself" in state.grouping.fault
    server.groups.clear()
    assert await gangs.settle(state) is None
    assert (state.grouping.blocked, state.grouping.fault, server.sizes) == (False, "", [4])


@pytest.mark.parametrize("backend", [COSCHEDULING, UPSTREAM], ids=lambda one: one.name)
async def test_a_suspended_jobs_group_of_an_operator_before_this_one_goes(
    backend: GangBackend,
) -> None:
    """Else the next start would take its priority and topology. It is looked for once."""
    server, state = Server(backend), _state(AUTO, replicas=4)
    await Gangs(server).settle(state)
    assert server.sizes == [4]
    gangs, state = Gangs(server), _state(AUTO, replicas=4, suspend=True)
    await gangs.settle(state)
    assert server.groups == {}
    before = len(server.asked)
    await gangs.settle(state)
    assert len(server.asked) == before


@pytest.mark.parametrize("wanted", [AUTO, "Volcano"])
async def test_workers_live_on_where_their_groups_are_served_no_more(wanted: str) -> None:
    """The CRD was uninstalled: their successors are made, and the condition says what is amiss."""
    server = Server(VOLCANO)
    gangs = Gangs(server)
    state = _state(wanted, _worker(VOLCANO), replicas=4)
    await gangs.settle(state)
    assert server.sizes == [4]
    server.apis.clear()
    state.credentials.look(0.0, hurry=False)
    assert await gangs.settle(state) == 30.0
    assert (state.grouping.backend, state.grouping.blocked) == (VOLCANO, False)
    assert "cannot be made or changed: POST" in state.grouping.fault


@pytest.mark.parametrize(("workers", "blocked"), [([_worker], False), ([], True)])
async def test_a_group_that_cannot_be_asked_for_blocks_first_workers_only(
    workers: list[Any],
    blocked: bool,  # noqa: FBT001 - a column
) -> None:
    """A job goes on without it: a scheduler's webhook that fails must stop no recovery."""
    server = Server(VOLCANO)
    state = _state("Volcano", *(one(VOLCANO) for one in workers), replicas=4)
    gangs = Gangs(server)
    await gangs.settle(state)
    state.credentials.look(0.0, hurry=False)
    server.broken = True
    assert await gangs.settle(state) == 30.0
    assert (state.grouping.backend, state.grouping.blocked) == (VOLCANO, blocked)
    assert "InternalError" in state.grouping.fault
    server.broken = False
    assert await gangs.settle(state) is None
    assert (state.grouping.fault, state.grouping.blocked) == ("", False)


async def test_workers_without_a_group_stay_without_one() -> None:
    """Nothing is asked of the API server, and the condition says what to do."""
    server, state = Server(UPSTREAM), _state(AUTO, _worker(None), replicas=4)
    await Gangs(server).settle(state)
    assert server.asked == []
    assert state.grouping.backend is None
    assert "suspend the job and resume it" in state.grouping.fault


async def test_workers_in_a_group_stay_in_it() -> None:
    """Though the spec says None now, and after another operator has made them."""
    server, state = Server(*BACKENDS), _state(NONE, _worker(VOLCANO), replicas=4)
    await Gangs(server).settle(state)
    assert (state.grouping.backend, server.sizes) == (VOLCANO, [4])


@pytest.mark.parametrize(("backend", "blocked"), [(AUTO, False), ("Upstream", True)])
async def test_a_group_that_is_refused_blocks_only_who_named_its_scheduler(
    backend: str,
    blocked: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The text is the API server's; it is tried again."""
    server, state = Server(UPSTREAM), _state(backend, replicas=4)
    server.forbids = True
    again = await Gangs(server).settle(state)
    assert again is not None
    assert (state.grouping.backend, state.grouping.blocked) == (None, blocked)
    assert "Forbidden" in state.grouping.fault


async def test_a_group_of_another_owner_is_not_taken() -> None:
    """The text names it."""
    server, state = Server(UPSTREAM), _state("Upstream", replicas=4)
    other = UPSTREAM.body(Gang(owner=state.owner, least=9, timeout_s=1))
    other["metadata"]["ownerReferences"] = []
    server.groups[f"{UPSTREAM.path(state.owner)}/t-worker"] = other
    await Gangs(server).settle(state)
    assert "exists and is not this job's" in state.grouping.fault
    assert server.sizes == [9]
