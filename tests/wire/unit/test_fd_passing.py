"""Descriptors beside datagrams: whose they are, and that nobody waits who asked not to."""

from __future__ import annotations

import os
import socket

import pytest

from holdfast.flash.server.protocol import Granted, Link
from holdfast_wire.fd_passing import receive_fds, send_fds


def test_what_is_received_is_not_inherited() -> None:
    """A program that a rank starts at that moment would otherwise pin a whole arena."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        send_fds(ends[0], b"x", [0])
        body, (fd,), _ = receive_fds(ends[1], 10, 1)
        assert (body, os.get_inheritable(fd)) == (b"x", False)
        os.close(fd)
        near, far = Link(ends[0]), Link(ends[1])
        near.send(Granted(), (0,))
        answer = far.receive(1.0)
        assert answer is not None
        assert not os.get_inheritable(answer[1][0])
        os.close(answer[1][0])


def test_flags_count() -> None:
    """Neither side waits for the other where it asked not to, whatever the socket says."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        with pytest.raises(BlockingIOError):
            receive_fds(one, 10, 1, socket.MSG_DONTWAIT)
        with pytest.raises(BlockingIOError):
            _send_often(one)


def _send_often(sock: socket.socket) -> None:
    for _ in range(100_000):
        send_fds(sock, b"x", [], socket.MSG_DONTWAIT)
