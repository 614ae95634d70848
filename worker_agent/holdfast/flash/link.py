"""What a trainer and its keeper say to each other: datagrams of JSON, and descriptors beside them.

Only framing and the messages; what they lead to is `keeper` and `checkpointer`. A body that is too
long for a datagram travels in a memfd. Ownership of a slot never depends on a message: that stands
in the slot's header, and a message only wakes the other side.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final, get_args

from holdfast_wire.passing import receive_fds, send_fds

_DATAGRAM: Final = 32_768
_MOST_DESCRIPTORS: Final = 250
"""The kernel passes 253 at once."""


class LinkError(Exception):
    """The other side is gone, silent past a deadline, or said something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A trainer's first word."""

    rank: int
    world: int
    kept: int
    """Ranks whose arenas this keeper holds together: the node's, or this one alone."""
    lineage: int
    root: str
    """Directory of the checkpoints; empty: memory only."""
    keep_last: int
    keep_every: int
    token: str = ""
    """Equal on all ranks of this world; names their attempts. Empty: the keeper's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The trainer asks what to start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The answer, the same for all ranks of a lineage. Descriptors: an arena for each rank."""

    lineage: int = 0
    step: int = 0
    """0: nothing is there."""
    path: str = ""
    """A committed step's directory; empty: from memory."""
    ranks: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    lent: tuple[int, ...] = ()
    """Of the ranks, those whose memory is on other nodes: to be fetched before it is read."""
    notes: tuple[str, ...] = ()
    """What was passed over, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """The trainer asks for items of what other nodes lend, by rank and index in its table."""

    items: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The items are there, as they were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The trainer asks for an arena for this shard table."""

    table: str
    bytes_room: int
    slots: int
    number: int = 0
    """Comes back with the answer, which takes as long as it takes to make so much memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The arena, as the one descriptor."""

    number: int = 0
    """Of the `Layout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was asked cannot be had, and why."""

    error: str
    number: int = 0
    """Of the `Layout` that it answers; 0: it answers something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A slot has become VALID."""

    lineage: int
    step: int
    durable: bool
    """It is to go to storage."""
    final: str = ""
    """Where the checkpoint is to be; empty: the root's directory of that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSaved:
    """A save failed before there was a slot for it, and training goes on."""

    lineage: int
    step: int
    durable: bool
    """It was to go to storage, where others may wait for this rank's part."""
    error: str
    final: str = ""
    """As in `Saved`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """A step is committed: announced, from now on it must never be lost."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A step will not be committed."""

    step: int
    error: str


Message = (
    Hello
    | Restore
    | Origin
    | Fetch
    | Fetched
    | Layout
    | Granted
    | Refused
    | Saved
    | NotSaved
    | Durable
    | Failed
)
Heard = tuple[Message, tuple[int, ...]]
"""A message with its descriptors."""
_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(Message)}


class Link:
    """One end of the connection."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected SOCK_SEQPACKET socket."""
        sock.setblocking(True)
        self._socket = sock
        self.closed = False
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.peer = struct.unpack("3i", credentials)[0]
        """Process that made the other end."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message; nothing happens when the other side is gone, `receive` will tell.

        Each side is always reading, so this waits for no longer than the other takes to look.
        """
        if len(descriptors) > _MOST_DESCRIPTORS:
            raise LinkError(f"{len(descriptors)} descriptors do not fit a message")
        fields = dataclasses.asdict(message)
        body = json.dumps({"kind": type(message).__name__, **fields}).encode()
        try:
            if len(body) <= _DATAGRAM:
                send_fds(self._socket, body, descriptors)
            else:
                self._send_long(body, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def _send_long(self, body: bytes, descriptors: tuple[int, ...]) -> None:
        fd = os.memfd_create("holdfast-message", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(body)
            send_fds(self._socket, b"memfd", [fd, *descriptors])
        finally:
            os.close(fd)

    def receive(self, timeout_s: float) -> tuple[Message, tuple[int, ...]] | None:
        """Return the next message and its descriptors; None when the time is up or at the end.

        `closed` tells the two apart. Raises `LinkError` for what is no message.
        """
        if self.closed or not self._readable(timeout_s):
            return None
        try:
            body, found, _ = receive_fds(self._socket, _DATAGRAM, _MOST_DESCRIPTORS)
        except ConnectionResetError:
            body, found = b"", []
        if not body:
            self.closed = True
            return None
        if body == b"memfd":
            with os.fdopen(found.pop(0), "rb") as file:
                file.seek(0)
                body = file.read()
        return _decode(body), tuple(found)

    def _readable(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def expect(
        self, *kinds: type[Message], timeout_s: float
    ) -> tuple[Message, tuple[int, ...], list[Heard]]:
        """Return the next message of one of `kinds`, with all others that came before it.

        Raises `LinkError` when the other side is gone or silent for the whole time.
        """
        deadline, others = time.monotonic() + timeout_s, list[Heard]()
        while time.monotonic() < deadline:
            found = self.receive(deadline - time.monotonic())
            if found is None:
                if self.closed:
                    raise LinkError("the agent has closed the connection: see its log")
                continue
            if isinstance(found[0], kinds):
                return *found, others
            others.append(found)
        names = " or ".join(kind.__name__ for kind in kinds)
        raise LinkError(f"the agent did not answer with {names} within {timeout_s:g} s")

    def close(self) -> None:
        """Close the connection, also where a forked child holds this end too."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _decode(body: bytes) -> Message:
    try:
        fields = json.loads(body)
        kind = _KINDS[fields.pop("kind")]
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        message: Message = kind(**(fields | lists))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LinkError(f"{len(body)} bytes are no message: {error!r}") from error
    return message
