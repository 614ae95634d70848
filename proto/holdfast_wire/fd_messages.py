"""Messages between agent and local runner about arenas: JSON datagrams with a descriptor.

Belongs here: the messages and their framing. Does not belong here: the reaction to a message (the
agent's `holdfast.flash.memory.fdstore_backend`, the runner's `fd_store`). Nothing here waits,
whatever the other side does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
from dataclasses import dataclass
from typing import Any, Final, get_args

from holdfast_wire.fd_passing import receive_fds, send_fds

ARENA: Final = "holdfast-arena"
"""Name of every memfd that is an arena."""
_LONGEST: Final = 256
_NAME: Final = re.compile(r"[0-9a-z-]{1,64}")


class WordsError(Exception):
    """The other side sent something that is no message."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """First message of the runner: it identifies the socket."""


@dataclass(frozen=True, slots=True)
class Held:
    """From the agent: hold this arena. From the runner: this one is held. With its descriptor."""

    name: str


@dataclass(frozen=True, slots=True)
class Freed:
    """From the agent: the arena is not needed any more."""

    name: str


Message = Greeting | Held | Freed
_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(Message)}


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection.

    Returns:
        Two sockets that never block; the caller closes them.
    """
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def send(sock: socket.socket, message: Message, *descriptors: int) -> None:
    """Send a message at once.

    Args:
        sock: An end of `pair`.
        message: The message.
        descriptors: Descriptors to send with it; the caller still owns them.

    Raises:
        OSError: The message cannot be sent.
    """
    body = json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)}).encode()
    send_fds(sock, body, descriptors, socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> tuple[Message, int | None]:
    """Return the next message that has arrived.

    Args:
        sock: An end of `pair`.

    Returns:
        The message, and the descriptor sent with it, which the caller then owns; None: none.

    Raises:
        BlockingIOError: No message has arrived.
        EOFError: The other side is gone.
        WordsError: It sent no valid message; descriptors sent with it are closed.
    """
    try:
        body, found, shown = receive_fds(sock, _LONGEST, 1, socket.MSG_DONTWAIT)
    except ConnectionResetError as error:
        raise EOFError from error
    if not body and not found:
        raise EOFError
    # Cut, and without a descriptor: this process has no room for one more, which is not their
    # fault.
    surplus = shown & socket.MSG_CTRUNC and found
    try:
        if surplus or shown & socket.MSG_TRUNC:
            raise WordsError(f"{len(body)} bytes, or the descriptors beside them, are too many")
        return _decode(body), found[0] if found else None
    except WordsError:
        for fd in found:
            os.close(fd)
        raise


def _decode(body: bytes) -> Message:
    try:
        fields = json.loads(body)
        message: Message = _KINDS[fields.pop("kind")](**fields)
        if not isinstance(message, Greeting) and not _NAME.fullmatch(message.name):
            raise ValueError(message.name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WordsError(f"{len(body)} bytes are no message: {error!r:.100}") from error
    return message
