"""Descriptors of nodes' arenas, held by the runner so that they outlive a killed agent.

Belongs here: the stores, their assignment to agents, and the runner's side of the messages. Does
not belong here: the content of the memory (the runner can neither read nor change it).

An agent may be faulty, or killed half way: none of its messages makes the runner wait, or hold more
than its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Final

from holdfast_wire.datagrams import DatagramError
from holdfast_wire.fd_messages import ARENA, Freed, Greeting, Held, pair, receive, send

_log: Final = logging.getLogger(__name__)
MOST: Final = 64
"""Descriptors of one node: an arena for each rank, two while layouts change, 32 ranks."""
_LAST_WORDS: Final = 1024
"""Messages read from a dead agent; its socket holds some 250."""
_TURN: Final = 32
"""Messages of one node in a turn of the event loop."""
_PAUSE_SECONDS: Final = 0.05
"""Pause after a full turn, s: an agent that sends without end only fills its own socket."""


class FdStore:
    """Descriptors held for one node, and the connection to its agent, if there is one."""

    def __init__(
        self, node: int, free: Callable[[list[int]], None], has_room: Callable[[], bool]
    ) -> None:
        """Hold nothing; free: closes descriptors; has_room: whether one more may be held."""
        self._node, self._free, self._has_room = node, free, has_room
        self._items: dict[str, int] = {}
        self._socket: socket.socket | None = None
        self._warned = False

    @property
    def count(self) -> int:
        """Number of descriptors that are held."""
        return len(self._items)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `take_in` has a message; -1: none is."""
        return -1 if self._socket is None else self._socket.fileno()

    def connect(self) -> socket.socket:
        """Return an agent's end of a new connection, with all held descriptors in it already."""
        self.disconnect()
        self._socket, theirs = pair()
        self._warned = False
        send(self._socket, Greeting())
        for name, fd in list(self._items.items()):
            try:
                send(self._socket, Held(name), fd)
            except OSError as error:
                _log.warning("node %d: %s cannot be handed over: %s", self._node, name, error)
                self._free([self._items.pop(name)])
        return theirs

    def disconnect(self) -> None:
        """Read the agent's last messages, and hang up; held descriptors stay."""
        self.take_in(_LAST_WORDS)
        self._hang_up()

    def clear(self) -> None:
        """Close all held descriptors."""
        held, self._items = list(self._items.values()), {}
        if held:
            self._free(held)

    def take_in(self, most: int) -> bool:
        """Read messages, `most` at most; return whether there may be more."""
        for _ in range(most):
            if self._socket is None:
                return False
            try:
                word, fd = receive(self._socket)
            except BlockingIOError:
                return False
            except (EOFError, OSError):
                self._hang_up()
                return False
            except DatagramError as error:
                self._distrust(str(error))
                return False
            self._received(word, fd)
        return True

    def _received(self, word: object, fd: int | None) -> None:
        match word:
            case Held(name) if name not in self._items:
                self._hold(name, fd)
                return
            case Freed(name) if fd is None:
                if name in self._items:
                    self._free([self._items.pop(name)])
                return
        if fd is not None:
            os.close(fd)
        self._distrust(f"{word} makes no sense")

    def _hold(self, name: str, fd: int | None) -> None:
        if fd is None:
            self._warn("a descriptor did not arrive: too many open files")
        elif not _is_arena(fd):
            os.close(fd)
            self._distrust(f"{name} is no arena")
        elif len(self._items) >= MOST or not self._has_room():
            os.close(fd)
            self._warn(f"{len(self._items)} descriptors of it are held, and no more")
        else:
            self._items[name] = fd

    def _distrust(self, why: str) -> None:
        """Drop an agent that breaks the protocol: its messages cannot say what may be freed."""
        self._warn(f"{why}; its memory is not held any more")
        self._hang_up()
        self.clear()

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("node %d: checkpoints in memory may be lost: %s", self._node, what)

    def _hang_up(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()


class FdStores:
    """One store for each node rank. Methods: on the event loop."""

    def __init__(self) -> None:
        """Begin without stores."""
        self._stores: dict[int, FdStore] = {}
        self._owners: dict[int, str] = {}
        """Name of the newest pod of each node."""
        self._watched: dict[int, int] = {}
        """Node → descriptor that the event loop polls."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2
        """Limit for all nodes together; the other half is the runner's own."""

    def open(self, node: int, pod: str) -> socket.socket:
        """Return the agent's end of a new connection, with the descriptors of a dead agent.

        The descriptors of an agent that still lives are its own: they are closed here.
        """
        store = self._stores.setdefault(node, FdStore(node, _free, self._has_room))
        if store.fileno() >= 0:
            self._disconnect(node)
            store.clear()
        end = store.connect()
        self._owners[node] = pod
        self._watch(node)
        return end

    def ended(self, node: int, pod: str, *, keep: bool) -> None:
        """Note the end of a pod's agent; keep: its descriptors are for the node's next agent."""
        if self._owners.get(node) != pod:
            return
        self._disconnect(node)
        if not keep:
            self._stores[node].clear()

    def close(self) -> None:
        """Close everything: the job ends."""
        for node, store in self._stores.items():
            self._disconnect(node)
            store.clear()

    def _has_room(self) -> bool:
        return sum(store.count for store in self._stores.values()) < self._most

    def _disconnect(self, node: int) -> None:
        self._unwatch(node)
        self._stores[node].disconnect()

    def _watch(self, node: int) -> None:
        fd = self._stores[node].fileno()
        if fd >= 0 and node not in self._watched:
            self._watched[node] = fd
            asyncio.get_running_loop().add_reader(fd, self._readable, node)

    def _unwatch(self, node: int) -> None:
        fd = self._watched.pop(node, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)

    def _readable(self, node: int) -> None:
        store = self._stores[node]
        more = store.take_in(_TURN)
        if more or store.fileno() < 0:
            self._unwatch(node)
        if more:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._watch, node)


def _free(descriptors: list[int]) -> None:
    """Close on another thread: the last descriptor of many GiB takes a second."""
    asyncio.get_running_loop().run_in_executor(None, close_all, descriptors)


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors; the last one of large memory may take a while."""
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


def _is_arena(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{ARENA} ")  # noqa: PTH115
