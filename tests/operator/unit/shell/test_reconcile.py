"""Watch events that lead to looks at a job, without a cluster."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from holdfast_operator import reconcile
from holdfast_operator.events.news import NewsItem
from holdfast_operator.events.recorder import Reporter
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.nodes.strikes import ExcludedNode
from holdfast_operator.plan.inputs import avoided_by
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.pods.revision import templates_of
from holdfast_operator.reconcile import Reconciler
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.job_state import Key
from holdfast_wire.messages import (
    AvoidedHost,
    ClusterStrikes,
    Fence,
    FinishDecision,
    JobStatus,
    MasterSpec,
    NodeStruck,
    PodObservation,
    PodPhase,
    StrikesReported,
)
from jobs.job_files import job, read
from jobs.pod_objects import pod_object, recorded

KEY = ("team", "t")


def _body(uid: str = "u-1", created: str = "2026-01-01T00:00:00Z", **fields: Any) -> dict[str, Any]:
    body = dict(read(job(replicas=2, **fields)).body)
    body["metadata"] = {
        "name": "t",
        "namespace": "team",
        "uid": uid,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": created,
    }
    return body


def _pod(uid: str = "p-1", owner: str = "u-1", role: str = "worker", index: int = 1) -> PodRecord:
    return recorded(pod_object(role, index, owner=owner, uid=uid))


class Server(KubeClient):
    """An API server with at most one job; takes everything that is made, if its job is there."""

    def __init__(self) -> None:
        super().__init__(1000.0, 1000)
        self.job: dict[str, Any] | None = None
        self.conflict = False
        """Every write of the job finds that it was changed meanwhile."""
        self.has_pods = False
        """Every pod that is to be made is there already."""
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and name of the object of each request."""
        self.pods: list[dict[str, Any]] = []
        """Pods that were to be made."""
        self.once: list[str] = []
        """Names of the objects of requests that are not repeated."""

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **options: Any
    ) -> Any:
        """Answer a request; without the job everything about it is 404."""
        name = ((body or {}).get("metadata") or {}).get("name", "")
        if not options.get("may_repeat", True):
            self.once.append(name)
        self.asked.append((method, path, name))
        if method == "POST" and path.endswith("/pods"):
            self.pods.append(body)
        if self.has_pods and method == "POST" and path.endswith("/pods"):
            raise ApiRefusedError(f"{method} {path}", 409, "AlreadyExists", "it is there")
        if "/elasticjobs/" not in path:
            return {"metadata": {}, **(body or {})}
        if self.job is None:
            raise ApiRefusedError(f"{method} {path}", 404, "NotFound", "no such job")
        if method == "PATCH":
            # As the real one: a write of the status looks at the version, and not at the uid.
            given = body["metadata"]["resourceVersion"]
            if self.conflict:
                self._change({})
            if given != self.job["metadata"]["resourceVersion"]:
                raise ApiRefusedError(f"{method} {path}", 409, "Conflict", "there is a newer one")
            self._change(body.get("status") or {})
        return self.job

    def _change(self, status: dict[str, Any]) -> None:
        assert self.job is not None
        metadata = self.job["metadata"]
        metadata = {**metadata, "resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
        status = {**(self.job.get("status") or {}), **status}
        self.job = {**self.job, "metadata": metadata, "status": status}


class Link:
    """A link to a master that is never there; keeps what it should send."""

    def __init__(self, **given: Any) -> None:
        self.refusal: Callable[[Fence], str] = given["refusal"]
        self.heard = given["heard"]
        self.first = given["first"]
        self.sent: list[Any] = []
        self.closed = False
        LINKS.append(self)

    def send(self, message: Any) -> None:
        """Keep a message."""
        self.sent.append(message)

    def hurry(self) -> None:
        """Do nothing: it never tries."""

    async def close(self) -> None:
        """End it."""
        self.closed = True


LINKS: list[Link] = []
PODS: dict[Key, list[PodRecord]] = {}


class Pods(PodReflector):
    """A copy of the pods that shows what a test has put there."""

    def of(self, key: Key) -> list[PodRecord]:
        """Return the pods of a job."""
        return PODS.get(key, [])


@dataclasses.dataclass
class Shell:
    """A reconciler with its surroundings."""

    server: Server
    reconciler: Reconciler
    woken: list[Key]
    settings: OperatorSettings

    def open_links(self) -> int:
        """Links that are still open, one for each job that is kept."""
        return sum(not link.closed for link in LINKS)


@pytest.fixture
async def shell(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Shell]:
    """A reconciler that keeps nothing yet and writes at once.

    Its parameter: settings that are not the default.
    """
    LINKS.clear()
    PODS.clear()
    monkeypatch.setattr(reconcile, "MasterLink", Link)
    server, woken = Server(), list[Key]()
    settings = {"status_period_s": 0.0, **getattr(request, "param", {})}
    chosen = OperatorSettings(namespace="holdfast", identity="a", image="holdfast:1", **settings)
    reconciler = Reconciler(
        chosen,
        server,
        Pods(server, "", lambda _pod, _gone: None),
        Reporter(server, "a"),
        bytes(32),
        woken.append,
    )
    yield Shell(server, reconciler, woken, chosen)
    await reconciler.close()


async def _kept(shell: Shell, body: dict[str, Any]) -> Link:
    """Have a job seen and looked at; return its link."""
    shell.server.job = body
    shell.reconciler.seen(KEY, body, False)
    await shell.reconciler.look(KEY)
    shell.woken.clear()
    return LINKS[-1]


@pytest.mark.parametrize("owner", ["", "u-0"])
async def test_only_its_own_pods_are_told_to_a_master(shell: Shell, owner: str) -> None:
    """A copy for a debugger bears the worker's labels: the master would throw the worker out."""
    link = await _kept(shell, _body())
    shell.reconciler.pod_changed(_pod("p-2", owner), False)
    assert link.sent == []
    assert shell.woken == [KEY]
    shell.reconciler.pod_changed(_pod(), True)
    assert [(one.pod_uid, one.phase) for one in link.sent] == [("p-1", PodPhase.GONE)]


async def test_the_jobs_of_a_namespace_that_is_left_are_forgotten(shell: Shell) -> None:
    """Their links close, and nothing is asked or written; those of other namespaces stay."""
    link = await _kept(shell, _body())
    shell.reconciler.leave("elsewhere")
    assert shell.woken == []
    shell.reconciler.leave(KEY[0])
    assert shell.woken == [KEY]
    assert await shell.reconciler.look(KEY) is None
    assert link.closed
    again = await _kept(shell, _body())
    assert (again is not link, shell.open_links()) == (True, 1)


async def test_a_master_that_is_given_up_is_not_obeyed_any_more(shell: Shell) -> None:
    """From the moment its successor's pod is there, and before that one has said a word."""
    body = _body()
    body["status"] = {"masterPods": 1, "world": {"epoch": 1001}}
    link = await _kept(shell, body)
    assert "epoch 2001" in link.refusal(Fence(epoch=1001, incarnation="a"))
    assert link.refusal(Fence(epoch=2001, incarnation="b")) == ""
    assert "another master" in link.refusal(Fence(epoch=2001, incarnation="c"))


async def test_only_a_masters_pod_is_made_by_a_request_that_is_not_repeated(shell: Shell) -> None:
    """One that was made all the same may be gone again: its epoch would be given twice."""
    await _kept(shell, _body())
    assert shell.server.once == ["t-master-0-0"]


async def test_a_master_that_an_earlier_operator_heard_is_the_least(shell: Shell) -> None:
    """Its epoch stands in the status; the pod of the newest master is there already."""
    body = _body()
    body["status"] = {"masterPods": 2, "world": {"epoch": 2001}}
    shell.server.has_pods = True
    link = await _kept(shell, body)
    assert "epoch 2001" in link.refusal(Fence(epoch=1001, incarnation="a"))
    assert link.refusal(Fence(epoch=2001, incarnation="b")) == ""


async def test_what_an_earlier_operator_made_for_a_job_is_read_and_not_made_again(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two thousand jobs a restart would take twice as many requests."""
    templates = templates_of(read(job(replicas=2)).spec)  # of a ControllerRevision
    metadata = {"name": "it", "uid": "o-1", "ownerReferences": [{"uid": "u-1"}]}
    owned = {"metadata": metadata, "data": templates}
    looked_for: list[str] = []

    async def find(path: str) -> dict[str, Any] | None:
        looked_for.append(path)
        return owned

    monkeypatch.setattr(shell.server, "find", find)
    body = _body() | {"status": {"masterPods": 1, "templateRevision": "t-1"}}
    await _kept(shell, body)
    kinds = ("services", "secrets")
    posted = (one for one in shell.server.asked if one[0] == "POST" and one[1].endswith(kinds))
    assert [name for _, _, name in posted] == ["t-worker-tls-0"]  # which no look has found yet
    assert sum(f"/{kind}/" in path for path in looked_for for kind in kinds) == 4


async def test_the_event_of_a_write_leads_to_no_look(shell: Shell) -> None:
    """The answer to the write was known before."""
    await _kept(shell, _body())
    assert shell.server.job is not None
    shell.woken.clear()
    shell.reconciler.seen(KEY, dict(shell.server.job), False)
    assert shell.woken == []


async def test_a_job_that_went_without_a_word_is_forgotten(shell: Shell) -> None:
    """After a gap of the watch nothing tells of it but the answers to requests."""
    await _kept(shell, _body())
    shell.server.job = None
    edited = _body(suspend=True)
    edited["metadata"]["generation"] = 2
    shell.reconciler.seen(KEY, edited, False)
    assert await shell.reconciler.look(KEY) is None
    assert shell.woken[-1] == KEY
    await shell.reconciler.look(KEY)
    assert shell.open_links() == 0


@pytest.mark.parametrize("shell", [{"resync_s": 0.0}], indirect=True)
async def test_a_suspended_job_that_went_is_asked_for_now_and_then(shell: Shell) -> None:
    """It has no pods, and so nothing that is missed."""
    await _kept(shell, _body(suspend=True))
    await shell.reconciler.look(KEY)
    assert shell.open_links() == 1
    shell.server.job = None
    await shell.reconciler.look(KEY)
    await shell.reconciler.look(KEY)
    assert shell.open_links() == 0


async def test_a_newer_version_that_is_found_by_asking_is_looked_at(shell: Shell) -> None:
    """Its event comes later, and is no news then."""
    await _kept(shell, _body(suspend=True))
    shell.server._change({})
    shell.reconciler._states[KEY].sure_at = float("-inf")  # it was quiet for long
    shell.woken.clear()
    await shell.reconciler.look(KEY)
    assert KEY in shell.woken
    assert shell.server.job is not None
    assert shell.reconciler._jobs.newest(KEY) == shell.server.job


async def test_a_conflict_does_not_end_the_care_for_a_job_that_is_there(shell: Shell) -> None:
    """Something was newer than what the request was made from: it is made again."""
    await _kept(shell, _body())
    edited = _body(suspend=True)
    edited["metadata"]["generation"] = 2
    edited["metadata"]["resourceVersion"] = "90"
    shell.server.job = edited
    shell.reconciler.seen(KEY, edited, False)
    shell.server.conflict = True
    wait = await shell.reconciler.look(KEY)
    assert wait is not None
    assert wait < 1
    assert shell.open_links() == 1


@pytest.mark.parametrize("ends", [True, False])
async def test_no_write_of_a_status_reaches_the_next_job_of_the_name(
    shell: Shell, *, ends: bool
) -> None:
    """Neither an epoch nor an end: the watch may tell of the next job after its first look.

    Its count begins anew: the epoch would be one that a master of the old job had.
    """
    link = await _kept(shell, _body())
    successor = _body("u-2", "2026-01-01T00:00:05Z")
    shell.server.job = successor
    masters = _masters_made(shell)
    shell.reconciler.pod_changed(_pod("m-0", role="master", index=0), True)
    if ends:
        successor["metadata"]["resourceVersion"] = "40"
        link.heard(FinishDecision(succeeded=True, reason="Finished", text="done"))
    assert await shell.reconciler.look(KEY) is None
    assert shell.server.job == successor
    assert _masters_made(shell) == masters


@pytest.mark.parametrize("created", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"])
async def test_a_job_made_anew_is_kept_whatever_is_still_told_of_the_old(
    shell: Shell, created: str
) -> None:
    """The events of two objects of one name come in any order; the old one's end does not count."""
    old, new = _body(), _body("u-2", created)
    first = await _kept(shell, old)
    second = await _kept(shell, new)
    assert (first.closed, second.closed) == (True, False)
    shell.reconciler.seen(KEY, old, False)
    await shell.reconciler.look(KEY)
    shell.reconciler.seen(KEY, old, True)
    await shell.reconciler.look(KEY)
    assert len(LINKS) == 2
    assert not second.closed


async def test_a_job_that_was_made_anew_in_a_gap_leaves_nothing_of_the_old(shell: Shell) -> None:
    """The deletion of a job's new object does not bring the old one back."""
    await _kept(shell, _body())
    await _kept(shell, _body("u-2", "2026-01-01T00:00:05Z"))
    shell.reconciler.seen(KEY, _body("u-2"), True)
    assert await shell.reconciler.look(KEY) is None
    assert len(LINKS) == 2
    assert shell.open_links() == 0


async def test_a_deleted_job_is_not_looked_after(shell: Shell) -> None:
    """Its stream and its certificate go with it."""
    await _kept(shell, _body())
    shell.reconciler.seen(KEY, _body(), True)
    assert await shell.reconciler.look(KEY) is None
    assert shell.open_links() == 0


_MAKES = ("POST", "/pods")


def _status_writes(shell: Shell) -> int:
    return sum(method == "PATCH" and "/status" in path for method, path, _ in shell.server.asked)


def _masters_made(shell: Shell) -> int:
    pods = [name for method, path, name in shell.server.asked if (method, path[-5:]) == _MAKES]
    return sum("-master-" in name for name in pods)


@pytest.mark.parametrize(
    ("shell", "masters", "writes"),
    [
        pytest.param({"status_period_s": 0.0}, 2, 4, id="no period"),
        pytest.param({"status_period_s": 600.0}, 1, 1, id="a long one"),
    ],
    indirect=["shell"],
)
async def test_no_two_writes_of_a_status_share_a_period(
    shell: Shell, masters: int, writes: int
) -> None:
    """An epoch's note, the next one's, the status and the end: all of them wait for it."""
    link = await _kept(shell, _body())
    assert _masters_made(shell) == 1
    shell.reconciler.pod_changed(_pod("m-0", role="master", index=0), True)
    waits = await shell.reconciler.look(KEY)
    assert _masters_made(shell) == masters
    link.heard(FinishDecision(succeeded=False, reason="Stopped", text="by hand"))
    await shell.reconciler.look(KEY)
    assert waits is not None
    assert waits <= 600.0
    assert _status_writes(shell) == writes


def _strike(host: str, cause: str = "Failure") -> NodeStruck:
    return NodeStruck(host=host, cause=cause, unix_time=round(time.time(), 3), text="it crashed")


async def _another(shell: Shell, name: str, node: str) -> Link:
    """Have a job of another name kept, whose worker is on a node."""
    body = _body(f"u-{name}")
    body["metadata"]["name"] = name
    shell.server.job = body
    pod = dataclasses.replace(
        _pod(f"p-{name}", f"u-{name}"), job=name, node=node, name=f"{name}-worker-1-0"
    )
    PODS["team", name] = [pod]
    shell.reconciler.seen(("team", name), body, False)
    await shell.reconciler.look(("team", name))
    return LINKS[-1]


async def test_what_one_jobs_master_reports_reaches_the_masters_of_others_on_the_node(
    shell: Shell,
) -> None:
    """With its job's name: at the beginning of a stream, and while it is open."""
    first = await _another(shell, "one", "a")
    other = await _another(shell, "two", "a")
    far = await _another(shell, "far", "b")
    for link in (other, far):
        link.heard(JobStatus())
        link.sent.clear()
    first.heard(StrikesReported(strikes=(_strike("a"),)))
    assert shell.woken.count(("team", "two")) == 2  # once for its status
    for name in ("one", "two", "far"):
        await shell.reconciler.look(("team", name))
    (told,) = other.sent
    assert [(one.host, one.job, one.cause) for one in told.strikes] == [
        ("a", "team/one", "Failure")
    ]
    assert first.sent == far.sent == []
    await shell.reconciler.look(("team", "two"))
    assert len(other.sent) == 1
    later = await _another(shell, "late", "a")
    assert [type(one) for one in later.first()][:2] == [MasterSpec, ClusterStrikes]
    assert [type(one) for one in far.first()][:2] == [MasterSpec, PodObservation]


@pytest.mark.parametrize("wanted", [True, False])
async def test_new_workers_avoid_a_node_on_which_other_jobs_had_trouble(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    wanted: bool,  # noqa: FBT001 - a column
) -> None:
    """The pod's affinity, an event and the master say so; a job that does not want it goes on."""
    told: list[tuple[str, str]] = []

    def report(_: Reporter, __: Owner, news: Iterable[NewsItem]) -> None:
        told.extend((one.reason, one.text) for one in news if one.reason == "NodeAvoided")

    monkeypatch.setattr(Reporter, "report", report)
    bad = ExcludedNode("bad", 2.0, "Hang 2 in team/x; Straggler 1 in team/y")
    history = NodeHistory(shell.server, shell.settings)
    monkeypatch.setattr(history, "excluded", lambda workers: (bad,) * (workers == 2))
    shell.reconciler = Reconciler(
        shell.settings,
        shell.server,
        Pods(shell.server, "", lambda _pod, _gone: None),
        Reporter(shell.server, "a"),
        bytes(32),
        shell.woken.append,
        ClusterNodes(history),
    )
    link = await _kept(shell, _body(scheduling={"avoidStruckNodes": wanted}))
    await shell.reconciler.look(KEY)
    workers = [pod for pod in shell.server.pods if "-worker-" in pod["metadata"]["name"]]
    assert len(workers) >= 2
    assert {avoided_by(pod["spec"]) for pod in workers} == {("bad",) if wanted else ()}
    text = f"new pods avoid bad until its points are below 1.5: {bad.reason}"
    assert told == [("NodeAvoided", text)] * wanted
    avoided = [one.avoided for one in link.first() if isinstance(one, ClusterStrikes)]
    assert avoided == [(AvoidedHost(host="bad", reason=bad.reason),)] * wanted
    await shell.reconciler.close()
