"""kopf asks the address that the operator asks; its first watch makes the operator ready."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

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
