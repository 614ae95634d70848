"""Clients of DLRover's master, run in DLRover's environment: its messages, its stubs, its requests.

Each client has a connection of its own as its agents have (gRPC), or one for each call as its HTTP
client has. Prints one JSON line. Imports nothing of Holdfast.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

Call = Callable[[], Awaitable[None]]
"""Sends one message and waits for its answer."""

_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 1)]


def _message(kind: str) -> Any:
    comm: Any = importlib.import_module("dlrover.python.common.comm")

    if kind == "heartbeat":
        return comm.HeartBeat(timestamp=int(time.time()))
    return comm.WaitingNodeNumRequest(rdzv_name="elastic-training")


def _grpc_call(links: list[Any], address: str, number: int, kind: str) -> Call:
    import grpc

    proto: Any = importlib.import_module("dlrover.proto")
    elastic_training_pb2 = proto.elastic_training_pb2

    link = grpc.aio.insecure_channel(address, options=_OPTIONS)
    links.append(link)
    stub = proto.elastic_training_pb2_grpc.MasterStub(link)

    async def call() -> None:
        request = elastic_training_pb2.Message()
        request.node_id, request.node_type = number, "worker"
        request.data = _message(kind).serialize()
        response = await stub.get(request, timeout=60, metadata=[("job_uid", "")])
        if not response.data:
            raise RuntimeError("an empty answer")

    return call


def _http_call(address: str, number: int, kind: str) -> Call:
    requests: Any = importlib.import_module("requests")
    comm: Any = importlib.import_module("dlrover.python.common.comm")

    host, _, port = address.partition(":")

    async def call() -> None:
        base = comm.BaseRequest()
        base.node_id, base.node_type = number, "worker"
        base.data = _message(kind).serialize()
        made = requests.Request("POST", f"http://{address}/get", json=base.to_json()).prepare()
        lines = [f"{name}: {value}" for name, value in made.headers.items()]
        head = "\r\n".join([f"POST /get HTTP/1.1\r\nHost: {address}", *lines, "", ""])
        reader, writer = await asyncio.open_connection(host, int(port))
        body = made.body if isinstance(made.body, bytes) else str(made.body).encode()
        writer.write(head.encode() + body)
        status = await reader.readline()
        length = 0
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            length = int(value) if name.lower() == "content-length" else length
        await reader.readexactly(length)
        writer.close()
        if b" 200 " not in status:
            raise RuntimeError(status.decode())

    return call


async def _client(call: Call, interval: float, end: float, phase: float, found: _Found) -> None:
    due = time.monotonic() + phase * interval
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        began = time.monotonic()
        try:
            await call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
            found.errors.append(repr(error)[:200])
        found.delays.append(time.monotonic() - began)
        due = max(due + interval, time.monotonic())


class _Found:
    def __init__(self) -> None:
        self.delays: list[float] = []
        self.errors: list[str] = []


async def _run(options: SimpleNamespace) -> None:
    links: list[Any] = []
    make = functools.partial(_grpc_call, links) if options.transport == "grpc" else _http_call
    calls = [make(options.address, number, options.message) for number in range(options.clients)]
    gate = asyncio.Semaphore(64)

    async def once(call: Call) -> None:
        async with gate:
            await call()

    await asyncio.gather(*(once(call) for call in calls))
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    found, spread = _Found(), random.Random(1)
    end = time.monotonic() + options.seconds
    interval = options.clients / options.rate
    await asyncio.gather(*(_client(call, interval, end, spread.random(), found) for call in calls))
    sys.stdout.write(json.dumps({"delays": found.delays, "errors": found.errors}) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*(link.close() for link in links))


def main() -> None:
    """Connect, wait for a line on standard input, send for some seconds, print what was seen.

    The command line is JSON: address, transport ("grpc" or "http"), message ("heartbeat" or
    "poll"), clients, rate (messages per second, of all), seconds.
    """
    asyncio.run(_run(SimpleNamespace(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
