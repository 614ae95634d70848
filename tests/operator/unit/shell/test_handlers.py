"""kopf asks the address that the operator asks; its first watch makes the operator ready."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

import kopf
import pytest
from aiohttp import web

from holdfast_operator import handlers
from holdfast_operator.main import Operator
from holdfast_operator.settings import OperatorSettings

_NAMED = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t", insecure=True)
_JOBS = "/apis/holdfast.dev/v1alpha1/elasticjobs"


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("10.96.0.1", "https://10.96.0.1:443"),
        ("fd00::1", "https://[fd00::1]:443"),
        ("", "https://kubernetes.default.svc"),
    ],
)
async def test_kopf_asks_the_address_that_the_operator_asks(
    host: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name would need the cluster's DNS, which may be down while everything else works."""
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: _NAMED)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    made = await handlers._login(asyncio.Event())
    assert made is not None
    await made.aiohttp_session.close()
    assert made.server == server
    assert made.aiohttp_session.headers["Authorization"] == "Bearer t"


@pytest.fixture
async def api() -> AsyncIterator[str]:
    """An API server that lists and watches jobs, and refuses a watch from version 0."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=410 if request.query.get("resourceVersion") == "0" else 200)

    application = web.Application()
    application.router.add_get(_JOBS, answer)
    application.router.add_get("/api/v1/namespaces", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_the_operator_is_ready_once_kopf_watches_all_jobs(api: str) -> None:
    """Neither its list, nor the watch of something else, nor a refused one, is enough."""
    operator = Operator(OperatorSettings(namespace="holdfast", identity="me", image="i"))
    assert not operator._ready(), "it may be the only one, and has no Lease yet"
    operator._election.stands_by = True
    assert operator._ready(), "another one works"
    operator._leads = True
    (where,) = operator._watched.each
    where.pods.synced.set()
    made = handlers._session(dataclasses.replace(_NAMED, server=api), where.listed)
    async with made.aiohttp_session as session:
        for path in (
            f"{_JOBS}?limit=500",
            "/api/v1/namespaces?watch=true",
            f"{_JOBS}?watch=true&resourceVersion=0",
        ):
            await session.get(made.server + path)
            assert not operator._ready()
        await session.get(f"{made.server}{_JOBS}?watch=true&resourceVersion=7")
    assert operator._ready()


_VERBS = ["list", "watch", "patch"]
_DISCOVERY: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {
        "resources": [
            {
                "name": "namespaces",
                "singularName": "namespace",
                "kind": "Namespace",
                "namespaced": False,
                "verbs": _VERBS,
            }
        ]
    },
    "/apis": {
        "groups": [
            {
                "name": "holdfast.dev",
                "versions": [{"version": "v1alpha1"}],
                "preferredVersion": {"version": "v1alpha1"},
            }
        ]
    },
    "/apis/holdfast.dev/v1alpha1": {
        "resources": [
            {
                "name": "elasticjobs",
                "singularName": "elasticjob",
                "kind": "ElasticJob",
                "namespaced": True,
                "verbs": _VERBS,
            }
        ]
    },
}


@pytest.fixture
async def cluster() -> AsyncIterator[str]:
    """What kopf asks of an API server: one job in each namespace, and watches without events."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path in _DISCOVERY:
            return web.json_response(_DISCOVERY[request.path])
        if "watch" in request.query:
            watch = web.StreamResponse()
            await watch.prepare(request)
            await over.wait()
            return watch
        namespace = request.path.split("/")[5]
        job = {"metadata": {"namespace": namespace, "name": "gpt", "uid": f"u-{namespace}"}}
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [job]})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    over.set()
    await runner.cleanup()


class Watch:
    """A watch of the real kopf's over one namespace."""

    def __init__(self, namespace: str) -> None:
        self.seen: list[tuple[str, str]] = []
        self.listed = asyncio.Event()
        began = asyncio.Event()
        watching = handlers.watch_jobs(namespace, self._note, began, self.listed)
        self.task = asyncio.create_task(watching)

    def _note(self, key: tuple[str, str], _: Mapping[str, Any], gone: bool) -> None:  # noqa: FBT001
        assert not gone
        self.seen.append(key)


async def test_the_end_of_one_watch_ends_nothing_but_its_own_tasks(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone kopf would end all that was made since: links to masters, and the other watch.

    Nor may it leave a timer that kills this process in ten minutes.
    """
    info = dataclasses.replace(_NAMED, server=cluster)
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: info)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    first = Watch("a")
    await asyncio.wait_for(first.listed.wait(), 10.0)
    own = {one for one in asyncio.all_tasks() if "gpt" in one.get_name() or "@a" in one.get_name()}
    second, link = Watch("b"), asyncio.create_task(asyncio.Event().wait())
    await asyncio.wait_for(second.listed.wait(), 10.0)
    assert (first.seen, second.seen) == ([("a", "gpt")], [("b", "gpt")])
    assert own
    first.task.cancel()
    await asyncio.wait({first.task}, timeout=10.0)
    assert (first.task.done(), second.task.done(), link.done()) == (True, False, False)
    assert all(one.done() for one in own), "what was its own has ended"
    loop: Any = asyncio.get_running_loop()
    armed = [one for one in loop._scheduled if one._callback is signal.pthread_kill]
    assert armed == []
    second.task.cancel()
    link.cancel()
    await asyncio.wait({second.task, link})


async def test_a_watch_ends_with_the_error_that_ended_kopf(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has to end with it, rather than go on without a watch."""
    info = dataclasses.replace(_NAMED, server=cluster)
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: info)
    monkeypatch.setitem(_DISCOVERY, "/apis", {"no": "groups"})
    watch = Watch("a")
    with pytest.raises(KeyError, match="groups"):
        await asyncio.wait_for(watch.task, 10.0)
