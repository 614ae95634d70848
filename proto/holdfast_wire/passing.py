"""Datagrams with descriptors beside them, with the flags that are asked for.

Python's own `socket.send_fds` and `recv_fds` take flags and drop them: what they receive is
inherited by every program that is started, and both wait where they were told not to.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

_INT = array.array("i").itemsize


def send_fds(sock: socket.socket, body: bytes, descriptors: Sequence[int], flags: int = 0) -> None:
    """Send a datagram; nobody gets a SIGPIPE."""
    beside = []
    if descriptors:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sock.sendmsg([body], beside, flags | socket.MSG_NOSIGNAL)


def receive_fds(
    sock: socket.socket, size: int, most: int, flags: int = 0
) -> tuple[bytes, list[int], int]:
    """Return a datagram, so many descriptors at most, and the kernel's flags.

    The descriptors are the caller's, and nobody inherits them.
    """
    found = array.array("i")
    body, beside, shown, _ = sock.recvmsg(
        size, socket.CMSG_LEN(most * _INT), flags | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _INT])
    return body, list(found), shown
