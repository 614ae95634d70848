"""The pods' network: a bridge in a namespace of its own, DNS and Services in user space.

Nothing leaves it: pods reach each other, Services and the API server, and neither this machine's
loopback nor anything beyond.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from cluster.kubelet import dns
from cluster.kubelet.client import Client
from cluster.kubelet.spaces import NetworkError, Space

_log = logging.getLogger(__name__)
DNS_ADDRESS: Final = "10.96.0.10"
_FIRST_POD: Final = 10
_CHUNK: Final = 65536
_VANISHED_MS: Final = 2_000
"""As gRPC sets it for an agent's connection."""
_PODS: Final = "10.244"

Backends = list[tuple[str, int]]
Place = tuple[str, int]


class Network:
    """Bridge, DNS server and Service proxy of one cluster."""

    def __init__(self, client: Client, api_port: int) -> None:
        self._client = client
        self._api_port = api_port
        self._space: Space | None = None
        self._services: dict[str, Any] = {}
        self._slices: dict[str, Any] = {}
        self._listeners: dict[Place, tuple[asyncio.Server, Backends]] = {}
        self._changed = asyncio.Event()
        self._last = _FIRST_POD
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the bridge, serve DNS, follow the Services."""
        space = self._space = await Space.make("cluster")
        await space.configure(
            [
                "link set lo up",
                # An address of its own: else it has the lowest of its pods', and each time that
                # changes every pod sends to the old one until its neighbour entry is old, 20 s.
                "link add br0 address 0a:f4:00:00:00:01 type bridge",
                f"addr add {_PODS}.0.1/16 dev br0",
                "link set br0 up",
                "route add local 10.96.0.0/16 dev lo",
            ]
        )
        await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Dns(self._answer), sock=space.listen(DNS_ADDRESS, 53, socket.SOCK_DGRAM)
        )
        follow = self._client.follow
        slices = "/apis/discovery.k8s.io/v1/endpointslices"
        self._tasks = [
            asyncio.create_task(follow("/api/v1/services", self._heard(self._services))),
            asyncio.create_task(follow(slices, self._heard(self._slices))),
            asyncio.create_task(self._serve_services()),
        ]

    async def stop(self) -> None:
        """Let go of everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._space is not None:
            await self._space.close()

    async def attach(self, pod: Space) -> str:
        """Give a pod's namespace an address on the bridge, and return that."""
        assert self._space is not None
        self._last += 1
        number = self._last
        address = f"{_PODS}.{number >> 8}.{number & 255}"
        await self._space.configure(
            [
                f"link add v{number} type veth peer name eth0 netns {pod.pid}",
                f"link set v{number} master br0 up",
            ]
        )
        await pod.configure(
            [
                "link set lo up",
                f"addr add {address}/16 dev eth0",
                "link set eth0 up",
                f"route add default via {_PODS}.0.1",
            ]
        )
        return address

    async def cut(self, address: str) -> None:
        """Let nothing pass to or from an address any more, not even a word that it is gone."""
        assert self._space is not None
        high, low = map(int, address.rsplit(".", 2)[-2:])
        with contextlib.suppress(NetworkError):  # its pod has ended
            await self._space.configure([f"link set v{high << 8 | low} down"])

    def _answer(self, question: bytes) -> bytes:
        return dns.answer(question, self._services, self._slices)

    def _heard(self, objects: dict[str, Any]) -> Callable[[str, Any], None]:
        def heard(kind: str, one: Any) -> None:
            uid = one["metadata"]["uid"]
            if kind == "DELETED":
                objects.pop(uid, None)
            else:
                objects[uid] = one
            self._changed.set()

        return heard

    def _wanted(self) -> dict[Place, Backends]:
        """Each address that answers now. One without endpoints refuses, as with kube-proxy."""
        wanted: dict[Place, Backends] = {}
        for service in self._services.values():
            metadata, spec = service["metadata"], service["spec"]
            if spec.get("clusterIP") in (None, "None", ""):
                continue
            for port in spec.get("ports", ()):
                place = (spec["clusterIP"], port["port"])
                if (metadata["namespace"], metadata["name"]) == ("default", "kubernetes"):
                    wanted[place] = []
                    continue
                found = [
                    (endpoint["addresses"][0], one["port"])
                    for endpoint, ports in dns.endpoints(
                        self._slices, metadata["namespace"], metadata["name"]
                    )
                    for one in ports
                    if (one.get("name") or "") == port.get("name", "")
                ]
                if found:
                    wanted[place] = found
        return wanted

    async def _serve_services(self) -> None:
        assert self._space is not None
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted()
            for place in self._listeners.keys() - wanted.keys():
                self._listeners.pop(place)[0].close()
            for place, backends in wanted.items():
                if place in self._listeners:
                    self._listeners[place][1][:] = backends
                    continue
                current = list(backends)
                server = await asyncio.start_server(
                    self._proxy(current), sock=self._space.listen(*place)
                )
                self._listeners[place] = (server, current)

    def _proxy(self, backends: Backends) -> Callable[..., Any]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert self._space is not None
            try:
                if backends:
                    there = await self._space.dial(*random.choice(backends))
                    # Where a real proxy only rewrites addresses, a client's own TCP would see that
                    # its peer acknowledges nothing; here nobody but the proxy can.
                    link = there[1].get_extra_info("socket")
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_MS)
                else:
                    there = await asyncio.open_connection("127.0.0.1", self._api_port)
            except OSError:
                writer.transport.abort()
                return
            await splice((reader, writer), there)

        return serve


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def splice(one: Stream, other: Stream) -> None:
    """Pass bytes in both directions until both ends are done."""
    await asyncio.gather(_pass(one[0], other[1]), _pass(other[0], one[1]))
    for _, writer in (one, other):
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        with contextlib.suppress(OSError):
            writer.close()


class _Dns(asyncio.DatagramProtocol):
    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        if self._transport is not None:
            try:
                self._transport.sendto(self._answer(data), addr)
            except (IndexError, ValueError):
                _log.warning("a DNS question that is none: %r", data[:64])
