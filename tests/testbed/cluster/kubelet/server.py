"""A node's own HTTPS server: logs, exec and port-forward, which the API server passes on."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from cluster.kubelet.container import Container
from cluster.kubelet.forward import forward
from cluster.kubelet.node import Node
from cluster.kubelet.pod import Pod
from cluster.kubelet.refusals import refuse

_POLL_SECONDS: Final = 0.05
_CHUNK: Final = 65536
_EXEC: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR = (bytes([channel]) for channel in range(4))
_CLOSE: Final = b"\xff"


class NodeServer:
    """The server of one node."""

    def __init__(self, node: Node, papers: Path) -> None:
        self._node = node
        self._papers = papers
        application = web.Application(middlewares=[refuse])
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        application.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        for method in ("GET", "POST"):  # websockets come by GET, bare SPDY by POST
            place = "/portForward/{namespace}/{pod}"
            application.router.add_route(method, place, self._forward)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> None:
        """Serve, at any free port, which the node then names."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._papers / "server.crt", self._papers / "server.key")
        await self._runner.setup()
        await web.TCPSite(self._runner, self._node.address, 0, ssl_context=context).start()
        self._node.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close it."""
        await self._runner.cleanup()

    def _pod(self, request: web.Request) -> Pod:
        words = request.match_info
        pod = self._node.find(words["namespace"], words["pod"])
        if pod is None:
            raise web.HTTPNotFound(text=f"pod {words['pod']} is not here")
        return pod

    def _container(self, request: web.Request) -> tuple[Pod, Container]:
        pod = self._pod(request)
        name = request.match_info["container"]
        container = pod.container(name)
        if container is None:
            raise web.HTTPNotFound(text=f"pod {pod.name} has no container {name}")
        return pod, container

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        pod, container = self._container(request)
        file = pod.logs / f"{container.state.name}.log"
        if not file.exists():
            raise web.HTTPNotFound(text=f"container {container.state.name} has not started")
        response = web.StreamResponse()
        await response.prepare(request)
        data = file.read_bytes()
        sent = len(data)
        if "tailLines" in request.query:
            count = int(request.query["tailLines"])
            data = b"".join(data.splitlines(keepends=True)[-count:] if count else [])
        await response.write(data)
        while request.query.get("follow") == "true":
            running = not container.state.finished
            data = file.read_bytes()[sent:]
            sent += len(data)
            if data:
                await response.write(data)
            elif not running:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        _, container = self._container(request)
        if container.pid is None:
            raise web.HTTPBadRequest(text=f"container {container.state.name} is not running")
        socket = web.WebSocketResponse(protocols=_EXEC, max_msg_size=0)
        await socket.prepare(request)
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(container.pid), "-a", "--root", "--wd"),
            *request.query.getall("command"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        typing = asyncio.create_task(_type(socket, process.stdin))
        await asyncio.gather(
            _show(socket, process.stdout, _STDOUT), _show(socket, process.stderr, _STDERR)
        )
        code = await process.wait()
        await socket.send_bytes(_ERROR + json.dumps(_outcome(code)).encode())
        await socket.close()
        typing.cancel()
        return socket

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        pod = self._pod(request)
        if pod.space is None:
            raise web.HTTPBadRequest(text=f"pod {pod.name} is not running")
        return await forward(request, functools.partial(pod.space.dial, "127.0.0.1"))


async def _type(socket: web.WebSocketResponse, stdin: asyncio.StreamWriter) -> None:
    async for message in socket:
        if message.data[:1] == _STDIN:
            stdin.write(message.data[1:])
        elif message.data[:1] == _CLOSE:
            stdin.close()


async def _show(
    socket: web.WebSocketResponse, stream: asyncio.StreamReader, channel: bytes
) -> None:
    while data := await stream.read(_CHUNK):
        await socket.send_bytes(channel + data)


def _outcome(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes: Iterable[dict[str, str]] = [{"reason": "ExitCode", "message": str(code)}]
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {code}",
        "details": {"causes": causes},
    }
