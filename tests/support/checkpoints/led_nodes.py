"""Nodes whose keeper is led: real services, trainers and a master that say what they are told to.

What a test wants to see of the master's side lies in queues; `word` is the master's own word.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from checkpoints.lone_peers import Nobody
from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.memory_budget import Room, memory_left
from holdfast.flash.memory.shard_table import ShardTable, encode
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.coordinated_commit import CoordinatedCommit
from holdfast.flash.server.local_commit import LocalCommit, LocalRestore
from holdfast.flash.server.protocol import (
    Granted,
    Layout,
    Saved,
    ServerLink,
    TrainerHello,
    connect,
    listen,
)
from holdfast.flash.server.service import TIERS, Service
from holdfast.flash.server.service import ServerState as ServedNode
from holdfast.flash.server.tiers import CheckpointTier, TierNode
from holdfast.flash.storage.filesystem import Disk
from holdfast_agent.checkpoint.arenas import act_on
from holdfast_wire.messages import (
    CommitAnnounced,
    CommitGrant,
    CommitResult,
    FlushToStorage,
    MemoryCheckpoints,
    ReleaseCheckpoints,
    RestorePlan,
    RestorePlanVerified,
    RestoreRequest,
    ShardsPersisted,
    Tier,
)
from holdfast_wire.messages.spec import CheckpointPolicy
from house.patience import patience

WAIT_SECONDS = 30.0 * patience()
_T = TypeVar("_T")

REPORTS: dict[type, str] = {
    MemoryCheckpoints: "held",
    ShardsPersisted: "written",
    CommitResult: "committed",
    RestoreRequest: "asks",
    RestorePlanVerified: "checked",
}
"""What a node tells its master, and what tests call it."""


@dataclass
class Script:
    """A master whose words the test speaks; what it is told lies in queues."""

    told: dict[str, queue.Queue[Any]] = field(default_factory=dict)
    peers: Any = field(default_factory=Nobody)
    job: str = "job"

    def send(self, message: Any, round_number: int | None = None) -> None:
        """Take what a node tells."""
        self._queue(REPORTS[type(message)]).put((message, round_number))

    def attempt(self, round_number: int) -> str:
        """All of a round's parts lie in this attempt's directory."""
        return f"w{round_number}"

    def world(self, round_number: int) -> str:
        """Names the world that the round was given to."""
        return f"w{round_number}"

    def _queue(self, name: str) -> queue.Queue[Any]:
        return self.told.setdefault(name, queue.Queue())

    def hears(self, name: str) -> Any:
        """Return the next message of a kind."""
        return self._queue(name).get(timeout=WAIT_SECONDS)[0]

    def hears_held(self) -> tuple[int, frozenset[Version], bool]:
        """Return the next round, what its ranks have in memory, and whether that is everything."""
        held, number = self._queue("held").get(timeout=WAIT_SECONDS)
        return number, frozenset(held.versions), held.whole

    def heard_nothing(self, name: str) -> bool:
        """Return whether no word of a kind waits."""
        return self._queue(name).empty()


class Served(Protocol):
    """A server with a keeper that trainers can connect to."""

    @property
    def path(self) -> str:
        """Of its socket."""


@dataclass
class Node:
    """A served keeper and its master."""

    path: str
    service: Service
    shared: ServedNode
    """What the service shares with its commit policy."""
    commit: CoordinatedCommit
    master: Script
    thread: threading.Thread
    """The service's."""

    def word(self, message: Any, round_number: int = 0) -> None:
        """Let the master say something, and wait until it was taken in."""
        self._do(lambda: act_on(message, round_number, self.commit))

    def grant(self, parts: ShardsPersisted, own: str) -> str:
        """Let the master grant parts; return why they were not committed."""
        self.word(grant_of(parts, own))
        error: str = self.master.hears("committed").error
        return error

    def restate(self) -> None:
        """Let a new master welcome the node."""
        self._do(self.commit.restate)

    def _do(self, work: Callable[[], None]) -> None:
        taken = threading.Event()

        def take() -> None:
            work()
            taken.set()

        self.service.post(take)
        assert taken.wait(WAIT_SECONDS)


@contextmanager
def running(service: Service) -> Iterator[threading.Thread]:
    """Run a service on a thread of its own; at the end its arenas go too."""
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield thread
    finally:
        service.stop()
        thread.join()
        service.arenas.close()


@dataclass
class LoneServer:
    """A served keeper without a master."""

    path: str
    service: Service


@contextmanager
def alone(
    path: Path,
    arenas: ArenaStore | None = None,
    disk: Disk | None = None,
    tiers: Mapping[Tier, Callable[[TierNode], CheckpointTier]] = TIERS,
) -> Iterator[LoneServer]:
    """Serve a node's trainers, without a master; at the end its arenas go."""
    node = ServedNode(arenas or ArenaStore(), disk, tiers)
    service = Service(node, LocalCommit(node), LocalRestore(node), listen(str(path)))
    with running(service):
        yield LoneServer(str(path), service)


