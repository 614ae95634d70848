"""The shelves of all nodes of a job: which agent has which, and when what is on one goes.

Belongs here: a node's rule of inheritance, turns of the event loop. Does not belong here: what is
said and held (`shelf`).
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from typing import Final

from holdfast_cli.runner.shelf import Shelf, close_all

_TURN: Final = 32
"""Messages of one node in a turn of the event loop."""
_PAUSE_S: Final = 0.05
"""After a full turn, s: who goes on without end fills its own socket, and keeps nothing else."""


class Shelves:
    """One for each node rank. Methods: the event loop's."""

    def __init__(self) -> None:
        """Begin with none."""
        self._shelves: dict[int, Shelf] = {}
        self._owners: dict[int, str] = {}
        """Name of the newest pod of each node."""
        self._watched: dict[int, int] = {}
        """Descriptors that the event loop looks at, by node."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2
        """Of all nodes together; the other half is the runner's own."""

    def open(self, node: int, pod: str) -> socket.socket:
        """Return the end of a new connection for the agent of a pod, with what a dead one left.

        What an agent has that still lives is its own: it is let go.
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
        """The agent of a pod has ended; keep: what it had is for the next one of the node."""
        if self._owners.get(node) != pod:
            return
        self._disconnect(node)
        if not keep:
            self._shelves[node].clear()

    def drop(self, node: int, pod: str) -> None:
        """The place of a pod that has ended goes."""
        self.ended(node, pod, keep=False)

    def close(self) -> None:
        """Let go of everything: the job ends."""
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
            asyncio.get_running_loop().call_later(_PAUSE_S, self._watch, node)


def _free(descriptors: list[int]) -> None:
    """Close beside the loop: the last descriptor of many GiB takes a second."""
    asyncio.get_running_loop().run_in_executor(None, close_all, descriptors)
