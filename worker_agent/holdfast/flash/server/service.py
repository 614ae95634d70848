"""Serves the trainers of a node: arena store, connections, and a thread for slow work.

One thread owns the store and all connections. It reads a disk only while a world starts, when no
rank trains. A worker thread (`worker_thread`) hashes, writes and commits, one job after another, so
that the trainers keep their cores. The `CommitPolicy` commits steps, the `RestorePolicy` chooses a
world's start: `local_commit` has both without a job master. With one they are `coordinated_commit`
and `coordinated_restore`. `tiers` has the places that they write to and start from, `protocol` the
messages and the end of one trainer.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from holdfast import loop_errors
from holdfast.flash.memory.arena import RankArena
from holdfast.flash.memory.slots import Version
from holdfast.flash.server import protocol
from holdfast.flash.server.arena_store import ArenaStore, ArenaStoreError
from holdfast.flash.server.tiers import CheckpointTier, MemoryTier, SlotImage, StorageTier, TierNode
from holdfast.flash.server.worker_thread import RankCopies, WorkerThread, failure_of
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import Shard
from holdfast.flash.storage.writer import SlotWork
from holdfast_wire.messages import Tier

log: Final = logging.getLogger(__name__)

TIERS: Final[Mapping[Tier, Callable[[TierNode], CheckpointTier]]] = MappingProxyType(
    {Tier.MEMORY: MemoryTier, Tier.STORAGE: StorageTier}
)
"""Tiers of a node, the nearest first: a start prefers it among equals."""


class ServerState:
    """State that a service and its commit policy share; used by the service's thread only."""

    def __init__(
        self,
        arenas: ArenaStore,
        disk: Disk | None = None,
        tiers: Mapping[Tier, Callable[[TierNode], CheckpointTier]] = TIERS,
    ) -> None:
        """Take the arena store; disk: file system of the checkpoints, the system's by default.

        tiers: The makers of the tiers, the nearest first.
        """
        self.arenas = arenas
        self.worker = WorkerThread()
        self.members: list[protocol.Member] = []
        """Trainers that are connected."""
        node = TierNode(arenas=arenas, disk=disk or Disk(), awaited=lambda: bool(self.members))
        self.tiers = {name: make(node) for name, make in tiers.items()}
        """Tiers of this node, the nearest first."""
        self.begun = -1
        """Newest lineage whose ranks know their start."""
        self.parts: dict[tuple[Tier, Version], dict[int, Shard]] = {}
        """Parts in a tier of versions that still lack another rank's part here."""
        self.writing: collections.Counter[tuple[Tier, Version]] = collections.Counter()
        """Number of parts that are still to be written, by tier and version."""

    def tier(self, name: Tier) -> CheckpointTier:
        """Return a tier; raises `LinkError` if a trainer named one that this node lacks."""
        if name not in self.tiers:
            known = ", ".join(one.name for one in self.tiers)
            raise protocol.LinkError(f"tier={name.name}: this node has {known}")
        return self.tiers[name]

    def commit(self, job: SlotWork, parts: Mapping[int, Shard]) -> None:
        """Commit a step that no master has to grant, now that all ranks' parts here are written."""
        commit = self.tiers[job.tier].commit
        assert commit is not None, "a part was written"  # noqa: S101
        work = commit(job, parts)

        def committed(_: None, error: str) -> None:
            if error:
                self.tell_failed(job.tier, job.version, error)
            elif self.tiers[job.tier].durable:
                self.tell(job.version, protocol.Durable(step=job.version.step))

        what = f"committing step {job.version.step}"
        self.worker.hand_out(what, work, committed, CommitError)

    def commits_alone(self, name: Tier) -> bool:
        """Return True if this node commits its own parts in a tier: none waits for them there."""
        tier = self.tiers[name]
        return tier.commit is not None and tier.shared is None

    def tell(self, version: Version, news: protocol.Durable | protocol.Failed) -> None:
        """Tell the ranks that wait for a step whether it is committed."""
        for member in self.members:
            if version in member.durable:
                member.durable.discard(version)
                member.link.send(news)

    def tell_failed(self, name: Tier, version: Version, error: str) -> None:
        """Tell the ranks that wait for a step that it will not be committed in a tier."""
        self.parts.pop((name, version), None)
        if self.commits_alone(name):
            log.warning("step %d is not in %s: %s", version.step, name.name, error)
        else:
            self.tell(version, protocol.Failed(step=version.step, error=error))

    def start_from(
        self,
        members: Sequence[protocol.Member],
        version: Version | None,
        tiers: Sequence[Tier],
        notes: Sequence[str],
        lent: Sequence[SlotImage] = (),
    ) -> None:
        """Let ranks that wait start from a version; None: from nothing.

        tiers: Tiers with images of it, the one that it was chosen from last.
        notes: Versions that were passed over, with reasons. lent: Images on other nodes.
        """
        if version is None:
            self.answer(members, protocol.RestoreStart(notes=tuple(notes)))
            return
        found = [self.tiers[name].images(version) for name in tiers]
        slots = [*(slot for one in found for slot in one.slots), *lent]
        start = protocol.RestoreStart(
            lineage=version.lineage,
            step=version.step,
            path=found[-1].path,
            ranks=tuple(one.rank for one in slots),
            slots=tuple(one.index for one in slots),
            lent=tuple(one.rank for one in slots if one.lent),
            durable=self.tiers[tiers[-1]].durable,
            notes=tuple(notes),
        )
        self.answer(members, start, tuple(one.fd for one in slots))

    @staticmethod
    def answer(
        members: Sequence[protocol.Member],
        message: protocol.RestoreStart | protocol.RequestRefused,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Answer ranks that wait for their start."""
        for member in members:
            member.asks = False
            member.link.send(message, descriptors)


class CommitPolicy(Protocol):
    """Policy of commits: local, or coordinated. Called by the service's thread.

    A method that ends with `return` does nothing, unless a subclass does.
    """

    def token(self, hello: protocol.TrainerHello) -> str:
        """Return the name of a world's attempts, equal for all of its ranks."""

    def owner(self, hello: protocol.TrainerHello) -> str:
        """Return the name of the job."""

    def parts_ready(self, job: SlotWork, parts: Mapping[int, Shard]) -> None:
        """Have the step committed, now that the parts of all ranks here are in the job's tier."""

    def failed(self, name: Tier, version: Version, error: str) -> None:
        """Note that a rank here has no part of a step; the service tells the ranks that wait."""
        return

    def turn_ended(self) -> None:
        """Look at the changes of a turn of the service."""
        return

    def leave_nothing(self) -> None:
        """Delete unfinished attempts on storage, as the job is over; raises OSError."""
        return


class RestorePolicy(Protocol):
    """Policy of restores: local, or coordinated. Called by the service's thread."""

    @property
    def is_busy(self) -> bool:
        """True while work is under way that must end before the service does."""

    def choose(self, lineage: int, asking: list[protocol.Member]) -> None:
        """Answer ranks that wait for their start, at once or later; no older world lives."""

    def fetch(self, member: protocol.Member, wanted: protocol.Fetch) -> None:
        """Read items of other nodes' memory for a rank; raises `LinkError` if none is lent."""


class Service:
    """Runs until `stop`; without a listener, until its trainers are gone and the work is done."""

    def __init__(
        self,
        node: ServerState,
        commit: CommitPolicy,
        restore: RestorePolicy,
        listener: socket.socket | None = None,
    ) -> None:
        self.arenas = node.arenas
        self.arenas.listen = self._listen
        self._node, self._listener = node, listener
        self._commit, self._restore = commit, restore
        self._worker = node.worker
        self._making = WorkerThread()
        """Makes arenas: that may take a second per GiB, and need not wait for writes."""
        self._copies = RankCopies()
        self._stopping = self._over = False

    def add(self, link: protocol.ServerLink) -> None:
        """Serve a trainer that is connected already."""
        member = protocol.Member.of(link)
        if member is not None:
            self._node.members.append(member)

    def stop(self, *, over: bool = False) -> None:
        """End `run`, from any thread, after the work in flight; over: the job is over too."""
        self._over |= over
        self._stopping = True
        self._worker.wake()

    def post(self, work: Callable[[], None]) -> None:
        """Run a callback on the thread that owns the store; from any thread."""
        self._worker.post(work)

    def run(self) -> None:
        """Serve; return when no trainer is left."""
        self._worker.start()
        self._making.start()
        try:
            while not self._finished():
                self._turn()
        finally:
            self._worker.end()
            self._making.end()
            if self._over and (
                error := failure_of("clearing up", self._commit.leave_nothing, OSError)
            ):
                log.warning("of what was begun on storage something stays: %s", error)
            for member in list(self._node.members):
                self._forget(member)
            if self._listener is not None:
                self._listener.close()

    def _finished(self) -> bool:
        alone = self._listener is None and not self._node.members
        busy = self._worker.in_flight or self._making.in_flight or self._restore.is_busy
        return (self._stopping or alone) and not busy

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._worker, select.POLLIN)
        poll.register(self._making, select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for member in self._node.members:
            poll.register(member.link, select.POLLIN)
            poll.register(member.pidfd, select.POLLIN)
        unheard = any(member.inbox for member in self._node.members)
        ready = {fd for fd, _ in poll.poll(0 if unheard else None)}
        self._worker.take_in()
        self._making.take_in()
        if self._listener is not None and self._listener.fileno() in ready:
            self.add(protocol.ServerLink(self._listener.accept()[0]))
        self._hear_all(ready)
        self._answer()
        self._commit.turn_ended()

    def _hear_all(self, ready: set[int]) -> None:
        """Act on the messages of trainers, and on the last messages of dead ones."""
        self._listen()
        for member in list(self._node.members):
            while member.inbox:
                self._hear(member, member.inbox.popleft())
            if member.pidfd in ready or member.link.closed:
                self._forget(member)

    def _forget(self, member: protocol.Member) -> None:
        self._node.members.remove(member)
        self._copies.give_up()
        member.close()

    def _hear(self, member: protocol.Member, message: object) -> None:
        try:
            self._take(member, message)
        except (protocol.LinkError, ArenaStoreError) as error:
            number = message.number if isinstance(message, protocol.Layout) else 0
            member.link.send(protocol.RequestRefused(error=str(error), number=number))
        except Exception as error:  # the top of the loop: one trainer's fault is not the others'
            number, peer = loop_errors.count(__name__), member.link.peer
            log.exception("a message of process %d failed (fault %d)", peer, number)
            member.link.send(protocol.RequestRefused(error=f"{type(error).__name__}: {error}"))

    def _listen(self) -> None:
        """Receive the messages of all trainers, without acting on them yet."""
        for member in self._node.members:
            for said in member.take_in():
                if isinstance(said, protocol.Saved) and member.hello is not None:
                    tier = self._node.tiers.get(said.tier)
                    if tier is not None and tier.commit is not None:
                        self.arenas.asked.add(_asked(member, said))

    def _take(self, member: protocol.Member, message: object) -> None:
        match message:
            case protocol.TrainerHello():
                self._join(member, message)
            case protocol.Restore():
                self.arenas.needs[member.rank] = message.needs
                member.asks = True
            case protocol.Layout():
                self._grant(member, message)
            case protocol.Saved():
                try:
                    self._saved(member, message)
                finally:
                    self.arenas.asked.discard(_asked(member, message))
            case protocol.NotSaved():
                self._not_saved(member, message)
            case protocol.Fetch():
                self._restore.fetch(member, message)
            case protocol.LinkError():
                raise message
            case _:
                raise protocol.LinkError(f"{type(message).__name__} is not for a checkpoint server")

    def _grant(self, member: protocol.Member, layout: protocol.Layout) -> None:
        arenas, rank = self.arenas, member.rank
        if found := arenas.find_arena(rank, layout):
            self._granted(member, layout, found, "")
            return

        def made(held: RankArena | None, error: str) -> None:
            if held is not None:
                arenas.held.add(held)
            self._granted(member, layout, held, error)

        make = partial(arenas.make, rank, layout)
        self._making.hand_out(f"an arena of rank {rank}", make, made, ArenaStoreError)

    def _granted(
        self, member: protocol.Member, layout: protocol.Layout, held: RankArena | None, error: str
    ) -> None:
        if member not in self._node.members:
            return  # the arena is there for the trainer's successor
        if held is None:
            member.link.send(protocol.RequestRefused(error=error, number=layout.number))
        else:
            member.link.send(protocol.Granted(number=layout.number), (held.fd,))

    def _join(self, member: protocol.Member, hello: protocol.TrainerHello) -> None:
        for other in self._node.members:
            same = other is not member and other.hello is not None
            if same and (other.rank, other.lineage) == (hello.rank, hello.lineage):
                raise ArenaStoreError(
                    f"rank {hello.rank} has a Checkpointer already, of process {other.link.peer}: "
                    "an agent keeps one for each rank; close that one first"
                )
        member.hello = hello
        attempt, owner = self._commit.token(hello), self._commit.owner(hello)
        for tier in self._node.tiers.values():
            tier.join(hello, attempt, owner)

    def _saved(self, member: protocol.Member, saved: protocol.Saved) -> None:
        if saved.final and self.arenas.led:
            raise protocol.LinkError(
                f"final={saved.final!r}: where a job's checkpoints are, its root says"
            )
        tier = self._node.tier(saved.tier)
        self._node.begun = member.lineage
        version = Version(saved.lineage, saved.step)
        self._copies.copied(
            version, member.rank, [one.rank for one in self._node.members if one.hello]
        )
        if tier.commit is None and self._worker.in_flight:
            self.arenas.saved(member.rank, version, saved.tier, work=False)
            return
        job = self.arenas.saved(member.rank, version, saved.tier)
        if job is not None and saved.final:
            job = dataclasses.replace(job, final=saved.final)
        if tier.durable:
            member.durable.add(version)
        if job is None:
            self._fail(saved.tier, version, f"step {saved.step} is in no slot any more")
            return
        self._work_on(job)

    def _not_saved(self, member: protocol.Member, told: protocol.NotSaved) -> None:
        """Note that a rank has no part of a step: the others' parts are useless."""
        log.warning("rank %d did not save step %d: %s", member.rank, told.step, told.error)
        version = Version(told.lineage, told.step)
        error = f"rank {member.rank} did not save it: {told.error}"
        if self._node.tier(told.tier).commit is None:
            self._commit.failed(told.tier, version, error)
            return
        self._fail(told.tier, version, error)
        if self.arenas.kept < self.arenas.world and not self.arenas.led:
            self._leave_word(member.rank, version, told)

    def _leave_word(self, rank: int, version: Version, told: protocol.NotSaved) -> None:
        """Tell the servers of other ranks, which meet this one in a shared place alone."""
        shared = self._node.tiers[told.tier].shared
        if shared and (work := shared.leave_word(version, told.final, rank, told.error)):
            self._worker.hand_out("leaving word", work, lambda *_: None)

    def _work_on(self, job: SlotWork) -> None:
        self._node.writing[job.tier, job.version] += 1
        tier, what = self._node.tiers[job.tier], f"a job on step {job.version.step}"

        def write() -> Shard:
            self._copies.wait(job.version)
            return tier.write(job)

        self._worker.hand_out(what, write, partial(self._done, job), CommitError)

    def _done(self, job: SlotWork, shard: Shard | None, error: str) -> None:
        node, key = self._node, (job.tier, job.version)
        node.writing[key] -= 1
        if not node.writing[key]:
            del node.writing[key]
        self.arenas.done(job)
        if node.tiers[job.tier].commit is None:
            return
        if shard is None:
            self._fail(job.tier, job.version, error)
            return
        parts = node.parts.setdefault(key, {})
        parts[job.held.rank] = shard
        if len(parts) < min(shard.table.world, self.arenas.kept):
            return
        del node.parts[key]
        self._commit.parts_ready(job, parts)

    def _fail(self, name: Tier, version: Version, error: str) -> None:
        self._commit.failed(name, version, error)
        self._node.tell_failed(name, version, error)

    def _answer(self) -> None:
        """Answer the ranks that wait for their start, once no older world can change it."""
        members = self._node.members
        asking = [member for member in members if member.asks and member.hello]
        if not asking or self._worker.in_flight:
            return
        lineage = max(member.lineage for member in members)
        if all(member.lineage == lineage for member in members if member.hello):
            self._restore.choose(lineage, asking)


def _asked(member: protocol.Member, saved: protocol.Saved) -> tuple[int, Version, Tier]:
    """Return the entry of `ArenaStore.asked`; of one step there may be several messages."""
    return member.rank, Version(saved.lineage, saved.step), saved.tier
