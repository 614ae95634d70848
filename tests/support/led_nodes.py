"""Nodes whose keeper is led: real services, trainers and a master that say what they are told to.

What a test wants to see of the master's side lies in queues; `word` is the master's own word.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.flash.arena import Arena
from holdfast.flash.decide.room import Room
from holdfast.flash.decide.slots import SlotState, Version
from holdfast.flash.keeper import Keeper
from holdfast.flash.lead import Written
from holdfast.flash.led import LedService
from holdfast.flash.link import Granted, Hello, Layout, Link, Saved
from holdfast.flash.persisting import Grant
from holdfast.flash.room import memory_left
from holdfast.flash.sockets import connect, listen
from holdfast.flash.table import ShardTable, encode
from lone_peers import Nobody
from sample_shards import sample_shard

WAIT_S = 30.0


@dataclass
class Script:
    """A master whose words the test speaks; what it is told lies in queues."""

    told: dict[str, queue.Queue[Any]] = field(default_factory=dict)
    peers: Any = field(default_factory=Nobody)
    job: str = "job"

    def __getattr__(self, name: str) -> Any:
        if name not in ("held", "written", "committed", "asks", "checked"):
            raise AttributeError(name)
        return lambda *words, **more: self._queue(name).put((*words, *more.values()))

    def attempt(self, round_number: int) -> str:
        """All of a round's parts lie in this attempt's directory."""
        return f"w{round_number}"

    def world(self, round_number: int) -> str:
        """Names the world that the round was given to."""
        return f"w{round_number}"

    def _queue(self, name: str) -> queue.Queue[Any]:
        return self.told.setdefault(name, queue.Queue())

    def hears(self, name: str) -> Any:
        """Return the next word of a kind."""
        return self._queue(name).get(timeout=WAIT_S)

    def heard_nothing(self, name: str) -> bool:
        """Whether no word of a kind waits."""
        return self._queue(name).empty()


class Served(Protocol):
    """Who has a keeper that trainers can connect to."""

    @property
    def path(self) -> str:
        """Of its socket."""


@dataclass
class Node:
    """A served keeper and its master."""

    path: str
    service: LedService
    master: Script
    thread: threading.Thread
    """The service's."""

    def word(self, name: str, *words: Any) -> None:
        """Let the master say something, and wait until it was taken in."""
        taken = threading.Event()

        def take() -> None:
            getattr(self.service, name)(*words)
            taken.set()

        self.service.post(take)
        assert taken.wait(WAIT_S), name


@contextmanager
def served(
    folder: Path,
    name: str = "node",
    peers: Any = None,
    room: Callable[[], Room] = memory_left,
    job: str = "job",
) -> Iterator[Node]:
    """Serve a job's trainers on one node; `peers` is its way to other nodes' memory."""
    path, keeper = str(folder / name), Keeper(room, led=True)
    master = Script(peers=peers or Nobody(), job=job)
    service = LedService(keeper, listen(path), master)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield Node(path, service, master, thread)
    finally:
        service.stop()
        thread.join()
        keeper.close()


@dataclass
class Rank:
    """A trainer that says what it is told to."""

    link: Link
    arena: Arena

    def save(self, version: Version, *, durable: bool = False) -> None:
        """Fill a free slot and tell."""
        slot = next(slot for slot in self.arena.slots if slot.state is SlotState.EMPTY)
        table = self.arena.table
        slot.begin_write(version, rank=table.rank, world=table.world, layout=self.arena.layout)
        slot.image[:] = bytes([version.step]) * len(slot.image)
        slot.commit([10])
        self.link.send(Saved(lineage=version.lineage, step=version.step, durable=durable))

    def holds(self) -> set[int]:
        """Return the steps in its slots."""
        return {slot.version.step for slot in self.arena.slots if slot.state is SlotState.VALID}

    def comes_to_hold(self, steps: set[int]) -> None:
        """Wait until these are left: a slot that is being hashed goes a moment later."""
        deadline = time.monotonic() + WAIT_S
        while self.holds() != steps:
            assert time.monotonic() < deadline, self.holds()
            time.sleep(0.001)


@contextmanager
def rank_of(
    node: Served,
    root: Path,
    rank: int,
    world: int = 2,
    round_number: int = 1,
    table: ShardTable | None = None,
    kept: int = 1,
) -> Iterator[Rank]:
    """Connect a trainer of a node, with an arena."""
    link = connect(node.path)
    link.send(
        Hello(
            rank=rank, world=world, kept=kept, lineage=round_number, root=str(root),
            keep_last=3, keep_every=0,
        )
    )  # fmt: skip
    table = table or sample_shard(rank, world, random.Random(0))[0].table
    link.send(Layout(table=encode(table).decode(), bytes_room=4096, slots=3))
    _, (fd,), _ = link.expect(Granted, timeout_s=WAIT_S)
    arena = Arena(fd)
    os.close(fd)
    try:
        yield Rank(link, arena)
    finally:
        link.close()


def grant_of(written: Written, own: str) -> Grant:
    """Return the grant of what was written."""
    return Grant(
        version=written.version,
        world=written.world,
        root=written.root,
        attempt=written.attempt,
        own=own,
    )


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Node, Rank, Node, Rank]]:
    """Two nodes of one rank each, which share a directory."""
    root = folder / "root"
    root.mkdir()
    with (
        served(folder, "n0") as first,
        served(folder, "n1") as second,
        rank_of(first, root, 0) as rank_0,
        rank_of(second, root, 1) as rank_1,
    ):
        yield first, rank_0, second, rank_1
