"""The way from a reader to those who lease shards: its agent, or, without one, itself.

Belongs here: the socket of the agent and its first message; the static split without an agent.
Messages are the wire's own, as datagrams (`holdfast_wire.datagrams`): the agent passes them on.
"""

from __future__ import annotations

import dataclasses
import itertools
import select
import socket
import time
import warnings
from typing import Final, Protocol

from holdfast.data.shard_state import ReaderState
from holdfast_wire import datagrams
from holdfast_wire.datagrams import DatagramError
from holdfast_wire.messages import ReaderOpened, ReaderReport, ShardsLeased

WARN_SECONDS: Final = 60.0
"""A reader that has waited so long says so: its world's other readers may never begin."""
ANSWER_SECONDS: Final = 900.0
"""How long a reader waits for shards: longer than an agent trains on without a master."""


_WAITS: Final = (
    f"no shard was leased for {WARN_SECONDS:.0f} s: no master answers, or not all ranks of the "
    "world read this dataset; if only some do, give each its `place`"
)
_ENDED: Final = "the agent has ended, and leases no more shards: {}"


class ShardError(Exception):
    """Shards cannot be leased or read; names the dataset and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHello:
    """First message of a process: it reads in this round."""

    round: int


class ShardSource(Protocol):
    """Those who lease shards."""

    def open(self, opened: ReaderOpened) -> None:
        """Say that this reader begins."""

    def report(self, report: ReaderReport) -> None:
        """Report progress, and ask for shards where some are wanted."""

    def answer(self) -> ShardsLeased:
        """Wait for the answer to the newest request; raises `ShardError`."""

    def close(self) -> None:
        """End the connection."""


class AgentSource:
    """Shards by the master's ledger."""

    def __init__(self, path: str, round_number: int) -> None:
        """Connect to the agent's socket; raises `ShardError` if nobody listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._request = 0
        try:
            with datagrams.short_path(path) as place:
                self._socket.connect(place)
            datagrams.send(self._socket, datagrams.encode(ReaderHello(round=round_number)))
        except OSError as error:
            self._socket.close()
            raise ShardError(f"the agent at {path} leases no shards: {error}") from error

    def open(self, opened: ReaderOpened) -> None:
        """Say that this reader begins, and ask for its first shards."""
        self._request = 1
        self._send(opened)

    def report(self, report: ReaderReport) -> None:
        """Report progress, and ask for shards where some are wanted."""
        self._request = report.request
        self._send(report)

    def answer(self) -> ShardsLeased:
        """Wait for the answer to the newest request."""
        deadline, warned = time.monotonic() + ANSWER_SECONDS, False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not poll.poll((left if warned else WARN_SECONDS) * 1000):
                if not warned:
                    warnings.warn(_WAITS, RuntimeWarning, stacklevel=2)
                warned = True
                continue
            leased = self._receive()
            if leased.refused:
                raise ShardError(leased.refused)
            if leased.request == self._request:
                return leased
        raise ShardError(f"no master has leased a shard for {ANSWER_SECONDS:.0f} s")

    def _receive(self) -> ShardsLeased:
        try:
            body, _ = datagrams.receive(self._socket)
            return datagrams.decode(body, [ShardsLeased])
        except (EOFError, OSError, DatagramError) as error:
            raise ShardError(_ENDED.format(error)) from error

    def _send(self, message: ReaderOpened | ReaderReport) -> None:
        try:
            datagrams.send(self._socket, datagrams.encode(message))
        except OSError as error:
            raise ShardError(_ENDED.format(error)) from error

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __del__(self) -> None:
        """Close what a script has forgotten."""
        self._socket.close()


class StaticSource:
    """Shards without an agent: each reader has its share by rank, and nobody takes another's."""

    def __init__(self, rank: int, world: int, end: int | None, state: ReaderState | None) -> None:
        """Begin. end: first ordinal behind the last epoch; None: there is none.

        state: of a checkpoint, with the shards that this reader has left; None: from the beginning.
        """
        self._rank, self._world, self._end = rank, world, end
        own = state.own or {} if state is not None else {}
        self.own = {one: at for one, at in own.items() if end is None or one < end}
        """Shards that are left of before, with the next record of each."""
        self.fresh = rank if state is None else state.fresh
        """First of the shards that were never leased."""
        self._held = dict[int, int]()
        self._report = ReaderReport()

    def open(self, opened: ReaderOpened) -> None:
        """Nobody need know."""

    def report(self, report: ReaderReport) -> None:
        """Note what is done."""
        self._report = report
        for ordinal in report.done:
            self._held.pop(ordinal, None)

    def answer(self) -> ShardsLeased:
        """Take the next shards."""
        taken = dict(itertools.islice(self.own.items(), self._report.wanted))
        for ordinal in taken:
            del self.own[ordinal]
        while len(taken) < self._report.wanted and (self._end is None or self.fresh < self._end):
            taken[self.fresh] = 0
            self.fresh += self._world
        self._held |= taken
        held = ReaderState(name="", digest="", held=self._held).claim().held
        return ShardsLeased(request=self._report.request, held=held, ended=not taken)

    def close(self) -> None:
        """Nothing is open."""
