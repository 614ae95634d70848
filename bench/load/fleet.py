"""Many agents and watchers of one process, and what happened to them in figures."""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import time
from typing import Any

import grpc

from bench.load.agent import SLOW_READER_OPTIONS, Agent
from holdfast_wire import channel
from holdfast_wire.authority import JobAuthority
from holdfast_wire.identity import Identity
from holdfast_wire.v1 import job_pb2

WATCH = "/holdfast.v1.JobService/WatchJob"
_CONNECTING = 64
"""Agents that start to connect at once at first: a job's pods do not all start within a second."""


class Fleet:
    """The agents of one generator process."""

    def __init__(self, target: str, job_uid: str, root_key: bytes, ranks: int) -> None:
        """Prepare; ``ranks``: workers of each agent."""
        self.target = target
        self.job_uid = job_uid
        self.ranks = ranks
        self.sent = 0
        self.late_max = 0.0
        self._now = dt.datetime.now(dt.UTC)
        self._authority = JobAuthority(root_key, job_uid, self._now)
        self._agents: dict[int, Agent] = {}
        self._watchers: list[Watcher] = []
        self._up = 0
        self._welcomes = 0
        self._welcomed_at = 0.0
        self._rounds: dict[int, list[float]] = {}
        self._killed = 0
        self._ended: collections.Counter[str] = collections.Counter()
        self._left: collections.Counter[str] = collections.Counter()

    async def connect(self, ranks: range, held: int | None, slow: int | None) -> None:
        """Start agents, some at a time, and return once all of them were welcomed."""
        for rank in ranks:
            agent = Agent(
                self, rank, self._credentials("agent", rank), held=rank == held, slow=rank == slow
            )
            self._agents[rank] = agent
            while self._up + _CONNECTING < len(self._agents):  # noqa: ASYNC110 - many tell
                await asyncio.sleep(0.005)
            agent.start()
        while self._up < len(self._agents):  # noqa: ASYNC110 - many tell
            await asyncio.sleep(0.01)

    def watch(self, count: int, interval: float, *, slow: bool) -> None:
        """Start watchers; each has a connection of its own."""
        credentials = self._credentials("user", None)
        for _ in range(count):
            watcher = Watcher(self.target, self.job_uid, credentials, interval, slow=slow)
            watcher.task = asyncio.create_task(watcher.run())
            self._watchers.append(watcher)

    def agent(self, rank: int) -> Agent:
        """Return the agent of a node rank."""
        return self._agents[rank]

    def forget(self) -> None:
        """Begin all counts anew."""
        self.sent = self._welcomes = self._killed = 0
        self.late_max = 0.0
        self._ended.clear()
        for watcher in self._watchers:
            watcher.messages = 0
            watcher.failed_at = None

    def state(self) -> dict[str, Any]:
        """Return the counts."""
        told = [w.failed_at for w in self._watchers if w.failed_at is not None]
        return {
            "agents": len(self._agents),
            "up": self._up,
            "sent": self.sent,
            "late_max": self.late_max,
            "welcomes": self._welcomes,
            "welcomed_at": self._welcomed_at,
            "rounds": {number: [len(at), max(at)] for number, at in self._rounds.items()},
            "killed": self._killed,
            "ended": dict(self._ended),
            "left": dict(self._left),
            "watching": sum(w.watching for w in self._watchers),
            "watched": sum(w.messages for w in self._watchers),
            "watch_ends": dict(collections.Counter(w.end for w in self._watchers if w.end)),
            "told": len(told),
            "told_at": max(told, default=0.0),
        }

    async def close(self) -> None:
        """End everybody."""
        tasks = [w.task for w in self._watchers if w.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(agent.close() for agent in self._agents.values()))

    # ------------------------------------------------------------------------------- the ledger

    def welcomed(self) -> None:
        """A Welcome came."""
        self._up += 1
        self._welcomes += 1
        self._welcomed_at = time.monotonic()

    def stream_ended(self, reason: str, *, was_up: bool) -> None:
        """A stream ended, or could not be had."""
        self._up -= was_up
        self._ended[reason if was_up else f"no stream: {reason}"] += 1

    def assigned(self, round_number: int) -> None:
        """A place in a world came."""
        self._rounds.setdefault(round_number, []).append(time.monotonic())

    def killed(self) -> None:
        """Workers had to be killed although no new world was there."""
        self._killed += 1

    def left(self, reason: str) -> None:
        """The master sent an agent away."""
        self._left[reason] += 1

    def _credentials(self, role: str, index: int | None) -> grpc.ChannelCredentials:
        identity = Identity(self.job_uid, role, index)
        made = self._authority.issue(identity, self._now, dt.timedelta(days=1), ["127.0.0.1"])
        return grpc.ssl_channel_credentials(made.ca, made.key, made.certificate)


class Watcher:
    """One WatchJob stream."""

    def __init__(
        self,
        target: str,
        job_uid: str,
        credentials: grpc.ChannelCredentials,
        interval: float,
        *,
        slow: bool,
    ) -> None:
        """Make a watcher that wants the status every ``interval`` s; ``slow``: it never reads."""
        self.task: asyncio.Task[None] | None = None
        self.watching = False
        self.messages = 0
        self.failed_at: float | None = None
        """When the newest news of a failed worker came."""
        self.end = ""
        """How its stream ended."""
        self._target = target
        self._options = channel.master_channel_options(job_uid)
        if slow:
            self._options += SLOW_READER_OPTIONS
        self._credentials = credentials
        self._request = job_pb2.WatchJobRequest(min_interval_seconds=interval)
        self._slow = slow

    async def run(self) -> None:
        """Watch until the stream ends."""
        try:
            await self._watch()
        except grpc.aio.AioRpcError as error:
            self.end = str(error.code())
        finally:
            self.watching = False

    async def _watch(self) -> None:
        made = grpc.aio.secure_channel(self._target, self._credentials, self._options)
        async with made as link:
            method: Any = link.unary_stream(WATCH)
            call = method(self._request.SerializeToString())
            data = await call.read()
            self.watching = True
            if self._slow:
                self.end = str(await call.code())
            while data is not grpc.aio.EOF and not self.end:
                self._take(job_pb2.WatchJobResponse.FromString(data))
                data = await call.read()
            self.end = self.end or str(await call.code())

    def _take(self, response: job_pb2.WatchJobResponse) -> None:
        self.messages += 1
        if response.WhichOneof("message") == "event" and response.event.reason == "WorkerFailed":
            self.failed_at = time.monotonic()
