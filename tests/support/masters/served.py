"""A master's server in the test's own event loop, with a core of the test's choice, over mTLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from holdfast_master.inputs import Input
from holdfast_master.journal.reader import History
from holdfast_master.journal.writer import Journal
from holdfast_master.process import settings as config
from holdfast_master.process.serving import Master, ProcessEnd
from holdfast_wire import channel, codec, errors
from holdfast_wire.errors import Refusal
from holdfast_wire.identity import Identity
from holdfast_wire.messages import (
    Fence,
    Hello,
    SessionRequest,
    SessionResponse,
    SyncRequest,
    SyncResponse,
)
from house.patience import patience
from masters.scripted_core import ScriptedCore
from messages import certificates

JOB = "j1"
USER = Identity(JOB, "user")
OPERATOR = Identity(JOB, "operator")
DEADLINE = 10.0 * patience()


def agent(rank: int) -> Identity:
    """Return the identity of one node's agent."""
    return Identity(JOB, "agent", rank)


class Served:
    """One running server and its clients."""

    def __init__(
        self,
        directory: Path,
        core: ScriptedCore,
        journal: Journal | None,
        history: History,
        settings: dict[str, object],
    ) -> None:
        self.directory = directory
        self.core = core
        tls = certificates.issue(directory, Identity(JOB, "master"))
        base = {"job_name": "job", "job_uid": JOB, "epoch": 1, "incarnation": "m1"}
        files = {"tls_dir": str(tls), "endpoint_file": str(directory / "endpoint")}
        self.config = config.parse({**base, **files, **settings})
        self.master = Master(self.config, core, journal, history)
        self.port = 0
        self.ending: ProcessEnd | None = None
        self._channels: list[grpc.aio.Channel] = []

    def channel(self, identity: Identity, *extra: tuple[str, int]) -> grpc.aio.Channel:
        """Return a new connection of `identity` with `extra` options; closed at the end."""
        credentials = channel.channel_credentials(certificates.issue(self.directory, identity))
        # Of two options with one name gRPC takes the first.
        options = [*extra, *channel.master_channel_options(JOB)]
        made = grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options)
        self._channels.append(made)
        return made

    def agent_stream(self, rank: int) -> AgentStream:
        """Open an agent's stream."""
        return AgentStream(self.channel(agent(rank)), rank)

    def sync_stream(self) -> SyncStream:
        """Open an operator's stream."""
        return SyncStream(self.channel(OPERATOR))

    async def ask(self, method: str, request: object, identity: Identity = USER) -> Any:
        """Call a method of JobService and return the response's twin."""
        call: Any = self.channel(identity).unary_unary(f"/holdfast.v1.JobService/{method}")
        data = await call(codec.encode(request), timeout=DEADLINE)
        kind = codec.proto_of(f"{method}Response")
        return codec.from_proto(kind.FromString(data))

    async def told(self, kind: type, count: int = 1) -> list[Input]:
        """Wait until the core has been told this many inputs of `kind`, and return them.

        kind: class of the input, or of the message that it carries.
        """
        found: list[Input] = await eventually(
            lambda: [
                item
                for item in self.core.inputs
                if isinstance(item, kind) or isinstance(getattr(item, "message", None), kind)
            ],
            lambda found: len(found) >= count,
        )
        return found

    async def close(self) -> None:
        for made in self._channels:
            await made.close()


@contextlib.asynccontextmanager
async def serve(
    directory: Path,
    core: ScriptedCore,
    *,
    journal: Journal | None = None,
    history: History | None = None,
    **settings: object,
) -> AsyncIterator[Served]:
    """Serve `core` until the block ends."""
    served = Served(directory, core, journal, history or History(), settings)
    task = asyncio.create_task(served.master.run())
    try:
        endpoint = directory / "endpoint"
        await eventually(endpoint.exists)
        served.port = json.loads(endpoint.read_text())["port"]
        yield served
    finally:
        served.master.stop()
        served.ending = await asyncio.wait_for(task, DEADLINE)
        await served.close()
        endpoint.unlink()


async def eventually(look: Callable[[], Any], good: Callable[[Any], bool] = bool) -> Any:
    """Return what `look` gives once it is `good`; fail at the deadline with what it gave last."""
    end = asyncio.get_running_loop().time() + DEADLINE
    while not good(seen := look()):
        assert asyncio.get_running_loop().time() < end, f"still {seen!r} after {DEADLINE} s"
        await asyncio.sleep(0.005)
    return seen


async def refusal_of(call: Any) -> Refusal:
    """Await something that must be refused, and return what the status says."""
    try:
        got = await asyncio.wait_for(call, DEADLINE)
    except grpc.RpcError as error:
        return errors.read(error)
    raise AssertionError(f"not refused: {got!r}")


class _Stream:
    """One bidirectional call, in bytes."""

    def __init__(self, made: grpc.aio.Channel, method: str) -> None:
        self.channel = made
        self.call: Any = made.stream_stream(method)()

    async def write(self, data: bytes) -> None:
        await asyncio.wait_for(self.call.write(data), DEADLINE)

    async def read(self) -> Any:
        """Return the next message's bytes, or grpc.aio.EOF."""
        return await asyncio.wait_for(self.call.read(), DEADLINE)

    async def drain(self) -> None:
        """Read to the end."""
        while await self.read() is not grpc.aio.EOF:
            pass


class AgentStream(_Stream):
    """An agent's side of its stream."""

    def __init__(self, made: grpc.aio.Channel, rank: int) -> None:
        super().__init__(made, "/holdfast.v1.AgentService/Session")
        self.rank = rank

    async def send(self, message: Any, fence: Fence | None = None) -> None:
        """Send one message."""
        await self.write(codec.encode(SessionRequest(fence=fence, message=message)))

    async def hello(self, agent_id: str = "a", **fields: Any) -> SessionResponse:
        """Say hello and return the first answer."""
        hello = Hello(job_uid=JOB, node_rank=self.rank, agent_id=agent_id, **fields)
        await self.send(hello)
        return await self.receive()

    async def receive(self) -> SessionResponse:
        """Return the next message."""
        return codec.decode(SessionResponse, await self.read())


class SyncStream(_Stream):
    """An operator's side of its stream."""

    def __init__(self, made: grpc.aio.Channel) -> None:
        super().__init__(made, "/holdfast.v1.OperatorService/Sync")

    async def send(self, message: Any) -> None:
        """Send one message."""
        await self.write(codec.encode(SyncRequest(message=message)))

    async def receive(self) -> SyncResponse:
        """Return the next message."""
        return codec.decode(SyncResponse, await self.read())
