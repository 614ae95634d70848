"""A job master that does what a test says: a real gRPC server over mTLS, without decisions.

For cases that the real master cannot be brought into. It answers each hello with a Welcome and
records everything; the test sends orders and waits for messages.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from holdfast_wire import channel, codec, keys
from holdfast_wire.authority import JobAuthority, new_root_key
from holdfast_wire.identity import Identity
from holdfast_wire.messages import (
    CommandDone,
    Fence,
    Hello,
    Leave,
    PrepareStore,
    SessionRequest,
    SessionResponse,
    StorePrepared,
    Warmed,
    Welcome,
    WorkerExited,
    WorldAssignment,
)
from holdfast_wire.v1 import agent_pb2_grpc
from house.patience import patience

Message = TypeVar("Message")

LOOPBACK = "127.0.0.1"
DEADLINE_SECONDS = 60.0 * patience()


class Identities:
    """Certificates of one job, in files."""

    def __init__(self, folder: Path, job_uid: str) -> None:
        self.job_uid = job_uid
        self._folder = folder
        self._now = dt.datetime.now(dt.UTC)
        self._authority = JobAuthority(new_root_key(), job_uid, self._now)

    def files(self, role: str, index: int | None = None) -> Path:
        """Return a directory with a certificate for `role`."""
        path = self._folder / f"{role}-{index}"
        identity = Identity(self.job_uid, role, index)
        self._authority.issue(identity, self._now, dt.timedelta(days=1), (LOOPBACK,)).write(path)
        return path


class AgentStream:
    """One agent's stream as the master sees it."""

    def __init__(self, first: SessionRequest, master: ScriptedMaster) -> None:
        assert isinstance(first.message, Hello)
        self.hello = first.message
        self.hello_fence = first.fence
        self.received: list[SessionRequest] = []
        self.outgoing: asyncio.Queue[SessionResponse | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._master = master

    def take(self, request: SessionRequest) -> None:
        """Record a request."""
        self.received.append(request)
        self._changed.set()

    def send(self, message: Any, round_number: int = 0, epoch: int | None = None) -> None:
        """Send a message with this master's fence."""
        fence = Fence(
            epoch=self._master.epoch if epoch is None else epoch,
            incarnation=self._master.incarnation,
            round=round_number,
        )
        self.outgoing.put_nowait(SessionResponse(fence=fence, message=message))

    def close(self) -> None:
        """End the stream from the master's side."""
        self.outgoing.put_nowait(None)

    def all(self, kind: type[Message]) -> list[Message]:
        """Return the messages of a kind so far."""
        return [r.message for r in self.received if isinstance(r.message, kind)]

    async def wait(
        self,
        kind: type[Message],
        accept: Callable[[Message], bool] = lambda _: True,
        within: float = DEADLINE_SECONDS,
    ) -> Message:
        """Return the first message of a kind that `accept` takes, past ones included."""
        async with asyncio.timeout(within):
            while True:
                self._changed.clear()
                for message in self.all(kind):
                    if accept(message):
                        return message
                await self._changed.wait()

    async def exited(self, rank: int) -> WorkerExited:
        """Wait for the exit of a global rank."""
        return await self.wait(WorkerExited, lambda m: m.rank == rank)

    async def done(self, command_id: int) -> CommandDone:
        """Wait for the answer to a command."""
        return await self.wait(CommandDone, lambda m: m.command_id == command_id)

    async def prepare_store(self, store_id: str) -> StorePrepared:
        """Have the agent prepare a store."""
        self.send(PrepareStore(store_id=store_id))
        return await self.wait(StorePrepared, lambda m: m.store_id == store_id)

    async def warm(self) -> None:
        """Wait until the agent's zygote is ready."""
        if not self.hello.warm:
            await self.wait(Warmed)


class ScriptedMaster(agent_pb2_grpc.AgentServiceServicer):
    """The server. Use `start` and `stop`, or the `scripted_master` fixture."""

    def __init__(self, identities: Identities, epoch: int = 1, incarnation: str = "one") -> None:
        self.identities = identities
        self.epoch = epoch
        self.incarnation = incarnation
        self.welcome = Welcome(
            heartbeat_seconds=0.2,
            lease_seconds=60.0,  # a busy machine stands still for seconds
            masterless_limit_seconds=600.0,
            stop_grace_seconds=5.0,
            job_name="job",
        )
        self.sends_away: Leave | None = None
        """Said to every agent in place of a Welcome."""
        self.welcome_round: Callable[[Hello], int] = lambda hello: hello.round
        self.streams: list[AgentStream] = []
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._joined = asyncio.Event()

    async def start(self, port: int = 0) -> None:
        """Listen; on a given port to take over from a predecessor."""
        server = grpc.aio.server(options=channel.SERVER_OPTIONS)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)
        credentials = channel.server_credentials(self.identities.files(keys.ROLE_MASTER))
        self.port = server.add_secure_port(f"{LOOPBACK}:{port}", credentials)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """End all streams and stop listening."""
        if self._server is not None:
            await self._server.stop(None)

    @property
    def endpoint(self) -> str:
        """host:port."""
        return f"{LOOPBACK}:{self.port}"

    async def stream(self, number: int = 0, within: float = DEADLINE_SECONDS) -> AgentStream:
        """Return the n-th stream that said hello, from 0."""
        async with asyncio.timeout(within):
            while len(self.streams) <= number:
                self._joined.clear()
                await self._joined.wait()
        return self.streams[number]

    async def warm_stream(self, number: int = 0, within: float = 90.0 * patience()) -> AgentStream:
        """Return the n-th stream once its agent's zygote is ready."""
        stream = await self.stream(number, within)
        await stream.warm()
        return stream

    async def Session(  # type: ignore[override]  # writes by its context
        self, request_iterator: Any, context: Any
    ) -> None:
        """Serve one agent."""
        opening: SessionRequest = codec.from_proto(await anext(request_iterator))
        stream = AgentStream(opening, self)
        fence = Fence(epoch=self.epoch, incarnation=self.incarnation)
        round_number = self.welcome_round(stream.hello)
        welcome = Welcome(
            **{
                **{name: getattr(self.welcome, name) for name in self.welcome.__slots__},
                "round": round_number,
            }
        )
        first = SessionResponse(fence=fence, message=self.sends_away or welcome)
        await context.write(codec.to_proto(first))
        self.streams.append(stream)
        self._joined.set()
        reader = asyncio.create_task(self._read(stream, request_iterator))
        try:
            while (response := await stream.outgoing.get()) is not None:
                await context.write(codec.to_proto(response))
        finally:
            reader.cancel()
            stream.ended.set()

    async def _read(self, stream: AgentStream, requests: Any) -> None:
        async for message in requests:
            stream.take(codec.from_proto(message))
        stream.ended.set()
        stream.close()


def assignment(
    store: StorePrepared, *, nproc: int = 2, own_store: bool = True, **fields: Any
) -> WorldAssignment:
    """Return an assignment of a world of one node unless `fields` say otherwise."""
    values: dict[str, Any] = {
        "assignment_id": 1,
        "mode": 1,
        "group_world_size": 1,
        "local_world_size": nproc,
        "world_size": nproc,
        "max_restarts": 3,
        "store_host": store.host,
        "store_port": store.port,
        "store_id": store.store_id if own_store else "",
        "reason": "test",
    }
    return WorldAssignment(**{**values, **fields})