@contextmanager
def served(
    folder: Path,
    name: str = "node",
    peers: Any = None,
    room: Callable[[], Room] = memory_left,
    job: str = "job",
    tiers: Mapping[Tier, Callable[[TierNode], CheckpointTier]] = TIERS,
) -> Iterator[Node]:
    """Serve a job's trainers on one node; `peers` is its way to other nodes' memory."""
    path, arenas = str(folder / name), ArenaStore(room, led=True)
    master, shared = Script(peers=peers or Nobody(), job=job), ServedNode(arenas, tiers=tiers)
    commit = CoordinatedCommit(shared, master)
    service = Service(shared, commit, commit.restore, listen(path))
    with running(service) as thread:
        yield Node(path, service, shared, commit, master, thread)


@dataclass
class Rank:
    """A trainer that says what it is told to."""

    link: ServerLink
    table: ShardTable
    """Of its arenas."""

    @cached_property
    def arena(self) -> Arena:
        """Arena that the server has made for it; asked for once."""
        self.link.send(Layout(table=encode(self.table).decode(), bytes_room=4096, slots=3))
        _, (fd,) = answered(self.link, Granted)
        arena = Arena(fd)
        os.close(fd)
        return arena

    def save(self, version: Version, *, durable: bool = False) -> None:
        """Fill a free slot and tell."""
        self.save_to(Tier.STORAGE if durable else Tier.MEMORY, version)

    def save_to(self, tier: Tier, version: Version) -> None:
        """Fill a free slot and tell which tier it is for."""
        slot = next(slot for slot in self.arena.slots if slot.state is SlotState.EMPTY)
        slot.begin_write(version)
        slot.image[:] = bytes([version.step]) * len(slot.image)
        slot.commit([10])
        self.tell_saved(tier, version)

    def tell_saved(self, tier: Tier, version: Version) -> None:
        """Tell that a slot is for a tier; for a second tier the slot is filled already."""
        self.link.send(Saved(lineage=version.lineage, step=version.step, tier=tier))

    def holds(self) -> set[int]:
        """Return the steps in its slots."""
        return {slot.version.step for slot in self.arena.slots if slot.state is SlotState.VALID}

    def comes_to_hold(self, steps: set[int]) -> None:
        """Wait until these are left: a slot that is being hashed goes a moment later."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.holds() != steps:
            assert time.monotonic() < deadline, self.holds()
            time.sleep(0.001)


@contextmanager
def connected(
    node: Served,
    root: Path | str,
    rank: int,
    world: int = 2,
    round_number: int = 1,
    table: ShardTable | None = None,
    kept: int = 1,
) -> Iterator[Rank]:
    """Connect a trainer of a node; it asks for its arena when it needs one."""
    link = connect(node.path)
    link.send(
        TrainerHello(
            rank=rank, world=world, kept=kept, lineage=round_number, root=str(root),
            policy=CheckpointPolicy(keep_last=3),
        )
    )  # fmt: skip
    try:
        yield Rank(link, table or sample_shard(rank, world, random.Random(0))[0].table)
    finally:
        link.close()


@contextmanager
def rank_of(*place: Any, **named: Any) -> Iterator[Rank]:
    """Connect a trainer as `connected`, with an arena."""
    with connected(*place, **named) as rank:
        assert rank.arena.slots
        yield rank


def received(link: ServerLink, kind: type[_T]) -> _T:
    """Return the next message of a kind, and close its descriptors."""
    found, descriptors = answered(link, kind)
    for fd in descriptors:
        os.close(fd)
    return found


def answered(link: ServerLink, kind: type[_T]) -> tuple[_T, tuple[int, ...]]:
    """Return the next message of a kind, with its descriptors; those before it are passed over."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        left = deadline - time.monotonic()
        assert left > 0, kind
        found = link.receive(left)
        assert not link.closed, kind
        if found is not None and isinstance(found[0], kind):
            return found[0], found[1]


def save_all(version: Version, *pairs: tuple[Node, Rank]) -> list[ShardsPersisted]:
    """Have each rank save a step for storage; return what their nodes report."""
    for _, rank in pairs:
        rank.save(version, durable=True)
    return [node.master.hears("written") for node, _ in pairs]


def grant_of(written: ShardsPersisted, own: str) -> CommitGrant:
    """Return the grant of what was written."""
    return CommitGrant(
        version=written.version,
        world_size=written.world_size,
        root=written.root,
        attempt=written.attempt,
        own=own,
    )


def announced(version: Version, error: str = "") -> CommitAnnounced:
    """Return the word that a step is committed, or why it will not be."""
    return CommitAnnounced(version=version, error=error)


def released(complete: Version | None = None, passed_over: tuple[Version, ...] = ()) -> Any:
    """Return the word of what all nodes have, and of what they never will."""
    return ReleaseCheckpoints(complete=complete, passed_over=passed_over)


def flush_to_storage(version: Version, attempt: str) -> FlushToStorage:
    """Return the word that a version is to go from memory to storage."""
    return FlushToStorage(version=version, attempt=attempt)


def plan(version: Version | None = None, **more: Any) -> RestorePlan:
    """Return what a round is to start from, number 5 if no other is named."""
    return RestorePlan(**{"plan_id": 5, "shares": 1, "version": version, **more})


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
