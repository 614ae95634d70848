"""A keeper's service under a job master: what it tells, and what it does at the master's word.

Nothing is committed without a grant, a world of several nodes starts from what the master says, and
what may leave memory there is the master's to say too. `Lead` is the way to the master; the agent
provides it. Everything here runs on the service's own thread; a master's word comes by `post`.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from typing import Final

from holdfast.flash.borrowing import Borrower
from holdfast.flash.commit import read_manifest_or_none
from holdfast.flash.decide.slots import Version
from holdfast.flash.gathering import Gatherer
from holdfast.flash.granting import Grants
from holdfast.flash.keeper import Job, Keeper
from holdfast.flash.labour import failure_of
from holdfast.flash.lead import Answer, HeldPart, Lead, Question, Written
from holdfast.flash.leftovers import leave_nothing
from holdfast.flash.lending import Lender
from holdfast.flash.link import Fetch, Fetched, Hello, LinkError, NotSaved, Origin, Refused, Saved
from holdfast.flash.manifest import FormatError, ManifestError, Shard
from holdfast.flash.member import Member
from holdfast.flash.persisting import Grant, Storage
from holdfast.flash.reading import committed, verify
from holdfast.flash.rescuing import Order, Rescuer
from holdfast.flash.service import Service

log: Final = logging.getLogger(__name__)

_MOST_STORED: Final = 16
_MOST_PARTS: Final = 8


class LedService(Service):
    """Serves the trainers of one node of a job."""

    def __init__(self, keeper: Keeper, listener: object, lead: Lead) -> None:
        """Take the keeper, where trainers connect, and the way to the master."""
        super().__init__(keeper, listener)  # type: ignore[arg-type] # a socket
        self._lead = lead
        self._held: tuple[int, frozenset[Version]] = (0, frozenset())
        self._unannounced: dict[Version, Written] = {}
        self._writing: collections.Counter[Version] = collections.Counter()
        """Parts of ranks that are on their way to storage, by what the ranks themselves asked."""
        self._rescuer = Rescuer(keeper, self._disk, lead.job, self._labour.hand_out, self._told)
        self._begun_in: set[tuple[str, str]] = set()
        """Directory and name of all attempts that parts were written to, or may have been."""
        self._grants = Grants(self._disk, self._labour, lead.job, lead.committed)
        self._question: Question | None = None
        self.lender = Lender(keeper, self._labour.hand_out)
        self._borrower = Borrower(Gatherer(lead.peers, keeper.room), self.post)
        self._verified = 0
        """The answer from storage that memory was compared with."""
        self._begun = -1
        """The newest round whose ranks know what they start from."""

    def _token(self, hello: Hello) -> str:
        token = self._lead.attempt(hello.lineage)
        self._begun_in.add((hello.root, token))
        return token

    def _owner(self, _: Hello) -> str:
        return self._lead.job

    def _alone(self, _: Job) -> bool:
        return True  # whoever gets the grant reads what each part says of itself

    # --- memory ---------------------------------------------------------------------------------

    def _turned(self) -> None:
        """Tell the master what is in memory; what a rank saved before it died is there too."""
        keeper = self.keeper
        if not keeper.here or len(keeper.here) < keeper.kept:
            return
        if keeper.lineage != self._begun:
            return  # what there is may have to be fallen back to
        now = (keeper.lineage, keeper.offer.saved_by(keeper.here, keeper.world))
        if now != self._held:
            self._held = now
            self._lead.held(*now, whole=keeper.offer.is_whole(now[1]))

    def release(self, complete: Version | None, hopeless: frozenset[Version]) -> None:
        """Take the master's word on what need not be kept."""
        self.keeper.note_complete(complete, hopeless)
        if complete is not None and complete.lineage >= self._begun:
            self._borrower.give_up()  # all ranks have saved since: they have what they read

    def _saved(self, member: Member, saved: Saved) -> None:
        if saved.final:
            raise LinkError(f"final={saved.final!r}: where a job's checkpoints are, its root says")
        self._begun = member.lineage
        super()._saved(member, saved)

    # --- storage --------------------------------------------------------------------------------

    def _written(self, job: Job, parts: dict[int, Shard]) -> None:
        self._say(
            Written(
                version=job.version,
                world=job.held.arena.table.world,
                ranks=tuple(sorted(parts)),
                root=self._storage.root if self._storage else "",
                attempt=self._storage.token if self._storage else "",
                size=sum(shard.bytes for shard in parts.values()),
            )
        )

    def _work_on(self, job: Job) -> None:
        self._writing[job.version] += job.durable
        super()._work_on(job)

    def _done(self, job: Job, shard: Shard | None, error: str) -> None:
        self._writing[job.version] -= job.durable
        if not self._writing[job.version]:
            del self._writing[job.version]
        super()._done(job, shard, error)

    def _not_saved(self, member: Member, told: NotSaved) -> None:
        super()._not_saved(member, told)
        if not told.durable:  # that one is told as every other that fails on its way to storage
            version = Version(told.lineage, told.step)
            self._tell_failed(version, f"rank {member.rank} did not save it: {told.error}")

    def _tell_failed(self, version: Version, error: str) -> None:
        storage = self._storage
        parts = Written(
            version=version,
            world=self.keeper.world,
            ranks=(),
            root=storage.root if storage else "",
            attempt=storage.token if storage else self._lead.attempt(version.lineage),
            error=error,
        )
        self._lead.written(parts)

    def _failed(self, version: Version, error: str) -> None:
        self._tell_failed(version, error)
        self._unannounced.pop(version, None)
        super()._failed(version, error)

    def _say(self, parts: Written) -> None:
        self._unannounced[parts.version] = parts
        self._lead.written(parts)

    def save_held(self, version: Version, attempt: str) -> None:
        """Write a version that lies in memory here, whoever of its ranks lives; tell either way."""
        known, storage = self._unannounced.get(version), self._storage
        if known is not None and known.attempt == attempt:
            self._lead.written(known)
            return
        on_its_way = self._writing[version] + len(self._parts.get(version, ()))
        if storage and storage.token == attempt and on_its_way >= self.keeper.kept:
            return  # as its ranks asked: it is told when it is there
        root = storage.root if storage else ""
        self._order(Order(version=version, attempt=attempt, root=root))

    def _told(
        self, order: Order, *, world: int, ranks: tuple[int, ...], size: int, error: str
    ) -> None:
        parts = Written(
            version=order.version,
            world=world,
            ranks=ranks,
            root=order.root,
            attempt=order.attempt,
            size=size,
            error=error,
        )
        if error:
            self._lead.written(parts)
        else:
            self._say(parts)

    def grant(self, grant: Grant) -> None:
        """Commit a step: the master lets this keeper do it."""
        self._grants.carry_out(grant, self._storage)

    def announce(self, version: Version, error: str) -> None:
        """Take the master's word that a step is committed, or will not be."""
        self._unannounced.pop(version, None)
        if error:
            super()._failed(version, error)
        else:
            self._announce(version)

    # --- start ----------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Ask the master once all ranks here wait, and nothing older lives or is being written."""
        asking = [member for member in self._members if member.asks and member.hello]
        if not asking or self._labour.in_flight or len(asking) < self.keeper.kept:
            return
        number = max(member.lineage for member in self._members)
        if any(member.hello and member.lineage != number for member in self._members):
            return
        known = self._question
        if known is not None and known.round == number:
            if known.told is not None:
                self._begin(asking, known.told)  # a rank that asks again, or late
            return
        try:
            if self._storage is not None and (reason := self._storage.superseded()):
                self._refuse(asking, reason)
                return
            self._question = self._ask(number, asking)
        except (OSError, FormatError) as error:
            self._refuse(asking, str(error))

    def _ask(self, number: int, asking: list[Member]) -> Question:
        ranks = [member.hello.rank for member in asking if member.hello is not None]
        root = self._storage.root if self._storage else ""
        parts = sorted(self.keeper.offer.parts().items(), reverse=True)[:_MOST_PARTS]
        question = Question(
            round=number,
            memory=tuple(self.keeper.offer.usable(ranks, self.keeper.world)),
            stored=tuple(committed(self._disk, root, _MOST_STORED)) if root else (),
            parts=tuple(
                HeldPart(
                    version=one,
                    world=size,
                    ranks=own,
                    whole=self.keeper.offer.is_whole([one]),
                    saved_by=self._lead.world(one.lineage),
                )
                for one, (size, own) in parts
            ),
        )
        self._lead.asks(question)
        return question

    def start_from(self, round_number: int, answer: Answer) -> None:
        """Take the master's word on what a round starts from: check it, or go."""
        known = self._question
        if known is None or known.round != round_number or known.told is not None:
            return
        version, sources = answer.version, answer.sources
        if not answer.go:
            self._labour.hand_out(
                lambda: self._check(answer),
                lambda error: self._looked(round_number, answer, error),
            )
        elif version is None or not sources or self._borrower.has(round_number, version):
            self._go(known, answer)
        else:  # an earlier master had let the others look
            self._borrower.describe(
                round_number,
                version,
                sources,
                lambda error: self._go_or_refuse(known, answer, error),
            )

    def _go_or_refuse(self, known: Question, answer: Answer, error: str) -> None:
        if self._question is not known:
            return
        if error:
            self._refuse([member for member in self._members if member.asks], error)
        else:
            self._go(known, answer)

    def _go(self, known: Question, answer: Answer) -> None:
        round_number = known.round
        self._question = dataclasses.replace(known, told=answer)
        self.keeper.resume_from(answer.version if answer.memory or self._alike(answer) else None)
        if not answer.sources:
            self._borrower.give_up()
        self._begun = round_number
        if self._storage is not None:
            self._clear_up(self._storage)
        self._begin([member for member in self._members if member.asks], answer)
        version = answer.version if answer.memory and not answer.partial else None
        if version is not None and version not in known.stored:
            self._write_beside(version)

    def _clear_up(self, storage: Storage) -> None:
        """Have what is there now of earlier worlds deleted after what is being done for them."""
        folders = storage.left_behind()
        self._labour.hand_out(
            lambda: failure_of("clearing up", lambda: storage.clear_up(folders), OSError),
            lambda error: log.warning("earlier worlds' parts stay: %s", error) if error else None,
        )

    def _leave_nothing(self) -> None:
        first = 0 in self.keeper.ranks
        for root in {root for root, _ in self._begun_in | self._grants.own if root}:
            begun = {name for where, name in self._begun_in if where == root}
            own = {name for where, name in self._grants.own if where == root}
            leave_nothing(self._disk, root, begun, own, first=first)

    def _write_beside(self, version: Version) -> None:
        """Write what a world starts from to storage while it starts: only memory had it so far."""
        storage = self._storage
        if storage is not None and self.keeper.places(version):
            self._order(Order(version=version, attempt=storage.token, root=storage.root))

    def _order(self, order: Order) -> None:
        self._begun_in.add((order.root, order.attempt))
        self._rescuer.order(order)

    def _check(self, answer: Answer) -> str:
        """Work on the labour's thread; nobody trains, so the keeper is nobody else's meanwhile."""
        version, notes = answer.version, list[str]()
        if version is None:
            return ""

        def check() -> None:
            if answer.memory:
                notes.extend(self.keeper.offer.drop_damaged(version))
            elif self._storage is not None:
                self._compare(f"{self._storage.root}/step_{version.step}", version, answer)

        error = failure_of(f"checking step {version.step}", check, ManifestError)
        return "; ".join([*notes, error] if error else notes)

    def _compare(self, path: str, version: Version, answer: Answer) -> None:
        """Verify this node's share of a step on storage; memory that is unlike it is emptied."""
        found = verify(self._disk, path, answer.share, answer.shares)
        if found.version != version:
            lineage = found.version.lineage
            raise ManifestError(f"{path} is of lineage {lineage}, not {version.lineage}")
        self.keeper.offer.drop_unlike(found)
        self._verified = answer.number

    def _looked(self, round_number: int, answer: Answer, error: str) -> None:
        version, sources = answer.version, answer.sources
        if error or version is None or not sources:
            self._lead.checked(round_number, answer, error)
            return
        self._borrower.describe(
            round_number,
            version,
            sources,
            lambda failure: self._lead.checked(round_number, answer, failure),
        )

    def _begin(self, asking: list[Member], answer: Answer) -> None:
        version, notes = answer.version, answer.notes
        if version is None:
            self._tell(asking, Origin(notes=notes))
            return
        places = self.keeper.places(version) if answer.memory or self._alike(answer) else []
        lent = self._borrower.lent if answer.sources else {}
        root = self._storage.root if self._storage else ""
        origin = Origin(
            lineage=version.lineage,
            step=version.step,
            path="" if answer.memory else f"{root}/step_{version.step}",
            ranks=(*(held.rank for held, _ in places), *lent),
            slots=(*(slot.index for _, slot in places), *(0 for _ in lent)),
            lent=tuple(lent),
            notes=notes,
        )
        descriptors = [held.fd for held, _ in places] + [one.fd for one in lent.values()]
        self._tell(asking, origin, descriptors)

    def _alike(self, answer: Answer) -> bool:
        """Whether what is in memory of a version on storage was found to be the same."""
        return answer.number == self._verified

    def _take(self, member: Member, message: object) -> None:
        if isinstance(message, Fetch):
            self._fetch(member, message)
        else:
            super()._take(member, message)

    def _fetch(self, member: Member, wanted: Fetch) -> None:
        items = ((rank, index) for rank, index in wanted.items)
        self._borrower.fetch(items, lambda error: self._fetched(member, error))

    def _fetched(self, member: Member, error: str) -> None:
        if member in self._members:
            member.link.send(Refused(error=error) if error else Fetched())

    def _finished(self) -> bool:
        return super()._finished() and not self._borrower.under_way

    def restate(self) -> None:
        """Tell a master that may know nothing of it what it has to know."""
        self._grants.restate()
        for parts in list(self._unannounced.values()):
            found = read_manifest_or_none(self._disk, f"{parts.root}/step_{parts.version.step}")
            if found is not None and found.version == parts.version:
                self.announce(parts.version, "")  # the word of it was lost with the master
            else:
                self._lead.written(parts)
        if self._question is not None:
            self._lead.asks(self._question)
        if self._held[0]:
            self._lead.held(*self._held, whole=self.keeper.offer.is_whole(self._held[1]))
