"""Passes words of local readers of shards on to the master, and its leases back to them.

It remembers what each reader has said and was leased, so that a new master is told all of it
again. Who gets which shard is the master's business. One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.data.shard_link import ReaderHello
from holdfast.data.shard_state import DoneShards, positions
from holdfast.flash.server.protocol import listen
from holdfast_wire import datagrams, keys
from holdfast_wire.datagrams import DatagramError
from holdfast_wire.messages import ReaderClaim, ReaderOpened, ReaderReport, ShardsLeased

log: Final = logging.getLogger(__name__)
_KINDS: Final = (ReaderHello, ReaderOpened, ReaderReport)
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

    def reported(self, report: ReaderReport) -> None:
        """Take what it has read."""
        self._step = max(self._step, report.step)
        self._held |= {one.ordinal: one.position for one in report.positions}
        for ordinal in report.done:
            if self._held.pop(ordinal, None) is not None:
                self._done.add(ordinal)
        if report.wanted:
            self._asked = dataclasses.replace(report, positions=(), done=())

    def leased(self, leased: ShardsLeased) -> None:
        """Take what it was leased."""
        if not self._begun:
            self._held = {}  # what it claimed is void where others train on
        for one in leased.held:
            if one.ordinal not in self._done:
                self._held.setdefault(one.ordinal, one.position)
        self._begun = True
        if leased.floor_step and leased.floor_step <= self._step:
            self._floor = max(self._floor, leased.floor)
            self._done.drop_before(self._floor)
        if self._asked is not None and self._asked.request == leased.request:
            self._asked = None

    def again(self) -> list[ReaderOpened | ReaderReport]:
        """What a new master must know; one that knows the reader takes its progress alone."""
        opened = self._opened
        if self._begun:
            now = ReaderClaim(
                step=self._step,
                floor=self._floor,
                done=self._done.ranges,
                held=positions(self._held),
            )
            opened = dataclasses.replace(opened, claim=now, wanted=0)
        progress = ReaderReport(
            dataset=opened.dataset,
            rank=opened.rank,
            step=self._step,
            positions=positions({one: at for one, at in self._held.items() if at}),
        )
        return [opened, progress, *([] if self._asked is None else [self._asked])]


class ShardRelay:
    """The socket for readers of this node, and those that are connected."""

    def __init__(self, folder: Callable[[], Path], report: Report) -> None:
        """Wait for no reader yet. `folder` returns one that exists while the agent lives."""
        self._folder, self._report = folder, report
        self._listener: socket.socket | None = None
        self._processes = dict[socket.socket, RelayedProcess]()

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
                reader.state.leased(leased)
                self._send(sock, leased)

    def restate(self) -> None:
        """Tell a new master of all readers."""
        for process in self._processes.values():
            for reader in process.readers.values():
                for message in reader.state.again():
                    self._report(message, process.round)

    def close(self) -> None:
        """Listen no more."""
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
            while True:
                body, found = datagrams.receive(sock)
                if found:
                    raise DatagramError("a reader sends no descriptors")
                self._take(self._processes[sock], datagrams.decode(body, _KINDS))
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._drop(sock)
        except DatagramError as error:
            log.warning("a reader of shards is dropped: %s", error)
            self._drop(sock)

    def _take(self, process: RelayedProcess, message: object) -> None:
        match message:
            case ReaderHello():
                process.round = message.round
            case ReaderOpened():
                process.readers[message.dataset] = _Reader(message.rank, RelayedReader(message))
                self._report(message, process.round)
            case ReaderReport():
                reader = process.readers.get(message.dataset)
                if reader is None:
                    raise DatagramError(f"dataset {message.dataset:.40} was not opened")
                reader.state.reported(message)
                self._report(message, process.round)

    def _send(self, sock: socket.socket, leased: ShardsLeased) -> None:
        try:
            datagrams.send(sock, datagrams.encode(leased), flags=socket.MSG_DONTWAIT)
        except OSError as error:  # it has ended, or reads nothing: its next request finds nobody
            log.warning("a reader of shards is dropped: %s", error)
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        if self._processes.pop(sock, None) is not None:
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
