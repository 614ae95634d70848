"""One agent as the master sees it: a certificate, a connection and a stream of its own.

It says what a real agent says and when it would say it; its workers are pretended. Protobuf is used
directly: a generator of ten thousand agents has to share two cores with what it measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol

import grpc

from holdfast_agent.decide import reconnect
from holdfast_agent.session import (
    TRANSIENT,
    connected,
    longer,
)
from holdfast_wire import channel
from holdfast_wire.v1 import agent_pb2, fence_pb2

SESSION = "/holdfast.v1.AgentService/Session"
SPAWN_SECONDS = 0.05
"""From an assignment to running workers: what killing and forking takes."""
STEP_SECONDS = 0.5
SLOW_READER_OPTIONS = [("grpc.http2.lookahead_bytes", 1_024), ("grpc.http2.bdp_probe", 0)]
"""gRPC reads ahead for an application that does not read; not for one that is to be seen."""


Reaction = Callable[["Agent", Any, fence_pb2.Fence], Coroutine[Any, Any, None]]
"""What an agent does at a message and its fence."""


class Ledger(Protocol):
    """Who keeps the accounts of all agents of a process."""

    target: str
    job_uid: str
    ranks: int
    sent: int
    late_max: float

    def welcomed(self) -> None:
        """A Welcome came."""

    def stream_ended(self, reason: str, *, was_up: bool) -> None:
        """A stream ended, or could not be had."""

    def assigned(self, round_number: int) -> None:
        """A place in a world came."""

    def killed(self) -> None:
        """Workers had to be killed although no new world was there."""

    def left(self, reason: str) -> None:
        """The master sent an agent away."""


class Agent:
    """One node; trains as soon as it has a world."""

    def __init__(
        self,
        ledger: Ledger,
        rank: int,
        credentials: grpc.ChannelCredentials,
        *,
        held: bool = False,
        slow: bool = False,
    ) -> None:
        """Make an agent.

        Args:
            ledger: keeps the accounts.
            rank: node rank, as in the certificate.
            credentials: the agent's own.
            held: it is not warm before `warm` is called.
            slow: gRPC reads nothing ahead, so that `deafen` is seen by the master.
        """
        self.up = False
        """Between a Welcome and the end of its stream."""
        self._ledger = ledger
        self._rank = rank
        self._credentials = credentials
        self._warm = not held
        self._slow = slow
        self._hearing = asyncio.Event()
        self._hearing.set()
        self._jitter = random.Random(rank)
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._patience = reconnect.WELCOME_SECONDS
        self._interval = 0.5
        self._crowd = 1
        self._running = False
        self._began = time.monotonic()
        self._loss = 1.0
        self._digest: Any = None
        self._assignment: Any = None
        self._fence = fence_pb2.Fence()
        self._sequence = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and go on until `close`."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End without a word."""
        tasks = [task for task in (self._task, self._starting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def deafen(self) -> None:
        """Read no more."""
        self._hearing.clear()

    async def warm(self) -> float:
        """Say that a round may start here; the monotonic time just before."""
        self._warm = True
        return await self._send(warmed=agent_pb2.Warmed(seconds=1.0))

    async def fail(self) -> float:
        """Say that a worker died by a signal; the monotonic time just before."""
        exited = agent_pb2.WorkerExited(rank=self._rank, pid=1000, exit_code=-9, step=self._step())
        self._running = False
        return await self._send(worker_exited=exited)

    async def tell_loss(self, loss: float) -> float:
        """Send a heartbeat with this loss now; the monotonic time just before."""
        self._loss = loss
        return await self._beat()

    # ----------------------------------------------------------------------------- the stream

    async def _run(self) -> None:
        attempt = 0
        while True:
            refused = False
            try:
                reason = await self._one_stream()
            except TimeoutError:
                reason = "no Welcome in time"
                self._patience = longer(self._patience)
            except TRANSIENT as error:
                refused = isinstance(error, ConnectionError)
                code = getattr(error, "code", None)
                reason = str(code()) if callable(code) else type(error).__name__
            self._ledger.stream_ended(reason, was_up=self.up)
            attempt = 0 if self.up else attempt + 1
            self.up = False
            share, crowd = self._jitter.random(), self._crowd
            await asyncio.sleep(reconnect.delay(attempt, share, refused=refused, crowd=crowd))

    async def _one_stream(self) -> str:
        limit = reconnect.connect_deadline(self._crowd)
        options = channel.master_channel_options(self._ledger.job_uid, limit)
        if self._slow:
            options += SLOW_READER_OPTIONS
        target = self._ledger.target
        async with grpc.aio.secure_channel(target, self._credentials, options) as link:
            await connected(link, 2 * limit)
            call: Any = link.stream_stream(SESSION)()
            beating: asyncio.Task[None] | None = None
            try:
                async with asyncio.timeout(self._patience):
                    self._call = call
                    await self._send(hello=self._hello())
                    data = await call.read()
                while data is not grpc.aio.EOF:
                    await self._take(agent_pb2.SessionResponse.FromString(data))
                    if beating is None:
                        beating = asyncio.create_task(self._beat_for_ever())
                    await self._hearing.wait()
                    data = await call.read()
                return str(await call.code())
            finally:
                self._call = None
                if beating is not None:
                    beating.cancel()
                call.cancel()

    async def _send(self, **message: Any) -> float:
        """Send one message; the monotonic time just before."""
        data = agent_pb2.SessionRequest(fence=self._fence, **message).SerializeToString()
        began = time.monotonic()
        async with self._writing:
            if self._call is not None:
                self._ledger.sent += 1
                await self._call.write(data)
        return began

    async def _beat_for_ever(self) -> None:
        # Real agents start at moments of their own, and so their heartbeats are spread.
        due = time.monotonic() + self._jitter.random() * self._interval
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            self._ledger.late_max = max(self._ledger.late_max, now - due)
            with contextlib.suppress(*TRANSIENT):
                await self._beat()
            due = max(due, now) + self._interval

    async def _beat(self) -> float:
        ranks = [self._progress(local) for local in range(self._ledger.ranks)]
        heartbeat = agent_pb2.Heartbeat(sequence=next(self._sequence))
        if self._running:
            heartbeat.ranks.extend(ranks)
        return await self._send(heartbeat=heartbeat)

    def _progress(self, local: int) -> agent_pb2.RankProgress:
        step = self._step()
        return agent_pb2.RankProgress(
            local_rank=local,
            round=self._fence.round,
            step=step,
            step_seconds=STEP_SECONDS,
            since_step_seconds=0.25,
            samples=64 * step,
            loss=self._loss,
            section=agent_pb2.RANK_SECTION_TRAIN,
            has_sdk=True,
            pid=1000 + local,
            first_step=1,
            first_step_seconds=1.5,
        )

    def _step(self) -> int:
        return 1 + int((time.monotonic() - self._began) / STEP_SECONDS)

    def _hello(self) -> agent_pb2.Hello:
        hello = agent_pb2.Hello(
            job_uid=self._ledger.job_uid,
            node_rank=self._rank,
            agent_id=f"agent-{self._rank:05}-of-the-load-benchmark",
            pod_uid=f"pod-{self._rank:05}-of-the-load-benchmark",
            agent_pid=1,
            host=f"host-{self._rank}",
            address="127.0.0.1",
            version="0.1.0",
            local_world_size=self._ledger.ranks,
            warm=self._warm and self._fence.epoch > 0,
            unmanaged=True,
            round=self._fence.round,
        )
        if self._running:
            hello.step = self._step()
            for local in range(self._ledger.ranks):
                hello.workers.add(local_rank=local, pid=1000 + local, round=self._fence.round)
            hello.assignment.CopyFrom(self._assignment)
        if self._digest is not None:
            hello.digest.CopyFrom(self._digest)
        return hello

    # --------------------------------------------------------------------- what the master says

    async def _take(self, response: agent_pb2.SessionResponse) -> None:
        kind = response.WhichOneof("message")
        react = self._REACTIONS.get(kind or "")
        if react is not None:
            await react(self, getattr(response, kind or ""), response.fence)

    async def _welcome(self, message: agent_pb2.Welcome, fence: fence_pb2.Fence) -> None:
        self._interval = message.heartbeat_seconds
        again = self._fence.epoch > 0
        self._fence.epoch, self._fence.incarnation = fence.epoch, fence.incarnation
        if self._running and message.round != self._fence.round:
            self._running = False
            self._ledger.killed()
            await self._send(round_stopped=agent_pb2.RoundStopped())
        self.up = True
        self._crowd = message.max_replicas
        self._patience = reconnect.welcome_deadline(self._crowd)
        self._ledger.welcomed()
        if self._warm and not again:
            await self.warm()

    async def _prepare(self, message: agent_pb2.PrepareStore, _: fence_pb2.Fence) -> None:
        prepared = agent_pb2.StorePrepared(
            store_id=message.store_id, host="127.0.0.1", port=20_000 + self._rank
        )
        await self._send(store_prepared=prepared)

    async def _assigned(self, message: agent_pb2.WorldAssignment, fence: fence_pb2.Fence) -> None:
        self._ledger.assigned(fence.round)
        self._fence.round = fence.round
        self._assignment = message
        self._running = False
        if self._starting is not None:
            self._starting.cancel()
        self._starting = asyncio.create_task(self._start_workers())

    async def _start_workers(self) -> None:
        with contextlib.suppress(*TRANSIENT):
            await asyncio.sleep(SPAWN_SECONDS)
            started = agent_pb2.RoundStarted(killed_seconds=0.01, spawned_seconds=SPAWN_SECONDS)
            await self._send(round_started=started)
            await asyncio.sleep(STEP_SECONDS)
            self._running = True
            stepped = agent_pb2.RoundStarted(
                first_step=True, step=self._step(), first_step_seconds=STEP_SECONDS
            )
            await self._send(round_started=stepped)

    async def _stopped(self, message: agent_pb2.StopRound, _: fence_pb2.Fence) -> None:
        self._running = False
        await self._send(round_stopped=agent_pb2.RoundStopped())
        await self._done(message, _)

    async def _done(self, message: Any, _: fence_pb2.Fence) -> None:
        await self._send(command_done=agent_pb2.CommandDone(command_id=message.command_id, ok=True))

    async def _stretched(self, message: agent_pb2.HeartbeatInterval, _: fence_pb2.Fence) -> None:
        self._interval = message.heartbeat_seconds

    async def _placed(self, message: agent_pb2.StateDigest, _: fence_pb2.Fence) -> None:
        self._digest = message

    async def _left(self, message: agent_pb2.Leave, _: fence_pb2.Fence) -> None:
        self._running = False
        self._ledger.left(message.reason)

    _REACTIONS: ClassVar[dict[str, Reaction]] = {
        "welcome": _welcome,
        "assignment": _assigned,
        "stop_round": _stopped,
        "prepare_store": _prepare,
        "dump_stacks": _done,
        "leave": _left,
        "digest": _placed,
        "heartbeat_interval": _stretched,
    }
