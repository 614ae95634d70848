"""Arenas in memfds whose descriptors the job's runner holds too, so that they outlive their agent.

Belongs here: making and freeing the arenas, and the agent's side of the connection to the runner.
No torch.

Nothing here waits for the runner or depends on it. An arena that the runner does not take is held
by this process and its trainers alone, and is gone with them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.flash.ids import unique
from holdfast.flash.memory.arena import ArenaError, Geometry, in_memory
from holdfast.flash.memory.recovery import ArenaBackend, BackendError
from holdfast_wire.datagrams import DatagramError
from holdfast_wire.fd_messages import Freed, Greeting, Held, receive, send

log: Final = logging.getLogger(__name__)
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class FdStoreBackend(ArenaBackend):
    """Arenas of this node whose descriptors the runner holds."""

    def __init__(self, fd: int, job: str) -> None:
        """Take over the inherited socket, and the arenas that a dead agent left.

        Raises `BackendError` if the socket is no runner's, and leaves it alone.
        """
        super().__init__(job)
        self._socket: socket.socket | None = _connection(fd)
        self._left: dict[str, int] = {}
        """Name → descriptor of each arena that a dead agent left, until `take_over`."""
        self._names: set[str] = set()
        """Names of the arenas that the runner holds."""
        self._unsaid: list[str] = []
        """Names of freed arenas that the runner does not know of yet."""
        self._warned = False
        self._lock = threading.RLock()
        """Arenas are made by one thread and freed by another."""
        self._unpack(self._socket)

    def _unpack(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, EOFError, DatagramError):
            while True:  # the runner sent all of it before this process began: no waiting
                word, fd = receive(sock)
                if not isinstance(word, Held):
                    continue
                self._names.add(word.name)
                if fd is None:
                    log.warning("%s of a dead agent did not arrive: too many open files", word.name)
                    self.remove(word.name)
                else:
                    self._left[word.name] = fd

    @property
    def is_empty(self) -> bool:
        """True if no agent left an arena here."""
        return not self._left

    def make(self, table: bytes, geometry: Geometry) -> tuple[int, str]:
        """Return the descriptor and the name of a new arena.

        The name is empty if the runner does not hold the arena.
        """
        try:
            fd = _reopened(in_memory(table, geometry, self._job))
        except OSError as error:
            text = f"an arena of {geometry.total} bytes cannot be made: {error.strerror}"
            raise BackendError(text) from error
        name = unique()
        return fd, name if self._hand_over(name, fd) else ""

    def _hand_over(self, name: str, fd: int) -> bool:
        """Send a descriptor for which the kernel counts no opener: see `recovery`."""
        with self._lock:
            self._say_freed()
            if self._socket is None:
                return False
            try:
                shown = os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
                try:
                    send(self._socket, Held(name), shown)
                finally:
                    os.close(shown)
            except OSError as error:
                self._warn(error)
                return False
            self._names.add(name)
            return True

    def _found(self) -> list[tuple[str, Callable[[], int]]]:
        left, self._left = self._left, {}
        return [(name, partial(_reopened, fd)) for name, fd in sorted(left.items())]

    def _secure(self, fd: int, _: Geometry) -> None:
        """Refuse memory that another process could shrink: a reader would get SIGBUS."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            seals = 0  # a file
        if seals & _SIZE_SEALS != _SIZE_SEALS:
            raise ArenaError("its size is not sealed")

    def remove(self, path: str) -> None:
        """Have the runner free an arena."""
        with self._lock:
            if path in self._names:
                self._names.discard(path)
                self._unsaid.append(path)
                self._say_freed()

    def close(self) -> None:
        """Have the runner free all arenas, and disconnect. A second call does nothing."""
        for fd in self._left.values():
            os.close(fd)
        self._left = {}
        for name in sorted(self._names):
            self.remove(name)
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _say_freed(self) -> None:
        """Send the names of freed arenas; a name that cannot be sent now goes out with the next."""
        while self._unsaid and self._socket is not None:
            try:
                send(self._socket, Freed(self._unsaid[0]))
            except OSError as error:
                self._warn(error)
                return
            del self._unsaid[0]

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the runner takes no checkpoint memory (%s): what is made now is lost with this "
                "agent",
                error,
            )


def _connection(fd: int) -> socket.socket:
    """Return the socket, after a check that its first message is a runner's."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise BackendError(f"descriptor {fd} is no socket: {error.strerror}") from error
    with contextlib.ExitStack() as undo:
        undo.callback(sock.detach)
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            raise BackendError(f"descriptor {fd} is another kind of socket")
        try:
            if receive(sock) != (Greeting(), None):
                raise BackendError(f"descriptor {fd} leads to somebody else")
        except (OSError, EOFError, DatagramError) as error:
            raise BackendError(f"descriptor {fd} leads to no runner: {error!r}") from error
        undo.pop_all()
    sock.set_inheritable(False)
    return sock


def _reopened(fd: int) -> int:
    """Return another descriptor of a memfd in place of `fd`, with an opener of its own.

    The kernel counts no opener for the descriptor that `memfd_create` returns: it would grant a
    write lease while a dead agent's trainers still map the memory.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(fd)
