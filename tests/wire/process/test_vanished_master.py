"""A master that vanishes with its machine: nothing answers any more, not even its kernel.

Needs a network of its own (root): the master is in a network namespace whose cable is pulled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_wire import channel
from holdfast_wire.identity import Identity
from messages import certificates

JOB = "job-1"
PORT = 5555
HEARTBEAT_SECONDS = 0.5
NOTICED_SECONDS = 12.0
"""TCP gives up after 2 s; without it the agent's own ping would come after a minute."""
SERVER = """
import asyncio, sys
from pathlib import Path
import grpc
from holdfast_wire import channel

async def hear(_, context):
    await context.write(b"welcome")
    while await context.read() is not grpc.aio.EOF:
        pass

async def serve(address, tls):
    server = grpc.aio.server(options=channel.MASTER_SERVER_OPTIONS)
    method = grpc.stream_stream_rpc_method_handler(hear)
    handler = grpc.method_handlers_generic_handler("test.Service", {"Session": method})
    server.add_generic_rpc_handlers((handler,))
    server.add_secure_port(address, channel.server_credentials(Path(tls)))
    await server.start()
    print("serves", flush=True)
    await server.wait_for_termination()

asyncio.run(serve(*sys.argv[1:]))
"""


class Cable:
    """A network namespace, and the pair of interfaces that leads there."""

    def __init__(self) -> None:
        self.name = f"hf{os.getpid()}"
        self._near, self._far = f"{self.name}a", f"{self.name}b"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.address = f"{self._net}.2"

    def lay(self) -> None:
        """Make both ends."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far)
        _ip("link", "set", self._far, "netns", self.name)
        _ip("addr", "add", f"{self._net}.1/24", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", self._far)
        _ip("-n", self.name, "link", "set", self._far, "up")

    def pull(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        _ip("-n", self.name, "addr", "flush", "dev", self._far)

    def remove(self) -> None:
        """Leave nothing."""
        for words in (("link", "del", self._near), ("netns", "del", self.name)):
            with contextlib.suppress(RuntimeError):
                _ip(*words)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def cable() -> Iterator[Cable]:
    """Lay one, or skip."""
    made = Cable()
    try:
        made.lay()
    except (OSError, RuntimeError) as error:
        made.remove()
        pytest.skip(f"no network namespace can be made here: {error}")
    yield made
    made.remove()


@pytest.fixture
def master(cable: Cable, tmp_path: Path) -> Iterator[str]:
    """Serve streams at the far end; the address."""
    tls = certificates.issue(tmp_path, Identity(JOB, "master"))
    target = f"{cable.address}:{PORT}"
    command = ["ip", "netns", "exec", cable.name, sys.executable, "-c", SERVER, target, str(tls)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"serves\n"
            yield target
        finally:
            process.kill()


@pytest.mark.slow
async def test_heartbeats_notice_a_master_whose_machine_is_gone(
    cable: Cable, master: str, tmp_path: Path
) -> None:
    """The stream ends by TCP's own time-out, long before the agent's next ping."""
    options = channel.agent_channel_options(JOB)
    assert int(dict(options)["grpc.keepalive_time_ms"]) > 3_000 * NOTICED_SECONDS
    credentials = channel.channel_credentials(
        certificates.issue(tmp_path, Identity(JOB, "agent", 0))
    )
    async with grpc.aio.secure_channel(master, credentials, options) as link:
        call: Any = link.stream_stream("/test.Service/Session")()

        async def beat() -> None:
            while True:
                await call.write(b"heartbeat")
                await asyncio.sleep(HEARTBEAT_SECONDS)

        beats = asyncio.create_task(beat())
        try:
            assert await call.read() == b"welcome"
            await asyncio.sleep(3 * HEARTBEAT_SECONDS)
            cable.pull()
            async with asyncio.timeout(NOTICED_SECONDS):
                with pytest.raises(grpc.RpcError) as caught:
                    await call.read()
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
    assert isinstance(caught.value, grpc.aio.AioRpcError)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
