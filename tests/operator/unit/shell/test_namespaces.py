"""Several watched namespaces: each counts as long as it may be read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from holdfast_operator import main
from holdfast_operator.kube import namespaces
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, UnreachableError
from holdfast_operator.kube.namespaces import WatchedNamespace, WatchedNamespaces
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.settings import Namespaces, OperatorSettings
from jobs.pod_objects import pod_object

NO_ROLE = ApiRefusedError("GET", 403, "Forbidden", "may not")


class Server(KubeClient):
    """Answers for each namespace what it is told to."""

    def __init__(self) -> None:
        super().__init__(1000.0, 1000)
        self.wrong: dict[str, Exception] = {}
        self.asked: list[str] = []

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Refuse where something is wrong."""
        name = path.partition("/namespaces/")[2].partition("/")[0]
        self.asked.append(name)
        if name in self.wrong:
            raise self.wrong[name]
        return {"items": []}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(namespaces, "_RETRY_SECONDS", 0.01)


def _watched(*names: str) -> tuple[WatchedNamespaces, Server]:
    server = Server()
    return WatchedNamespaces(server, names, lambda *_: None), server


async def test_a_job_s_pods_are_found_in_its_namespace() -> None:
    """Whether all namespaces are watched together, or some by themselves."""
    for names in (("",), ("team", "b")):
        made, _ = _watched(*names)
        made.each[0].pods._take(pod_object(index=0, job="gpt", name="gpt-worker-0-0", uid="u"))
        assert [pod.uid for pod in made.of(("team", "gpt"))] == ["u"]
        assert made.of(("b", "gpt")) == []


async def test_the_jobs_of_one_namespace_are_enough_to_begin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every namespace is asked; what refuses is named."""
    made, server = _watched("a", "b")
    server.wrong = {"b": NO_ROLE}
    await asyncio.wait_for(made.until_readable(), 5.0)
    assert [one.refused for one in made.each] == [False, True]
    assert "GET: 403 Forbidden: may not" in caplog.text
    seen = [made.ready]
    made.each[0].pods.synced.set()
    made.each[0].listed.set()
    seen.append(made.ready)
    made.each[1].refused = False  # it counts once it may be read
    seen.append(made.ready)
    assert seen == [False, True, False]


async def test_an_operator_without_any_namespace_is_not_ready() -> None:
    """There is nothing that it could do."""
    made, server = _watched("a", "b")
    server.wrong = {"a": NO_ROLE, "b": NO_ROLE}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(made.until_readable(), 0.1)
    assert not made.ready
    assert len(server.asked) > 2, "it asks again"


def test_a_namespace_that_may_not_be_read_has_no_part_in_the_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its silence would have the kubelet restart an operator that others need."""
    made, _ = _watched("a", "b")
    assert made.silent_s() == 0.0, "none has spoken yet"
    for one in made.each:
        one.pods.synced.set()
        one.pods.last_activity = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: 400.0)
    made.each[0].pods.last_activity = 390.0
    assert made.silent_s() == 300.0
    made.each[1].refused = True
    assert made.silent_s() == 10.0


@pytest.mark.parametrize("error", [UnreachableError("away"), ApiRefusedError("GET", 500, "", "x")])
async def test_an_api_server_in_trouble_takes_no_namespace_away(error: Exception) -> None:
    """Only a refusal does; the watches wait for the API server themselves."""
    made, server = _watched("a", "b")
    waiting = asyncio.create_task(made.each[0].until_refused())
    server.wrong = {"a": error}
    await asyncio.sleep(0.1)
    assert not waiting.done()
    server.wrong = {"a": NO_ROLE}
    await asyncio.wait_for(waiting, 5.0)


async def test_a_namespace_that_is_found_again_counts_once_its_pods_are_listed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its jobs would be looked at with the pods of before, and its silence would be old."""
    settings = OperatorSettings(namespace="h", identity="me", image="i")
    operator = main.Operator(settings)
    made, _ = _watched("a", "b")
    where = made.each[0]
    where.pods.synced.set()
    where.listed.set()
    where.pods.last_activity = time.monotonic() - 1000.0

    async def run() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(where.pods, "run", run)
    seen = [where.ready, made.silent_s() > 999.0]
    reconciler: Any = None  # it may not be asked yet
    looking = asyncio.create_task(operator._look_after(where, reconciler))
    await asyncio.sleep(0.05)
    seen += [where.ready, looking.done()]
    assert made.silent_s() < 10.0
    assert time.monotonic() - where.pods.last_activity < 10.0
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    assert seen == [True, True, False, False]


class Left(list[str]):
    """A reconciler that only notes which namespaces it has left."""

    def leave(self, namespace: str) -> None:
        """Take note."""
        self.append(namespace)


async def test_one_of_several_is_left_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs are forgotten while nobody may read them; its watches begin anew after that."""
    settings = OperatorSettings(
        namespace="h", identity="me", image="i", watch_namespace=Namespaces("a,b")
    )
    operator = main.Operator(settings)
    server, left, begun = Server(), Left(), list[str]()
    where = WatchedNamespace(server, "b", lambda *_: None)

    async def look_after(one: WatchedNamespace, _: Any) -> None:
        begun.append(one.name)
        await asyncio.Event().wait()

    monkeypatch.setattr(operator, "_look_after", look_after)
    reconciler: Any = left
    serving = asyncio.create_task(operator._serve(where, reconciler))
    await _until(lambda: begun == ["b"])
    server.wrong = {"b": NO_ROLE}
    await _until(lambda: left == ["b"])
    assert begun == ["b"]
    server.wrong = {}
    await _until(lambda: begun == ["b", "b"])
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _until(holds: Any) -> None:
    async with asyncio.timeout(5.0):
        while True:
            if holds():
                return
            await asyncio.sleep(0.005)


async def test_a_reflector_says_the_same_error_once_in_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A namespace without a Role would fill the log; another error is said."""
    server = Server()
    pods = PodReflector(server, "a", lambda *_: None)
    for error in (NO_ROLE, NO_ROLE, UnreachableError("away"), NO_ROLE):
        pods._say(error)
    assert [one.levelname for one in caplog.records if one.levelno > 10] == ["WARNING"] * 3
