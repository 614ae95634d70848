"""The way of pods to the API server, where a test can put stones: refusals, gaps, slow watches.

Ends TLS with the API server's own certificate and passes requests on with their tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import threading
from typing import Any, Final

import aiohttp
from aiohttp import web

from cluster.control_plane import ControlPlane

_PASSED_ON: Final = ("Authorization", "Content-Type", "Accept", "User-Agent")
_START_SECONDS: Final = 20.0
_CLOSING_SECONDS: Final = 0.25
"""aiohttp closes TLS connections behind its back; without it they are left open with the loop."""


class RoughApi:
    """Serves on a port of its own, in a thread of its own."""

    def __init__(self, plane: ControlPlane, seed: int) -> None:
        """Begin to serve, smoothly."""
        self._plane = plane
        self._chance = random.Random(seed)
        self.refused_share = 0.0
        """Part of the requests that are answered with 429 or 500."""
        self.watch_delay_s = 0.0
        """How long each piece of a watch is held back."""
        self.gap = False
        """Watches break, and nothing can be listed or watched: it is not seen what happens."""
        self.refused = 0
        self.port = 0
        self._watches: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise TimeoutError("the rough API does not begin to serve")

    def open_gap(self) -> None:
        """Break every watch, and let nothing be seen until `close_gap`."""
        self.gap = True
        self._loop.call_soon_threadsafe(self._break_watches)

    def close_gap(self) -> None:
        """Let lists through; the first watch of each kind hears that its version is gone."""
        self._forget = {"pods", "elasticjobs"}
        self.gap = False

    _forget: set[str] = set()  # noqa: RUF012 - replaced, never changed in place

    def stop(self) -> None:
        """End it."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._started.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        folder = self._plane.folder
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        self.port = runner.addresses[0][1]

    async def _close(self) -> None:
        self._break_watches()
        await self._runner.cleanup()
        await self._session.close()
        await asyncio.sleep(_CLOSING_SECONDS)

    def _break_watches(self) -> None:
        for task in self._watches:
            task.cancel()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in {"1", "true"}
        reads_all = request.method == "GET" and request.path.endswith(("/pods", "/elasticjobs"))
        if self.gap and (watch or reads_all):
            return self._refuse(503)
        kind = request.path.rpartition("/")[2]
        if watch and kind in self._forget:
            self._forget = self._forget - {kind}
            return _gone()
        if self._chance.random() < self.refused_share:
            return self._refuse(self._chance.choice([429, 500]))
        if not watch:
            return await self._pass(request, 0.0)
        task = asyncio.ensure_future(self._pass(request, self.watch_delay_s))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)
        return await task

    def _refuse(self, code: int) -> web.Response:
        self.refused += 1
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        headers = {"Retry-After": "1"} if code == 429 else {}
        return web.json_response({**status, "message": "a storm"}, status=code, headers=headers)

    async def _pass(self, request: web.Request, delay_s: float) -> web.StreamResponse:
        headers = {key: request.headers[key] for key in _PASSED_ON if key in request.headers}
        url = f"https://127.0.0.1:{self._plane.ports.api}{request.path_qs}"
        body = await request.read()
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            answer = await self._session.request(
                request.method, url, data=body or None, headers=headers, timeout=timeout
            )
        except aiohttp.ClientError:
            return self._refuse(503)
        async with answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.headers.get("Content-Type", "application/json")
            await response.prepare(request)
            # Either side may break off at any time: then so does this.
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async for chunk in answer.content.iter_any():
                    if delay_s:
                        await asyncio.sleep(delay_s)
                    await response.write(chunk)
                await response.write_eof()
            return response


def _gone() -> web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "message": "too old resource version",
    }
    return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n")
