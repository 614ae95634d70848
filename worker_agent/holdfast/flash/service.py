"""Serves the trainers of a node: a keeper, its connections, and a thread for slow work.

One thread owns the keeper and all connections; it reads a disk only while a world starts, when
nobody trains. A second one hashes, writes and commits, one job after another, so that the trainer
keeps its cores.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.flash.commit import CommitError
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk, PosixDisk
from holdfast.flash.keeper import Job, Keeper, KeeperError
from holdfast.flash.link import (
    Durable,
    Failed,
    Granted,
    Hello,
    Layout,
    Link,
    LinkError,
    Message,
    Origin,
    Refused,
    Restore,
    Saved,
)
from holdfast.flash.manifest import FormatError, Shard
from holdfast.flash.origin import choose_origin
from holdfast.flash.persisting import Storage, hashed

log: Final = logging.getLogger(__name__)


Heard = tuple[Message, tuple[int, ...]] | LinkError
"""A message with its descriptors, or why it is none."""


@dataclass(eq=False, slots=True)
class Member:
    """One connected trainer."""

    link: Link
    pidfd: int
    """Tells of its death; the connection alone does not, where a forked child holds it too."""
    hello: Hello | None = None
    asks: bool = False
    """It waits for an `Origin`."""
    durable: set[Version] = field(default_factory=set)
    """What it waits for."""
    inbox: collections.deque[Heard] = field(default_factory=collections.deque)
    """What it has said and nobody has acted on."""


class Service:
    """Runs until `stop`, or, without a listener, until its trainers are gone and work is done."""

    def __init__(
        self,
        keeper: Keeper | None = None,
        listener: socket.socket | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Take the keeper, and where new trainers connect."""
        self.keeper = keeper or Keeper()
        self.keeper.listen = self._listen
        self._listener = listener
        self._disk = disk or PosixDisk()
        self._members: list[Member] = []
        self._storage: Storage | None = None
        self._origin: tuple[int, Origin] | None = None
        self._parts: dict[Version, dict[int, Shard]] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._in_flight = 0
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def add(self, link: Link) -> None:
        """Serve a trainer that is connected already."""
        try:
            pidfd = os.pidfd_open(link.peer)
        except ProcessLookupError:
            link.close()
            return
        self._members.append(Member(link, pidfd))

    def stop(self) -> None:
        """End `run`, from any thread, once the work in flight is done."""
        self._stopping = True
        self._wake()

    def run(self) -> None:
        """Serve; returns when there is nobody left to serve."""
        worker = threading.Thread(target=self._labour, name="holdfast-keeper", daemon=True)
        worker.start()
        try:
            while not self._finished():
                self._turn()
        finally:
            self._work.put(None)
            worker.join()
            for member in list(self._members):
                self._forget(member)
            if self._listener is not None:
                self._listener.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _finished(self) -> bool:
        alone = self._listener is None and not self._members
        return (self._stopping or alone) and not self._in_flight

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _labour(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for member in self._members:
            poll.register(member.link, select.POLLIN)
            poll.register(member.pidfd, select.POLLIN)
        # What was taken in and not acted on wakes nobody any more.
        unheard = any(member.inbox for member in self._members)
        ready = {fd for fd, _ in poll.poll(0 if unheard else None)}
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        while not self._results.empty():
            result = self._results.get()
            try:
                result()
            except Exception:  # the top of the loop: the keeper serves on
                log.exception("a result could not be taken in")
        if self._listener is not None and self._listener.fileno() in ready:
            self.add(Link(self._listener.accept()[0]))
        self._hear_all(ready)
        self._answer()
        self._turned()

    def _hear_all(self, ready: set[int]) -> None:
        """Act on what trainers say, and on the last words of those that are dead."""
        for member in [m for m in self._members if m.link.fileno() in ready]:
            self._hear(member)
        for member in list(self._members):
            while member.inbox and member in self._members:
                self._hear(member)
        for member in [m for m in self._members if m.pidfd in ready]:
            while member.inbox or (not member.link.closed and self._said(member)):
                self._hear(member)
            self._forget(member)

    def _turned(self) -> None:
        """Look at what a turn has changed; a hook of `led`."""

    def _said(self, member: Member) -> bool:
        """Tell whether a dead trainer's last words are still to be heard."""
        poll = select.poll()
        poll.register(member.link, select.POLLIN)
        return member in self._members and bool(member.inbox or poll.poll(0))

    def _forget(self, member: Member) -> None:
        if member in self._members:
            self._members.remove(member)
            member.link.close()
            os.close(member.pidfd)

    def _hear(self, member: Member) -> None:
        try:
            found = member.inbox.popleft() if member.inbox else member.link.receive(0)
            if isinstance(found, LinkError):
                raise found
            if found is not None:
                for fd in found[1]:  # no message from a trainer carries one
                    os.close(fd)
                self._take(member, found[0])
        except (LinkError, KeeperError) as error:
            member.link.send(Refused(error=str(error)))
        except Exception as error:  # the top of the loop: one trainer's fault is not the others'
            log.exception("a message of process %d failed", member.link.peer)
            member.link.send(Refused(error=f"{type(error).__name__}: {error}"))
        if member.link.closed and not member.inbox:
            self._forget(member)

    def _listen(self) -> None:
        """Take in what all trainers have said, without acting on it yet."""
        for member in self._members:
            while (found := self._next(member)) is not None:
                member.inbox.append(found)
                said = None if isinstance(found, LinkError) else found[0]
                if isinstance(said, Saved) and said.durable and member.hello is not None:
                    self.keeper.asked.add((_rank(member), Version(said.lineage, said.step)))

    @staticmethod
    def _next(member: Member) -> Heard | None:
        try:
            return None if member.link.closed else member.link.receive(0)
        except LinkError as error:
            return error

    def _take(self, member: Member, message: object) -> None:
        match message:
            case Hello():
                self._join(member, message)
            case Restore():
                member.asks = True
            case Layout():
                held = self.keeper.grant(_rank(member), message)
                member.link.send(Granted(), (held.fd,))
            case Saved():
                try:
                    self._saved(member, message)
                finally:
                    version = Version(message.lineage, message.step)
                    self.keeper.asked.discard((_rank(member), version))
            case _:
                raise LinkError(f"{type(message).__name__} is not for a keeper")

    def _join(self, member: Member, hello: Hello) -> None:
        for other in self._members:
            same = other is not member and other.hello is not None
            if same and (_rank(other), lineage_of(other)) == (hello.rank, hello.lineage):
                raise KeeperError(
                    f"rank {hello.rank} has a Checkpointer already, of process {other.link.peer}: "
                    "an agent keeps one for each rank; close that one first"
                )
        member.hello = hello
        self.keeper.join(hello)
        token = self._token(hello)
        known = self._storage
        if hello.root and (known is None or (known.root, known.token) != (hello.root, token)):
            self._storage = Storage(
                self._disk,
                hello.root,
                token,
                RetentionSettings(keep_last=hello.keep_last, keep_every=hello.keep_every),
                awaited=lambda: bool(self._members),
            )

    def _token(self, hello: Hello) -> str:
        """Return the name of this world's attempts, the same wherever its ranks are kept.

        Another world's is another, or what it left half done would pass for this one's.
        """
        return hello.token or f"{self.keeper.token}r{hello.lineage}"

    def _saved(self, member: Member, saved: Saved) -> None:
        version = Version(saved.lineage, saved.step)
        if not saved.durable and self._in_flight:
            self.keeper.saved(_rank(member), version, durable=False, work=False)
            return
        job = self.keeper.saved(_rank(member), version, durable=saved.durable)
        if job is not None and saved.final:
            job = dataclasses.replace(job, final=saved.final)
        if saved.durable:
            member.durable.add(version)
        if job is None:
            self._failed(version, f"step {saved.step} is in no slot any more")
            return
        self._work_on(job)

    def _work_on(self, job: Job) -> None:
        self._hand_out(lambda: self._do(job))

    def _do(self, job: Job) -> None:
        """Work on the worker's thread; only the results come back to the other."""
        shard, error = None, ""
        try:
            if job.durable and self._storage is not None:
                shard = self._storage.write(job, alone=self._alone(job))
            else:
                hashed(job)
        except CommitError as failure:
            error = str(failure)
        except Exception as failure:  # the top of the worker's loop
            log.exception("a job on step %d failed", job.version.step)
            error = f"{type(failure).__name__}: {failure}"
        self.post(lambda: self._done(job, shard, error))

    def _alone(self, job: Job) -> bool:
        """Tell whether others will look for a description of what this keeper writes."""
        return job.held.arena.table.world > self.keeper.kept

    def post(self, work: Callable[[], None]) -> None:
        """Have something done by the thread that owns the keeper; from any thread."""
        self._results.put(work)
        self._wake()

    def _hand_out(self, work: Callable[[], None]) -> None:
        """Have something slow done by the other thread; `_in_flight` falls when it is done."""
        self._in_flight += 1
        self._work.put(work)

    def _done(self, job: Job, shard: Shard | None, error: str) -> None:
        self.keeper.done(job)
        self._in_flight -= 1
        if not job.durable:
            return
        if shard is None:
            self._failed(job.version, error or "the trainer named no directory")
            return
        parts = self._parts.setdefault(job.version, {})
        parts[job.held.rank] = shard
        if len(parts) < min(shard.table.world, self.keeper.kept):
            return
        del self._parts[job.version]
        self._written(job, parts)

    def _written(self, job: Job, parts: dict[int, Shard]) -> None:
        """All parts that lie here are durable; see that the step is committed."""
        self._hand_out(lambda: self._commit(job, parts))

    def _commit(self, job: Job, parts: dict[int, Shard]) -> None:
        assert self._storage is not None, "a shard was written to it"  # noqa: S101
        error = ""
        try:
            self._storage.commit(job, parts)
        except CommitError as failure:
            error = str(failure)
        except Exception as failure:  # the top of the worker's loop
            log.exception("committing step %d failed", job.version.step)
            error = f"{type(failure).__name__}: {failure}"
        self.post(lambda: self._committed(job, error))

    def _committed(self, job: Job, error: str) -> None:
        self._in_flight -= 1
        if error:
            self._failed(job.version, error)
        else:
            self._announce(job.version)

    def _announce(self, version: Version) -> None:
        for member in self._members:
            if version in member.durable:
                member.durable.discard(version)
                member.link.send(Durable(step=version.step))

    def _failed(self, version: Version, error: str) -> None:
        self._parts.pop(version, None)
        for member in self._members:
            if version in member.durable:
                member.durable.discard(version)
                member.link.send(Failed(step=version.step, error=error))

    def _answer(self) -> None:
        """Answer those who ask what to start from, once no older world is left to change it."""
        asking = [member for member in self._members if member.asks and member.hello]
        if not asking or self._in_flight:
            return
        lineage = max(lineage_of(member) for member in self._members)
        if any(member.hello and lineage_of(member) != lineage for member in self._members):
            return
        if self._origin is None or self._origin[0] != lineage:
            try:
                self._origin = (lineage, self._choose(asking[0]))
            except (OSError, FormatError) as error:
                self._refuse(asking, str(error))
                return
        origin = self._origin[1]
        version = Version(origin.lineage, origin.step)
        held = [held for held, _ in self.keeper.places(version)] if origin.ranks else []
        self._tell(asking, origin, [one.fd for one in held])

    @staticmethod
    def _tell(members: list[Member], origin: Origin, descriptors: Sequence[int] = ()) -> None:
        for member in members:
            member.asks = False
            member.link.send(origin, tuple(descriptors))

    @staticmethod
    def _refuse(members: list[Member], error: str) -> None:
        for member in members:
            member.asks = False
            member.link.send(Refused(error=error))

    def _choose(self, member: Member) -> Origin:
        root = member.hello.root if member.hello else ""
        origin = choose_origin(self.keeper, self._disk, root)
        if self._storage is not None and self._storage.root == root:
            self._storage.clear_up()
        return origin


def _rank(member: Member) -> int:
    if member.hello is None:
        raise LinkError("the first message must be Hello")
    return member.hello.rank


def lineage_of(member: Member) -> int:
    """Return the round of a trainer's world; -1 before its first word."""
    return member.hello.lineage if member.hello else -1
