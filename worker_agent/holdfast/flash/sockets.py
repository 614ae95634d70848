"""Where trainers find their keeper: a unix socket in a directory, whatever the path's length.

The kernel takes 107 bytes of a path, and a temporary directory may be deeper. So both sides open
the directory and name the socket from there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.flash.commit import unique
from holdfast.flash.link import Link


def listen(path: str) -> socket.socket:
    """Return a listening socket at `path`, which must not exist; only this user may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _folder_of(path) as (folder, name):
            private = f"{folder}/.{unique()}"
            listener.bind(private)
            os.chmod(private, 0o600)  # noqa: PTH101
            listener.listen()
            os.rename(private, f"{folder}/{name}")  # noqa: PTH104 - not found before it is private
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: str) -> Link:
    """Return a connection to the keeper that listens at `path`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _folder_of(path) as (folder, name):
            sock.connect(f"{folder}/{name}")
    except OSError:
        sock.close()
        raise
    return Link(sock)


@contextmanager
def _folder_of(path: str) -> Iterator[tuple[str, str]]:
    """Give a short path of the directory, and the name in it."""
    parent, name = Path(path).absolute().parent, Path(path).name
    fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}", name
    finally:
        os.close(fd)
