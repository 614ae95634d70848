"""The control channel between an agent and its zygote: datagrams of JSON on a socket pair.

Only framing: what the messages mean is `messages`. Nothing here ever waits, because each side must
go on when the other is stopped. A body that is too long for a datagram travels in a memfd.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections import deque
from typing import Any, Final

from holdfast_agent.zygote import messages
from holdfast_agent.zygote.messages import Command, Event, Mode, Spawn, SpawnRank, SpawnRound

_DATAGRAM_LIMIT: Final = 32_768
"""Bytes; well below the kernel's smallest socket buffer, so a few dozen always fit."""

Message = Command | Event


def encode(message: Message) -> bytes:
    """Return the message as JSON."""
    fields = dataclasses.asdict(message)
    return json.dumps({"kind": type(message).__name__, **fields}, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, Mode):
        return value.value
    raise TypeError(f"{value!r} has no place in a message")


def decode(body: bytes) -> Message:
    """Return the message that `encode` made these bytes from."""
    fields = json.loads(body)
    kind = fields.pop("kind")
    if kind == "Spawn":
        return Spawn(_round(fields["round"]))
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    message: Message = getattr(messages, kind)(**(fields | lists))
    return message


def _round(fields: dict[str, Any]) -> SpawnRound:
    ranks = tuple(
        SpawnRank(**(rank | {"argv": tuple(rank["argv"]), "mode": Mode(rank["mode"])}))
        for rank in fields["ranks"]
    )
    return SpawnRound(round=fields["round"], ranks=ranks)


def pair() -> tuple[Channel, Channel]:
    """Return two connected channels."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(left), Channel(right)


class Channel:
    """One end of the control channel."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected SOCK_SEQPACKET socket."""
        sock.setblocking(False)
        self._socket = sock
        self._outbox: deque[bytes] = deque()
        self.closed = False
        """True once the other end is gone."""

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 after `close`."""
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Number of messages that the other side has had no room for; `flush` tries again."""
        return len(self._outbox)

    def send(self, message: Message) -> None:
        """Send now if the other side has room, else keep the message in order."""
        self._outbox.append(encode(message))
        self.flush()

    def flush(self) -> None:
        """Send what is waiting, as far as there is room."""
        while self._outbox and not self.closed:
            try:
                _send(self._socket, self._outbox[0])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True
                return
            self._outbox.popleft()

    def receive(self) -> list[Message]:
        """Return what has arrived; sets `closed` at the end of the stream."""
        found: list[Message] = []
        while not self.closed:
            try:
                body, descriptors, _, _ = socket.recv_fds(
                    self._socket, _DATAGRAM_LIMIT, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                break
            except ConnectionResetError:
                body, descriptors = b"", []
            if descriptors:
                body = _drain(descriptors[0])
            if body:
                found.append(decode(body))
            else:
                self.closed = True
        return found

    def abandon(self) -> None:
        """Forget the descriptor in a forked child, where somebody else closes it."""
        self.closed = True
        self._socket.detach()

    def close(self) -> None:
        """Close the descriptor; what still waits is dropped."""
        self.closed = True
        self._socket.close()


def _send(sock: socket.socket, body: bytes) -> None:
    if len(body) <= _DATAGRAM_LIMIT:
        sock.send(body, socket.MSG_NOSIGNAL)
        return
    fd = os.memfd_create("holdfast-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(body)
        socket.send_fds(sock, [b"memfd"], [fd], socket.MSG_NOSIGNAL)
    finally:
        os.close(fd)


def _drain(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()
