"""Serves the trainers of a node: a keeper, its connections, and a thread for slow work.

One thread owns the keeper and all connections; it reads a disk only while a world starts, when
nobody trains. A second one (`labour`) hashes, writes and commits, one job after another, so that
the trainer keeps its cores. What a trainer says and when it is gone is `member`.
"""

from __future__ import annotations

import dataclasses
import logging
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

from holdfast import faults
from holdfast.flash.commit import CommitError
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk, PosixDisk
from holdfast.flash.holdings import Held
from holdfast.flash.keeper import Job, Keeper, KeeperError
from holdfast.flash.labour import Labour, failure_of, outcome_of
from holdfast.flash.link import (
    Durable,
    Failed,
    Granted,
    Hello,
    Layout,
    Link,
    LinkError,
    NotSaved,
    Origin,
    Refused,
    Restore,
    Saved,
)
from holdfast.flash.manifest import FormatError, Shard
from holdfast.flash.member import Member
from holdfast.flash.origin import choose_origin
from holdfast.flash.persisting import Storage, hashed

log: Final = logging.getLogger(__name__)


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
        self._labour = Labour()
        self._making = Labour()
        """Makes arenas: that may take a second a GiB, and waits for nothing that is written."""
        self._stopping = self._over = False

    def add(self, link: Link) -> None:
        """Serve a trainer that is connected already."""
        member = Member.of(link)
        if member is not None:
            self._members.append(member)

    def stop(self, *, over: bool = False) -> None:
        """End `run`, from any thread, once the work in flight is done; over: so is the job."""
        self._over |= over
        self._stopping = True
        self._labour.wake()

    def post(self, work: Callable[[], None]) -> None:
        """Have something done by the thread that owns the keeper; from any thread."""
        self._labour.post(work)

    def run(self) -> None:
        """Serve; returns when there is nobody left to serve."""
        self._labour.start()
        self._making.start()
        try:
            while not self._finished():
                self._turn()
        finally:
            self._labour.end()
            self._making.end()
            if self._over and (error := failure_of("clearing up", self._leave_nothing, OSError)):
                log.warning("of what was begun on storage something stays: %s", error)
            for member in list(self._members):
                self._forget(member)
            if self._listener is not None:
                self._listener.close()

    def _leave_nothing(self) -> None:
        """Delete what was begun on storage: the job is over; a hook of `led`."""

    def _finished(self) -> bool:
        alone = self._listener is None and not self._members
        busy = self._labour.in_flight or self._making.in_flight
        return (self._stopping or alone) and not busy

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._labour, select.POLLIN)
        poll.register(self._making, select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for member in self._members:
            poll.register(member.link, select.POLLIN)
            poll.register(member.pidfd, select.POLLIN)
        unheard = any(member.has_unheard for member in self._members)
        ready = {fd for fd, _ in poll.poll(0 if unheard else None)}
        self._labour.take_in()
        self._making.take_in()
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
            while member.has_unheard and member in self._members:
                self._hear(member)
        for member in [m for m in self._members if m.pidfd in ready]:
            while member in self._members and member.has_last_words():
                self._hear(member)
            self._forget(member)

    def _turned(self) -> None:
        """Look at what a turn has changed; a hook of `led`."""

    def _forget(self, member: Member) -> None:
        if member in self._members:
            self._members.remove(member)
            member.close()

    def _hear(self, member: Member) -> None:
        message = None
        try:
            message = member.hear()
            if message is not None:
                self._take(member, message)
        except (LinkError, KeeperError) as error:
            number = message.number if isinstance(message, Layout) else 0
            member.link.send(Refused(error=str(error), number=number))
        except Exception as error:  # the top of the loop: one trainer's fault is not the others'
            number, peer = faults.count(__name__), member.link.peer
            log.exception("a message of process %d failed (fault %d)", peer, number)
            member.link.send(Refused(error=f"{type(error).__name__}: {error}"))
        if member.is_done:
            self._forget(member)

    def _listen(self) -> None:
        """Take in what all trainers have said, without acting on it yet."""
        for member in self._members:
            for said in member.take_in():
                if isinstance(said, Saved) and said.durable and member.hello is not None:
                    self.keeper.asked.add((member.rank, Version(said.lineage, said.step)))

    def _take(self, member: Member, message: object) -> None:
        match message:
            case Hello():
                self._join(member, message)
            case Restore():
                member.asks = True
            case Layout():
                self._grant(member, message)
            case Saved():
                try:
                    self._saved(member, message)
                finally:
                    version = Version(message.lineage, message.step)
                    self.keeper.asked.discard((member.rank, version))
            case NotSaved():
                self._not_saved(member, message)
            case _:
                raise LinkError(f"{type(message).__name__} is not for a keeper")

    def _grant(self, member: Member, layout: Layout) -> None:
        found, keeper = self.keeper.look_up(member.rank, layout), self.keeper
        if isinstance(found, Held):
            self._granted(member, layout, found, "")
            return
        wanted, what = found, f"an arena of rank {member.rank}"

        def made(outcome: tuple[Held | None, str]) -> None:
            held, error = outcome
            if held is not None:
                keeper.adopt(held)
            self._granted(member, layout, held, error)

        self._making.hand_out(
            lambda: outcome_of(what, lambda: keeper.make(wanted), KeeperError), made
        )

    def _granted(self, member: Member, layout: Layout, held: Held | None, error: str) -> None:
        if member not in self._members:
            return  # what was made is there for its successor
        if held is None:
            member.link.send(Refused(error=error, number=layout.number))
        else:
            member.link.send(Granted(number=layout.number), (held.fd,))

    def _join(self, member: Member, hello: Hello) -> None:
        for other in self._members:
            same = other is not member and other.hello is not None
            if same and (other.rank, other.lineage) == (hello.rank, hello.lineage):
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
                self._owner(hello),
                awaited=lambda: bool(self._members),
            )

    def _token(self, hello: Hello) -> str:
        """Return the name of this world's attempts, the same wherever its ranks are kept.

        Another world's is another, or what it left half done would pass for this one's.
        """
        return hello.token or f"{self.keeper.token}r{hello.lineage}"

    def _owner(self, hello: Hello) -> str:
        """Return the name of the job: without an agent, of this run of the script."""
        return hello.token or self.keeper.token

    def _saved(self, member: Member, saved: Saved) -> None:
        version = Version(saved.lineage, saved.step)
        if not saved.durable and self._labour.in_flight:
            self.keeper.saved(member.rank, version, durable=False, work=False)
            return
        job = self.keeper.saved(member.rank, version, durable=saved.durable)
        if job is not None and saved.final:
            job = dataclasses.replace(job, final=saved.final)
        if saved.durable:
            member.durable.add(version)
        if job is None:
            self._failed(version, f"step {saved.step} is in no slot any more")
            return
        self._work_on(job)

    def _not_saved(self, member: Member, told: NotSaved) -> None:
        """A rank has no part of a step: what others have of it never comes to anything."""
        log.warning("rank %d did not save step %d: %s", member.rank, told.step, told.error)
        if told.durable:
            version = Version(told.lineage, told.step)
            self._failed(version, f"rank {member.rank} did not save it: {told.error}")
            if self.keeper.kept < self.keeper.world and not self.keeper.led:
                self._leave_word(member.rank, version, told)

    def _leave_word(self, rank: int, version: Version, told: NotSaved) -> None:
        """Have the keepers of other ranks know, which meet this one on storage alone."""
        if storage := self._storage:
            self._labour.hand_out(
                lambda: storage.leave_word(version, told.final, rank, told.error), lambda _: None
            )

    def _work_on(self, job: Job) -> None:
        self._labour.hand_out(lambda: self._do(job), lambda found: self._done(job, *found))

    def _do(self, job: Job) -> tuple[Shard | None, str]:
        """Work on the labour's thread; only the results come back to the other."""

        def do() -> Shard | None:
            if job.durable and self._storage is not None:
                return self._storage.write(job, alone=self._alone(job))
            hashed(job)
            return None

        return outcome_of(f"a job on step {job.version.step}", do, CommitError)

    def _alone(self, job: Job) -> bool:
        """Tell whether others will look for a description of what this keeper writes."""
        return job.held.arena.table.world > self.keeper.kept

    def _done(self, job: Job, shard: Shard | None, error: str) -> None:
        self.keeper.done(job)
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
        storage = self._storage
        assert storage is not None, "a shard was written to it"  # noqa: S101
        what = f"committing step {job.version.step}"
        self._labour.hand_out(
            lambda: failure_of(what, lambda: storage.commit(job, parts), CommitError),
            lambda error: self._committed(job, error),
        )

    def _committed(self, job: Job, error: str) -> None:
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
        if not asking or self._labour.in_flight:
            return
        lineage = max(member.lineage for member in self._members)
        if any(member.hello and member.lineage != lineage for member in self._members):
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
            error = failure_of("clearing up", self._storage.clear_up, OSError)
            if error:  # it costs room, not safety: the directory may be there to read only
                log.warning("earlier worlds' parts stay: %s", error)
        return origin
