"""JobService.WatchJob: a snapshot, then every event and incident, and the status now and then."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import grpc

from holdfast_master.inputs import Moment
from holdfast_master.instructions import Record
from holdfast_master.server import rpc
from holdfast_master.server.close_connection import finish_writing
from holdfast_master.server.message_size import fitting
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_wire import codec
from holdfast_wire import messages as wire

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"(\d{1,19}):([^:]{1,128}):(\d{1,19})")

RING_ITEMS = 10_000
"""News kept for watchers that are behind: as many as the core keeps events."""
SNAPSHOT_EVENTS = 100
"""Newest events in a snapshot: what a screen shows; ListEvents has the rest."""
DEFAULT_INTERVAL_SECONDS = 0.5
"""Between two status deltas where the watcher names none, as job.proto says."""
LEAST_INTERVAL_SECONDS = 0.05
"""No watcher gets the status more often: the eye does not see it."""
STATUS_AGE_SECONDS = 0.05
"""A status is computed once for all watchers that want one within this long."""
WRITE_SECONDS = 30.0
"""A watcher that does not take one message in this long is cut off."""


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """The place up to which a watcher has read everything: one event of one master process."""

    epoch: int
    incarnation: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.incarnation}:{self.sequence}"


def parse_token(text: str) -> Token | None:
    """The token that `text` spells; None where it spells none."""
    match = _TOKEN.fullmatch(text)
    return Token(int(match[1]), match[2], int(match[3])) if match else None


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """A message for every watcher, encoded once."""

    sequence: int
    """Newest event once this has been read."""
    is_event: bool
    body: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The beginning for watchers, encoded once for all that come at the same time."""

    made: float
    cursor: int
    sequence: int
    status: wire.JobStatus
    body: bytes


class Views(Protocol):
    """The views of the core that are shown; no view changes the core."""

    def status(self, now: Moment) -> wire.JobStatus:
        """The status of the whole job."""

    def history(self, now: Moment) -> tuple[wire.HostHistory, ...]:
        """Hosts that something spoke against."""

    def replicas(self, now: Moment) -> tuple[wire.ReplicaInfo, ...]:
        """Every replica of the world whose processes run, by number."""

    def nodes(self, now: Moment) -> tuple[wire.NodeInfo, ...]:
        """Every known node."""

    def events_after(self, sequence: int, limit: int) -> tuple[wire.JobEvent, ...]:
        """Return events, oldest first."""

    def newest_event(self) -> int:
        """The newest event's sequence."""

    def goodput(self, now: Moment) -> wire.GetGoodputResponse:
        """Return node-seconds by class."""

    def health(self, now: Moment) -> wire.GetHealthResponse:
        """The ranks of the running world, who is slow, and the hang that holds."""

    def incidents(self, now: Moment) -> tuple[wire.Incident, ...]:
        """Every incident that is remembered."""

    def spec(self) -> wire.MasterSpec | None:
        """The spec in force."""


@dataclasses.dataclass(slots=True)
class _Watcher:
    """The progress of one watcher."""

    cursor: int
    sequence: int
    interval: float
    status: wire.JobStatus | None = None
    status_due: float = 0.0


