"""Passes words of local readers of shards on to the master, and its leases back to them.

It remembers what each reader has said and was leased, so that a new master is told all of it
again. Progress is passed on as often as the master says, else every half minute, and at once when
a process ends: so the master of ten thousand readers hears few messages, and what a dead rank had
committed counts. Who gets which shard is the master's business. One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.data.shard_link import ReaderHello
from holdfast.data.shard_state import DoneShards, positions
from holdfast.flash.server.protocol import listen
from holdfast_wire import datagrams, keys
from holdfast_wire.datagrams import DatagramError
from holdfast_wire.messages import (
    LostReader,
    ReaderClaim,
    ReaderOpened,
    ReaderReport,
    ShardsLeased,
)

log: Final = logging.getLogger(__name__)
_KINDS: Final = (ReaderHello, ReaderOpened, ReaderReport)
FORWARD_SECONDS: Final = 30.0
"""Between two reports of a reader's progress to the master that asks for no other pace, s."""
UNSURE_SECONDS: Final = 120.0
"""For so long a shard that is done may not be in the journal: its report waits for others of the
same minute, and is made again to a new master."""
TOLD_SECONDS: Final = 600.0
"""For so long a word about a lost reader is said again to a new master, which waits as long, s."""
_OPENED_BEFORE: Final = (
    "reader {rank} of dataset {name} was opened before in round {round}: give each ShardReader of "
    "a script a `name` of its own, all epochs to one, and each rank that reads its own `place`"
)
Report = Callable[[Any, int], None]
"""Sends a message about a round to the master: (message, round)."""


class RelayedReader:
    """One reader of a dataset, as its agent knows it."""

    def __init__(self, opened: ReaderOpened) -> None:
        """Begin with its first words."""
        claim = opened.claim or ReaderClaim()
        self._opened, self._step, self._floor = opened, claim.step, claim.floor
        self._done = DoneShards(claim.done)
        self._held = {one.ordinal: one.position for one in claim.held}
        self._asked: ReaderReport | None = None
        """Request that is not answered; None: there is none, or the first words were one."""
        self._begun = False
        """The first request was answered."""
        self._unsent = list[int]()
        """Shards that are done and not reported to the master."""
        self._sent = list[tuple[float, int]]()
        """Those reported lately, with the time."""
        self._lost = list[tuple[float, LostReader]]()
        """Told of readers that are lost, with the time."""
        self.waits = False
        """There is progress to report."""
        self.pace: float | None = None
        """Least time between two reports of progress, s; None: no master has said so."""

    def reported(self, report: ReaderReport, now: float) -> ReaderReport | None:
        """Take what it has read; return what the master is to hear at once.

        That are requests, and words of readers that are lost: others wait for their shards.
        """
        self._step = max(self._step, report.step)
        self._held |= {one.ordinal: one.position for one in report.positions}
        for ordinal in report.done:
            if self._held.pop(ordinal, None) is not None:
                self._done.add(ordinal)
                self._unsent.append(ordinal)
        self.waits = True
        self._lost = [one for one in self._lost if one[0] > now - TOLD_SECONDS]
        self._lost += [(now, one) for one in report.lost]
        if report.lost:
            return dataclasses.replace(self.progress(now), lost=report.lost)
        if not report.wanted:
            return None
        self._asked = dataclasses.replace(report, positions=(), done=())
        return dataclasses.replace(self.progress(now), request=report.request, wanted=report.wanted)

    def progress(self, now: float) -> ReaderReport:
        """What is committed and was not reported."""
        self._sent = [one for one in self._sent if one[0] > now - UNSURE_SECONDS]
        self._sent += [(now, ordinal) for ordinal in self._unsent]
        done, self._unsent, self.waits = tuple(self._unsent), [], False
        return ReaderReport(
            dataset=self._opened.dataset,
            rank=self._opened.rank,
            step=self._step,
            positions=positions({one: at for one, at in self._held.items() if at}),
            done=done,
        )

    def leased(self, leased: ShardsLeased) -> None:
        """Take what it was leased."""
        if not self._begun:
            self._held = {}  # what it claimed is void where others train on
        told = {*self._unsent, *(ordinal for _, ordinal in self._sent)}
        for one in leased.held:
            if one.ordinal not in self._done:
                self._held.setdefault(one.ordinal, one.position)
            elif self._begun and one.ordinal not in told:  # said while no master listened
                self._unsent.append(one.ordinal)
                self.waits = True
        self._begun = True
        self.pace = leased.progress_seconds or None
        if leased.floor_step and leased.floor_step <= self._step:
            self._floor = max(self._floor, leased.floor)
            self._done.drop_before(self._floor)
        if self._asked is not None and self._asked.request == leased.request:
            self._asked = None

    def again(self, now: float) -> list[ReaderOpened | ReaderReport]:
        """What a new master must know; one that knows the reader takes its progress alone."""
        opened = self._opened
        if self._begun:
            claim = ReaderClaim(
                step=self._step,
                floor=self._floor,
                done=self._done.ranges,
                held=positions(self._held),
            )
            opened = dataclasses.replace(opened, claim=claim, wanted=0)
        unsure = tuple(ordinal for _, ordinal in self._sent)
        self._lost = [one for one in self._lost if one[0] > now - TOLD_SECONDS]
        progress, lost = self.progress(now), tuple(one for _, one in self._lost)
        progress = dataclasses.replace(progress, done=(*unsure, *progress.done), lost=lost)
        return [opened, progress, *([] if self._asked is None else [self._asked])]


