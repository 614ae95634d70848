"""Descriptor stores of all nodes of a job: their assignment to agents, and their end.

Belongs here: the rule by which a node's next agent inherits, turns of the event loop. Does not
belong here: messages and descriptors (`fd_store`).
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from typing import Final

from holdfast_cli.runner.fd_store import Shelf, close_all

_TURN: Final = 32
"""Messages of one node in a turn of the event loop."""
_PAUSE_SECONDS: Final = 0.05
"""Pause after a full turn, s: an agent that sends without end only fills its own socket."""


class Shelves:
    """One store for each node rank. Methods: on the event loop."""

    def __init__(self) -> None:
        """Begin without stores."""
        self._shelves: dict[int, Shelf] = {}
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
        shelf = self._shelves.setdefault(node, Shelf(node, _free, self._has_room))
        if shelf.fileno() >= 0:
            self._disconnect(node)
            shelf.clear()
        end = shelf.connect()
        self._owners[node] = pod
        self._watch(node)
        return end

    def ended(self, node: int, pod: str, *, keep: bool) -> None:
        """Note the end of a pod's agent; keep: its descriptors are for the node's next agent."""
        if self._owners.get(node) != pod:
            return
        self._disconnect(node)
        if not keep:
            self._shelves[node].clear()

    def drop(self, node: int, pod: str) -> None:
        """Drop the store of a place whose pod has ended."""
        self.ended(node, pod, keep=False)

    def close(self) -> None:
        """Close everything: the job ends."""
        for node, shelf in self._shelves.items():
            self._disconnect(node)
            shelf.clear()

    def _has_room(self) -> bool:
        return sum(shelf.count for shelf in self._shelves.values()) < self._most

    def _disconnect(self, node: int) -> None:
        self._unwatch(node)
        self._shelves[node].disconnect()

    def _watch(self, node: int) -> None:
        fd = self._shelves[node].fileno()
        if fd >= 0 and node not in self._watched:
            self._watched[node] = fd
            asyncio.get_running_loop().add_reader(fd, self._readable, node)

    def _unwatch(self, node: int) -> None:
        fd = self._watched.pop(node, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)

    def _readable(self, node: int) -> None:
        shelf = self._shelves[node]
        more = shelf.take_in(_TURN)
        if more or shelf.fileno() < 0:
            self._unwatch(node)
        if more:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._watch, node)


def _free(descriptors: list[int]) -> None:
    """Close on another thread: the last descriptor of many GiB takes a second."""
    asyncio.get_running_loop().run_in_executor(None, close_all, descriptors)