class WatchService:
    """Serves every watcher from one ring; memory does not grow with slow ones."""

    def __init__(
        self,
        views: Views,
        own: tuple[int, str],
        ancestors: Mapping[tuple[int, str], int],
        clock: Callable[[], Moment],
        counters: CallCounters,
    ) -> None:
        """Make the service; ancestors: newest event of each earlier master of the journal."""
        self._views = views
        self._own = own
        self._ancestors = ancestors
        self._clock = clock
        self._counters = counters
        self._ring: collections.deque[News] = collections.deque(maxlen=RING_ITEMS)
        self._total = 0
        self._newest = views.newest_event()
        self.watchers: set[asyncio.Event] = set()
        """One for each open call; set when there is news."""
        self._status = wire.JobStatus()
        self._status_body = b""
        self._status_made = float("-inf")
        self._shared: Snapshot | None = None
        self._finished = False
        for event in views.events_after(max(0, self._newest - RING_ITEMS), RING_ITEMS):
            self._append(News(event.sequence, True, _body(event)))

    def publish(self, records: Sequence[Record]) -> None:
        """Show watchers the events and incidents of a batch."""
        before = self._total
        for record in records:
            fact = record.fact
            if isinstance(fact, wire.EventRecorded) and fact.event is not None:
                self._newest = fact.event.sequence
                self._append(News(self._newest, True, _body(fact.event)))
            elif isinstance(fact, wire.Incident):
                self._append(News(self._newest, False, _body(fact)))
        if self._total != before:
            self._wake()

    def finish(self) -> None:
        """Send every watcher the rest and the last status, and end the streams in order."""
        self._finished = True
        self._wake()

    async def serve(self, data: bytes, context: Context) -> None:
        """Handle one WatchJob call until the watcher leaves."""
        changed = asyncio.Event()
        self.watchers.add(changed)
        try:
            request = rpc.decode(wire.WatchJobRequest, data)
            watcher = await self._begin(request, context)
            while not await self._continue(watcher, context, changed):
                pass
        except CallRefusedError as error:
            await rpc.refuse(context, error.refusal, self._counters)
        except grpc.aio.BaseError:
            log.debug("a watcher has gone")
        finally:
            self.watchers.discard(changed)

    async def _begin(self, request: wire.WatchJobRequest, context: Context) -> _Watcher:
        interval = request.min_interval_seconds or DEFAULT_INTERVAL_SECONDS
        watcher = _Watcher(self._total, self._newest, max(interval, LEAST_INTERVAL_SECONDS))
        if not request.resume_token:
            await self._snapshot(watcher, context)
            return watcher
        found = self._position(request.resume_token)
        if isinstance(found, str):
            await self._reset(watcher, context, found)
        else:
            watcher.cursor, watcher.sequence = found
        return watcher

    async def _continue(self, watcher: _Watcher, context: Context, changed: asyncio.Event) -> bool:
        """Send the news, then wait for more; return True once the watch is over."""
        finished = self._finished
        changed.clear()
        await self._send_news(watcher, context)
        if finished or self._clock().mono >= watcher.status_due:
            await self._send_status(watcher, context)
        if finished or changed.is_set():
            return finished
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, watcher.status_due - self._clock().mono)):
                await changed.wait()
        return False

    async def _send_news(self, watcher: _Watcher, context: Context) -> None:
        while watcher.cursor < self._total:
            oldest = self._total - len(self._ring)
            if watcher.cursor < oldest:
                await self._reset(watcher, context, "the watcher fell too far behind")
                continue
            news = self._ring[watcher.cursor - oldest]
            watcher.cursor += 1
            watcher.sequence = news.sequence
            await self._write(watcher, context, news.body)

    async def _send_status(self, watcher: _Watcher, context: Context) -> None:
        now = self._clock()
        watcher.status_due = now.mono + watcher.interval
        if now.mono - self._status_made > STATUS_AGE_SECONDS or self._finished:
            self._status_made = now.mono
            self._status = self._views.status(now)
            self._status_body = _body(self._status)
        # The job's own clock alone is no news.
        status = dataclasses.replace(self._status, job_seconds=0.0)
        if status != watcher.status:
            watcher.status = status
            await self._write(watcher, context, self._status_body)

    async def _reset(self, watcher: _Watcher, context: Context, reason: str) -> None:
        watcher.cursor, watcher.sequence = self._total, self._newest
        await self._write(watcher, context, _body(wire.WatchReset(reason=reason)))
        await self._snapshot(watcher, context)

    async def _snapshot(self, watcher: _Watcher, context: Context) -> None:
        now = self._clock().mono
        shared = self._shared
        if (
            shared is None
            or shared.cursor != self._total
            or now - shared.made > STATUS_AGE_SECONDS
            or self._finished
        ):
            shared = self._shared = self._made_snapshot()
        watcher.cursor, watcher.sequence = shared.cursor, shared.sequence
        watcher.status = shared.status
        watcher.status_due = now + watcher.interval
        await self._write(watcher, context, shared.body)

    def _made_snapshot(self) -> Snapshot:
        now = self._clock()
        events = self._views.events_after(max(0, self._newest - SNAPSHOT_EVENTS), SNAPSHOT_EVENTS)
        status = self._views.status(now)
        snapshot = wire.JobSnapshot(
            status=status,
            nodes=fitting(self._views.nodes(now)),
            # What is decided and not yet written comes as news later.
            events=tuple(event for event in events if event.sequence <= self._newest),
        )
        compared = dataclasses.replace(status, job_seconds=0.0)
        return Snapshot(now.mono, self._total, self._newest, compared, _body(snapshot))

    async def _write(self, watcher: _Watcher, context: Context, body: bytes) -> None:
        token = Token(*self._own, watcher.sequence)
        # Encoded messages that are joined are one message: the body is shared, the token is not.
        data = body + codec.encode(wire.WatchJobResponse(resume_token=str(token)))
        write = asyncio.ensure_future(context.write(data))
        try:
            done, _ = await asyncio.wait({write}, timeout=WRITE_SECONDS)
        except asyncio.CancelledError:
            write.cancel()
            raise
        if not done:
            self._counters.refused["SLOW_READER"] += 1
            await finish_writing(write, context)
        await write

    def _position(self, text: str) -> tuple[int, int] | str:
        """The cursor and sequence at which the token's holder goes on, or why it cannot."""
        token = parse_token(text)
        if token is None:
            raise rpc.malformed(f"resume_token is {text!r}; take one from a WatchJobResponse")
        if token.epoch > self._own[0]:
            raise CallRefusedError(
                grpc.StatusCode.UNAVAILABLE,
                "MASTER_SUPERSEDED",
                f"resume_token is of epoch {token.epoch}, this master has epoch {self._own[0]}: a "
                "newer one serves this job; look for it",
            )
        master = (token.epoch, token.incarnation)
        kept = self._newest if master == self._own else self._ancestors.get(master)
        if kept is None:
            return f"epoch {token.epoch} is of a master whose journal this one does not have"
        if token.sequence > kept:
            return f"events after {kept} were lost with the master of epoch {token.epoch}"
        return self._after(token.sequence)

    def _after(self, sequence: int) -> tuple[int, int] | str:
        oldest = self._total - len(self._ring)
        for at in range(len(self._ring) - 1, -1, -1):
            news = self._ring[at]
            if news.is_event and news.sequence <= sequence:
                return oldest + at + 1, sequence
        first = next((news.sequence for news in self._ring if news.is_event), self._newest + 1)
        if sequence >= first - 1:
            return oldest, sequence
        return f"events up to {first - 1} are no longer kept"

    def _append(self, news: News) -> None:
        self._ring.append(news)
        self._total += 1

    def _wake(self) -> None:
        for changed in self.watchers:
            changed.set()


def _body(
    message: wire.JobEvent | wire.Incident | wire.JobSnapshot | wire.JobStatus | wire.WatchReset,
) -> bytes:
    return codec.encode(wire.WatchJobResponse(message=message))