class ShardRelay:
    """The socket for readers of this node, and those that are connected."""

    def __init__(self, folder: Callable[[], Path], report: Report) -> None:
        """Wait for no reader yet. `folder` returns one that exists while the agent lives."""
        self._folder, self._report = folder, report
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._forwarded = -math.inf
        """Time of the last report of all progress, by the event loop's clock."""
        self._processes = dict[socket.socket, RelayedProcess]()
        self._opened = set[tuple[int, str, int]]()
        """Round, dataset and rank of all readers of the newest round, also of those that ended."""

    def begin(self) -> dict[str, str]:
        """Listen; return the variable by which ranks find the socket. Needs the event loop."""
        path = self._folder() / "shards"
        if self._listener is None:
            self._listener = listen(str(path))
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        return {keys.ENV_DATA: str(path)}

    def on_leased(self, leased: ShardsLeased, number: int) -> None:
        """Hand leases to the reader of a round; one that has ended needs none."""
        for sock, process in list(self._processes.items()):
            if process.round == number and leased.dataset in process.readers:
                reader = process.readers[leased.dataset]
                if reader.rank != leased.rank:
                    continue
                if not leased.refused:
                    reader.state.leased(leased)
                if reader.state.waits:
                    self._forward_soon(reader.state.pace)
                self._send(sock, leased)

    def restate(self) -> None:
        """Tell a new master of all readers."""
        for process in self._processes.values():
            for reader in process.readers.values():
                for message in reader.state.again(time.monotonic()):
                    self._report(message, process.round)

    def forward(self, round_number: int | None = None) -> None:
        """Report all progress so far, of one round or of all; before the end of a rank is told."""
        if round_number is None:
            self._forwarded = asyncio.get_running_loop().time()
        for sock in list(self._processes):
            self._hear(sock)
        for process in self._processes.values():
            if round_number in {None, process.round}:
                self._forward(process)

    def _forward(self, process: RelayedProcess) -> None:
        for reader in process.readers.values():
            if reader.state.waits:
                self._report(reader.state.progress(time.monotonic()), process.round)

    def _forward_soon(self, pace: float | None) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + FORWARD_SECONDS if pace is None else self._forwarded + pace
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._forward_due)

    def _forward_due(self) -> None:
        self._timer = None
        self.forward()

    def close(self) -> None:
        """Listen no more."""
        if self._timer is not None:
            self._timer.cancel()
        for sock in list(self._processes):
            self._drop(sock)
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None, "begin was called"  # noqa: S101
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        self._processes[sock] = RelayedProcess()
        asyncio.get_running_loop().add_reader(sock.fileno(), self._hear, sock)

    def _hear(self, sock: socket.socket) -> None:
        try:
            while sock in self._processes:
                body, found = datagrams.receive(sock)
                if found:
                    raise DatagramError("a reader sends no descriptors")
                self._take(sock, datagrams.decode(body, _KINDS))
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._drop(sock)
        except DatagramError as error:
            log.warning("a reader of shards is dropped: %s", error)
            self._drop(sock)

    def _take(self, sock: socket.socket, message: object) -> None:
        process = self._processes[sock]
        match message:
            case ReaderHello():
                process.round = message.round
            case ReaderOpened():
                self._open(sock, message)
            case ReaderReport():
                reader = process.readers.get(message.dataset)
                if reader is None:
                    raise DatagramError(f"dataset {message.dataset:.40} was not opened")
                news = reader.state.reported(message, time.monotonic())
                if news is None:
                    self._forward_soon(reader.state.pace)
                else:
                    self._report(news, process.round)

    def _open(self, sock: socket.socket, opened: ReaderOpened) -> None:
        """Pass a reader's first words on, unless it would take an earlier one's leases."""
        process, name, rank = self._processes[sock], opened.dataset, opened.rank
        key = (process.round, name, rank)
        if key in self._opened:
            refused = _OPENED_BEFORE.format(rank=rank, name=name, round=process.round)
            self._send(sock, ShardsLeased(dataset=name, rank=rank, refused=refused))
            return
        self._opened = {one for one in self._opened if one[0] >= process.round} | {key}
        process.readers[name] = _Reader(rank, RelayedReader(opened))
        self._report(opened, process.round)

    def _send(self, sock: socket.socket, leased: ShardsLeased) -> None:
        try:
            datagrams.send(sock, datagrams.encode(leased), flags=socket.MSG_DONTWAIT)
        except OSError as error:  # it has ended, or reads nothing: its next request finds nobody
            log.warning("a reader of shards is dropped: %s", error)
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        process = self._processes.pop(sock, None)
        if process is not None:
            self._forward(process)
            asyncio.get_running_loop().remove_reader(sock.fileno())
            with contextlib.suppress(OSError):
                sock.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    rank: int
    state: RelayedReader


@dataclasses.dataclass(slots=True)
class RelayedProcess:
    """A rank that is connected."""

    round: int = 0
    readers: dict[str, _Reader] = dataclasses.field(default_factory=dict)
    """By dataset."""
