"""What the watches bring to the operator's looks at a job, without a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast_operator import reconcile
from holdfast_operator.job_keeper import Key
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.failures import RefusedError
from holdfast_operator.kube.pods import PodRecord, read_pod
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.news.report import Reporter
from holdfast_operator.reconcile import Reconciler
from holdfast_operator.settings import read_settings
from holdfast_wire.messages import Fence, FinishDecision, PodPhase
from job_files import job, read

KEY = ("team", "t")
NEEDED = {
    "HOLDFAST_OPERATOR_NAMESPACE": "holdfast",
    "HOLDFAST_OPERATOR_IDENTITY": "a",
    "HOLDFAST_OPERATOR_IMAGE": "holdfast:1",
}


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
    labels = {
        "holdfast.dev/job": "t",
        "holdfast.dev/role": role,
        "holdfast.dev/index": str(index),
        "holdfast.dev/incarnation": "0",
    }
    metadata = {
        "name": f"t-{role}-{index}-0",
        "namespace": "team",
        "uid": uid,
        "labels": labels,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    spec = {"containers": [{"name": "worker"}]}
    record = read_pod({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    assert record is not None
    return record


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

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
        """Answer a request; without the job everything about it is 404."""
        name = ((body or {}).get("metadata") or {}).get("name", "")
        self.asked.append((method, path, name))
        if self.has_pods and method == "POST" and path.endswith("/pods"):
            raise RefusedError(f"{method} {path}", 409, "AlreadyExists", "it is there")
        if "/elasticjobs/" not in path:
            return {"metadata": {}, **(body or {})}
        if self.job is None:
            raise RefusedError(f"{method} {path}", 404, "NotFound", "no such job")
        uid = ((body or {}).get("metadata") or {}).get("uid")
        if uid is not None and uid != self.job["metadata"]["uid"]:
            raise RefusedError(f"{method} {path}", 409, "Conflict", "another uid")
        if self.conflict and method == "PATCH":
            raise RefusedError(f"{method} {path}", 409, "Conflict", "there is a newer version")
        return self.job


class Link:
    """A link to a master that is never there; keeps what it should send."""

    def __init__(self, **given: Any) -> None:
        self.refusal: Callable[[Fence], str] = given["refusal"]
        self.heard = given["heard"]
        self.sent: list[Any] = []
        self.closed = False
        LINKS.append(self)

    def send(self, message: Any) -> None:
        """Keep a message."""
        self.sent.append(message)

    async def close(self) -> None:
        """End it."""
        self.closed = True


LINKS: list[Link] = []


@dataclasses.dataclass
class Shell:
    """A reconciler with its surroundings."""

    server: Server
    reconciler: Reconciler
    woken: list[Key]

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
    monkeypatch.setattr(reconcile, "MasterLink", Link)
    server, woken = Server(), list[Key]()
    settings = {"status_period_s": 0.0, **getattr(request, "param", {})}
    reconciler = Reconciler(
        dataclasses.replace(read_settings(NEEDED), **settings),
        server,
        PodReflector(server, "", lambda _pod, _gone: None),
        Reporter(server, "a"),
        bytes(32),
        woken.append,
    )
    yield Shell(server, reconciler, woken)
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


async def test_a_master_that_is_given_up_is_not_obeyed_any_more(shell: Shell) -> None:
    """From the moment its successor's pod is there, and before that one has said a word."""
    body = _body()
    body["status"] = {"masterPods": 1, "world": {"epoch": 1001}}
    link = await _kept(shell, body)
    assert "epoch 2001" in link.refusal(Fence(epoch=1001, incarnation="a"))
    assert link.refusal(Fence(epoch=2001, incarnation="b")) == ""
    assert "another master" in link.refusal(Fence(epoch=2001, incarnation="c"))


async def test_a_master_that_an_earlier_operator_heard_is_the_least(shell: Shell) -> None:
    """Its epoch stands in the status; the pod of the newest master is there already."""
    body = _body()
    body["status"] = {"masterPods": 2, "world": {"epoch": 2001}}
    shell.server.has_pods = True
    link = await _kept(shell, body)
    assert "epoch 2001" in link.refusal(Fence(epoch=1001, incarnation="a"))
    assert link.refusal(Fence(epoch=2001, incarnation="b")) == ""


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


async def test_a_conflict_does_not_end_the_care_for_a_job_that_is_there(shell: Shell) -> None:
    """Something was newer than what the request was made from: it is made again."""
    await _kept(shell, _body())
    edited = _body(suspend=True)
    edited["metadata"]["generation"] = 2
    shell.reconciler.seen(KEY, edited, False)
    shell.server.conflict = True
    with pytest.raises(RefusedError, match="newer"):
        await shell.reconciler.look(KEY)
    assert shell.open_links() == 1


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
    """When the new one is deleted as well, the old one is not taken for the job again."""
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
