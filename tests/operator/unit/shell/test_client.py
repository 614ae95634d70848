"""Requests to an API server in trouble: a small HTTP server that refuses as long as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web

from holdfast_operator.kube.client import JSON, MERGE, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, UnreachableError

Leads = Callable[[str], None]
STORM = 300
"""Events of a storm."""


class Trouble:
    """Refuses the first `refuses` requests with 503."""

    def __init__(self) -> None:
        self.refuses = 0
        self.asked = 0
        self.requests: list[web.Request] = []
        self.bodies: list[str] = []
        self.silence = asyncio.Event()
        """Ends that of a watch."""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request."""
        self.asked += 1
        self.requests.append(request)
        self.bodies.append(await request.text())
        if self.asked <= self.refuses:
            return web.json_response({"reason": "ServiceUnavailable"}, status=503)
        return web.json_response({"metadata": {}})

    async def storm(self, request: web.Request) -> web.StreamResponse:
        """Answer a watch: events that follow each other closely, cut into pieces, and the end."""
        response = web.StreamResponse()
        await response.prepare(request)
        objects = ({"type": "ADDED", "object": {"number": number}} for number in range(STORM))
        text = "".join(f"{json.dumps(one)}\n" for one in objects).encode()
        for begin in range(0, len(text), 37):
            await response.write(text[begin : begin + 37])
            await asyncio.sleep(0.001)
        return response

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Answer a watch: one event, then silence, with the connection open."""
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type": "ADDED", "object": {}}\n')
        await self.silence.wait()
        return response


@pytest.fixture
async def trouble() -> AsyncIterator[tuple[Trouble, str]]:
    """A server and its address."""
    made = Trouble()
    app = web.Application()
    app.router.add_route("GET", "/watched", made.watch)
    app.router.add_route("GET", "/storm", made.storm)
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield made, f"http://{host}:{port}"
    made.silence.set()
    await runner.cleanup()


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leads:
    """Writes the file that leads to an API server."""

    def leads(server: str) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(file))

    return leads


@pytest.fixture
async def client(trouble: tuple[Trouble, str], kubeconfig: Leads) -> AsyncIterator[KubeClient]:
    """A client of that server."""
    kubeconfig(trouble[1])
    made = KubeClient(1000.0, 1000)
    await made.open()
    yield made
    await made.close()


async def test_a_request_is_repeated_while_the_api_server_is_in_trouble(
    client: KubeClient, trouble: tuple[Trouble, str]
) -> None:
    """The answer after the trouble is the answer."""
    server, _ = trouble
    server.refuses = 1
    assert await client.call("POST", "/api/v1/namespaces/n/pods", {}) == {"metadata": {}}
    assert server.asked == 2


async def test_a_request_that_may_not_be_done_twice_is_not_repeated(
    client: KubeClient, trouble: tuple[Trouble, str]
) -> None:
    """What was refused may have been done all the same."""
    server, _ = trouble
    server.refuses = 1
    with pytest.raises(ApiRefusedError, match="503"):
        await client.call("POST", "/api/v1/namespaces/n/pods", {}, may_repeat=False)
    assert server.asked == 1


async def test_a_watch_that_falls_silent_is_given_up(client: KubeClient) -> None:
    """Its connection is open and nothing comes: after its patience it counts as dead."""
    events = client.watch("/watched", 0.3)
    assert await anext(events) == {"type": "ADDED", "object": {}}
    async with asyncio.timeout(10.0):
        with pytest.raises(UnreachableError, match="watch /watched: TimeoutError"):
            await anext(events)


async def test_events_of_a_storm_are_read_together_and_none_is_lost(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in pieces that end anywhere; the process is woken for many of them at once."""
    reads = 0
    readany = aiohttp.StreamReader.readany

    async def counted(reader: aiohttp.StreamReader) -> bytes:
        nonlocal reads
        reads += 1
        return await readany(reader)

    monkeypatch.setattr(aiohttp.StreamReader, "readany", counted)
    monkeypatch.setattr("holdfast_operator.kube.client._TOGETHER_SECONDS", 0.3)
    numbers = [event["object"]["number"] async for event in client.watch("/storm", 60.0)]
    assert numbers == list(range(STORM))
    assert reads < STORM / 4


async def test_a_request_shows_the_token_and_what_is_accepted(
    client: KubeClient, trouble: tuple[Trouble, str]
) -> None:
    """They are those of the kubeconfig; the body is sent as it is."""
    server, _ = trouble
    await client.call("PATCH", "/apis/a/b?c=d", {"spec": {}}, MERGE)
    (request,) = server.requests
    sent = ("Authorization", "Content-Type", "Accept")
    assert [request.headers[name] for name in sent] == ["Bearer secret", MERGE, JSON]
    assert (request.method, request.path_qs) == ("PATCH", "/apis/a/b?c=d")
    assert server.bodies == ['{"spec": {}}']


async def test_a_proxy_of_the_environment_is_used(
    trouble: tuple[Trouble, str], kubeconfig: Leads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of the API server may lead nowhere from here, unless the variable excepts it."""
    server, url = trouble
    kubeconfig("http://api.invalid:6443")
    monkeypatch.setenv("http_proxy", url)
    for excepted, asked in (("", 1), ("api.invalid", 0)):
        monkeypatch.setenv("no_proxy", excepted)
        made = KubeClient(1000.0, 1000)
        await made.open()
        before = server.asked
        if asked:
            assert await made.call("GET", "/version") == {"metadata": {}}
        else:
            with pytest.raises(UnreachableError):
                await made.call("GET", "/version")
        assert server.asked == before + asked
        await made.close()
