"""Protocol between trainer and checkpoint server: JSON datagrams with descriptors.

Belongs here: the socket and the messages; the server's end of a connection, with the messages that
it has not acted on (`Member`). Does not belong here: the form of a message
(`holdfast_wire.datagrams`), the reactions to one (`service`, `trainer.client`).
Ownership of a slot never depends on a message: it stands in the slot's header, and a message only
wakes the other side.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from holdfast.flash.ids import unique
from holdfast.flash.memory.shard_table import Needs
from holdfast.flash.memory.slots import Version
from holdfast_wire import datagrams
from holdfast_wire.datagrams import MOST_DESCRIPTORS, DatagramError
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy


class LinkError(Exception):
    """The other side is gone, silent past a deadline, or sent an unknown message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerHello:
    """First message of a trainer."""

    rank: int
    world: int
    kept: int
    """Number of ranks that this server serves together: the node's, or this one alone."""
    lineage: int
    root: str
    """Directory of the checkpoints; empty: memory only."""
    policy: CheckpointPolicy
    """Settings of checkpoints, by the job's file and the script."""
    token: str = ""
    """Names the attempts of this world, equal on all of its ranks. Empty: the server's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Request of a trainer for its start."""

    needs: Needs = field(default_factory=dict)
    """Parts of the model on this rank; empty: what the same rank had when it saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStart:
    """Answer, the same for all ranks of a lineage. Descriptors: an arena for each rank."""

    lineage: int = 0
    step: int = 0
    """Step to start from; 0: there is no checkpoint."""
    path: str = ""
    """Directory of a committed step; empty: from the slots alone."""
    ranks: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    lent: tuple[int, ...] = ()
    """Ranks with memory on other nodes: fetch their items before you read them."""
    durable: bool = False
    """True: the step is committed in a tier that no failure of a node loses."""
    notes: tuple[str, ...] = ()
    """Steps that were passed over, with reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Request for items from other nodes, by rank and index in its table."""

    items: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Answer: the items were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Request for an arena with this shard table."""

    table: str
    bytes_room: int
    slots: int
    number: int = 0
    """Number that the answer repeats; the answer takes as long as making the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Answer: the arena, as the only descriptor."""

    number: int = 0
    """Number of the `Layout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """Refusal of a request, with its reason."""

    error: str
    number: int = 0
    """Number of the `Layout` that it answers; 0: it answers another request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """News: a slot has become VALID."""

    lineage: int
    step: int
    tier: Tier
    """Tier to write it to; memory: it stays in its slot."""
    final: str = ""
    """Path for the checkpoint; empty: the root's directory of that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSaved:
    """News: a save failed before it had a slot, and training goes on."""

    lineage: int
    step: int
    tier: Tier
    """Tier where it was due; on storage others may wait for this rank's part."""
    error: str
    final: str = ""
    """Path, as in `Saved`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """News: a step is committed; once sent, the step must never be lost."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """News: a step will not be committed."""

    step: int
    error: str


Message = (
    TrainerHello
    | Restore
    | RestoreStart
    | Fetch
    | Fetched
    | Layout
    | Granted
    | RequestRefused
    | Saved
    | NotSaved
    | Durable
    | Failed
)
_KINDS: Final = get_args(Message)


class ServerLink:
    """One end of the connection."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected SOCK_SEQPACKET socket."""
        sock.setblocking(True)
        self._socket = sock
        self.closed = False
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.peer = struct.unpack("3i", credentials)[0]
        """Process id of the other end's maker."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message; nothing happens if the other side is gone: `receive` reports that.

        Each side is always reading, so this waits only for the other side's next read.
        """
        if len(descriptors) > MOST_DESCRIPTORS:
            raise LinkError(f"{len(descriptors)} descriptors do not fit a message")
        try:
            datagrams.send(self._socket, datagrams.encode(message), descriptors)
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def receive(self, timeout_s: float) -> tuple[Message, tuple[int, ...]] | None:
        """Return the next message and its descriptors; None at a timeout or at the end.

        `closed` tells the two apart. Raises `LinkError` for a malformed message.
        """
        if self.closed or not self._readable(timeout_s):
            return None
        try:
            body, found = datagrams.receive(self._socket)
            return datagrams.decode(body, _KINDS), tuple(found)
        except EOFError:
            self.closed = True
            return None
        except DatagramError as error:
            raise LinkError(str(error)) from error

    def _readable(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        """Close the connection, also where a forked child holds this end too."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass(eq=False, slots=True)
class Member:
    """One connected trainer."""

    link: ServerLink
    pidfd: int
    """Becomes readable when the trainer dies; a forked child may keep the connection open."""
    hello: TrainerHello | None = None
    asks: bool = False
    """True while it waits for a `RestoreStart`."""
    durable: set[Version] = field(default_factory=set)
    """Versions that it waits for to become durable."""
    inbox: collections.deque[Message | LinkError] = field(default_factory=collections.deque)
    """Messages received but not acted on yet; of a malformed one, the error."""

    @classmethod
    def of(cls, link: ServerLink) -> Member | None:
        """Return the trainer at the other end; None, with the link closed, if it is dead."""
        try:
            return cls(link, os.pidfd_open(link.peer))
        except ProcessLookupError:
            link.close()
            return None

    @property
    def rank(self) -> int:
        """Global rank; raises `LinkError` before its first message."""
        if self.hello is None:
            raise LinkError("the first message must be Hello")
        return self.hello.rank

    @property
    def lineage(self) -> int:
        """Round of its world; -1 before its first message."""
        return self.hello.lineage if self.hello else -1

    def take_in(self) -> Iterator[Message]:
        """Receive all messages sent so far, to act on them later; yield each new one."""
        while True:
            try:
                found = self.link.receive(0)
            except LinkError as error:
                self.inbox.append(error)
                continue
            if found is None:
                return
            message, descriptors = found
            for fd in descriptors:  # a trainer's messages carry no descriptor
                os.close(fd)
            self.inbox.append(message)
            yield message

    def close(self) -> None:
        """Close the connection."""
        self.link.close()
        os.close(self.pidfd)


def listen(path: str) -> socket.socket:
    """Return a listening socket at `path`, which must not exist; only this user may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        private = Path(path).with_name(f".{unique()}")
        with datagrams.short_path(private) as place:
            listener.bind(place)
        private.chmod(0o600)
        listener.listen()
        private.rename(path)  # not found before it is private
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: str) -> ServerLink:
    """Return a connection to the checkpoint server that listens at `path`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with datagrams.short_path(path) as place:
            sock.connect(place)
    except OSError:
        sock.close()
        raise
    return ServerLink(sock)
