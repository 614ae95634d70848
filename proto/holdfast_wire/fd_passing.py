"""Datagrams with descriptors, sent and received with the requested flags.

Python's own `socket.send_fds` and `recv_fds` ignore their flags: received descriptors are inherited
by every program that is started, and both calls block in spite of MSG_DONTWAIT.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

_INT = array.array("i").itemsize


def send_fds(sock: socket.socket, body: bytes, descriptors: Sequence[int], flags: int = 0) -> None:
    """Send a datagram without SIGPIPE.

    Args:
        sock: A Unix socket, datagram or SEQPACKET.
        body: The datagram.
        descriptors: Descriptors to send with it; the caller still owns them.
        flags: Flags of sendmsg, for example MSG_DONTWAIT.

    Raises:
        OSError: The datagram was not sent.
    """
    beside = []
    if descriptors:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sock.sendmsg([body], beside, flags | socket.MSG_NOSIGNAL)


def receive_fds(
    sock: socket.socket, size: int, most: int, flags: int = 0
) -> tuple[bytes, list[int], int]:
    """Receive a datagram and its descriptors.

    Args:
        sock: A Unix socket, datagram or SEQPACKET.
        size: Largest datagram, bytes; a longer one is cut.
        most: Largest number of descriptors; the kernel closes further ones.
        flags: Flags of recvmsg, for example MSG_DONTWAIT.

    Returns:
        The datagram; the descriptors, which the caller owns and no child inherits; the kernel's
        flags: MSG_TRUNC and MSG_CTRUNC mean that something was cut.

    Raises:
        OSError: No datagram could be received.
    """
    found = array.array("i")
    body, beside, shown, _ = sock.recvmsg(
        size, socket.CMSG_LEN(most * _INT), flags | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _INT])
    return body, list(found), shown
