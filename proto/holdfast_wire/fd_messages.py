"""Messages between agent and local runner about arenas, each with at most one descriptor.

Belongs here: the messages. Does not belong here: their form (`datagrams`), the reaction to one (the
agent's `holdfast.flash.memory.fdstore_backend`, the runner's `fd_store`). Nothing here waits,
whatever the other side does.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Final, get_args

from holdfast_wire import datagrams

ARENA: Final = "holdfast-arena"
"""Name of every memfd that is an arena."""
_LONGEST: Final = 256
_NAME: Final = re.compile(r"[0-9a-z-]{1,64}")


@dataclass(frozen=True, slots=True)
class Greeting:
    """First message of the runner: it identifies the socket."""


@dataclass(frozen=True, slots=True)
class _Named:
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name={self.name!r:.80}: expected {_NAME.pattern}")


class Held(_Named):
    """From the agent: hold this arena. From the runner: this one is held. With its descriptor."""


class Freed(_Named):
    """From the agent: the arena is not needed any more."""


Message = Greeting | Held | Freed


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection, which never block; the caller closes them."""
    ends = datagrams.pair()
    for end in ends:
        end.setblocking(False)
    return ends


def send(sock: socket.socket, message: Message, *descriptors: int) -> None:
    """Send a message at once, or raise OSError; the caller still owns the descriptors."""
    datagrams.send(sock, datagrams.encode(message), descriptors, socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> tuple[Message, int | None]:
    """Return the next message that has arrived, and its descriptor, which the caller then owns.

    Raises:
        BlockingIOError: No message has arrived.
        EOFError: The other side is gone.
        DatagramError: It sent no valid message; descriptors sent with it are closed.
    """
    body, found = datagrams.receive(
        sock, socket.MSG_DONTWAIT, longest=_LONGEST, most=1, trusted=False
    )
    try:
        return datagrams.decode(body, get_args(Message)), found[0] if found else None
    except datagrams.DatagramError:
        for fd in found:
            os.close(fd)
        raise
