"""Cost of one stream to a master for an operator: memory, and CPU of its pings.

`python -m bench.scale.channels CALLS PING_MS CHANNELS TARGET FOLDER` is the measured process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import grpc

from bench.load.usage import look
from holdfast_wire import channel
from holdfast_wire.identity import Identity
from messages import certificates

_JOB: Final = "bench"
_METHOD: Final = "/holdfast.v1.OperatorService/Sync"
_AT_ONCE: Final = 10
_CALM_SECONDS: Final = 3.0
_WATCHED_SECONDS: Final = 10.0


async def costs(channels: int) -> list[dict[str, Any]]:
    """Measure channels without a call, with the two that a link has, and with rarer pings."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-channels-"))
    server = grpc.aio.server(options=channel.MASTER_SERVER_OPTIONS)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(_serve)
    made = grpc.method_handlers_generic_handler("holdfast.v1.OperatorService", {"Sync": handler})
    server.add_generic_rpc_handlers((made,))
    tls = certificates.issue(folder, Identity(_JOB, "master"))
    port = server.add_secure_port("127.0.0.1:0", channel.server_credentials(tls))
    await server.start()
    try:
        plans = ((0, 1_000), (2, 1_000), (2, 20_000))
        return [await _measured(calls, ms, channels, port, folder) for calls, ms in plans]
    finally:
        await server.stop(None)


async def _serve(_requests: object, context: Any) -> Any:
    yield b""
    await context.read()


async def _measured(
    calls: int, ping_ms: int, channels: int, port: int, folder: Path
) -> dict[str, Any]:
    words = (*map(str, (calls, ping_ms, channels)), f"127.0.0.1:{port}", str(folder))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.scale.channels", *words), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"channels: exit code {child.returncode}")
    figures: dict[str, Any] = json.loads(said)
    return {"calls": calls, "ping_s": ping_ms / 1e3, "channels": channels, **figures}


async def _hold(calls: int, ping_ms: int, channels: int, target: str, folder: Path) -> None:
    tls = certificates.issue(folder, Identity(_JOB, "operator"))
    options = dict(channel.operator_channel_options(_JOB)) | {"grpc.keepalive_time_ms": ping_ms}

    async def connect() -> list[Any]:
        given = list(options.items())
        one = grpc.aio.secure_channel(target, channel.channel_credentials(tls), given)
        await one.channel_ready()
        streams: list[Any] = [one.stream_stream(_METHOD)() for _ in range(calls)]
        for stream in streams:
            await stream.read()
        return [one, *streams, *(asyncio.ensure_future(stream.read()) for stream in streams)]

    async def some(count: int) -> list[list[Any]]:
        found = []
        for _ in range(count // _AT_ONCE):
            found += await asyncio.gather(*(connect() for _ in range(_AT_ONCE)))
        return found

    kept = await some(_AT_ONCE)
    before = look(os.getpid()).rss_mb
    kept += await some(channels)
    await asyncio.sleep(_CALM_SECONDS)
    gc.collect()
    memory, began = look(os.getpid()).rss_mb - before, time.process_time()
    await asyncio.sleep(_WATCHED_SECONDS)
    cpu = (time.process_time() - began) / _WATCHED_SECONDS / len(kept)
    kb, us = round(memory / channels * 1e3, 1), round(cpu * 1e6)
    print(json.dumps({"kb": kb, "cpu_us_per_s": us}), flush=True)


if __name__ == "__main__":
    calls_, ping_, channels_, target_, folder_ = sys.argv[1:]
    asyncio.run(_hold(int(calls_), int(ping_), int(channels_), target_, Path(folder_)))
