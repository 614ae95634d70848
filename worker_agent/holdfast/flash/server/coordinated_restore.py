"""Restore under a job master: it chooses, this node verifies, then starts.

Belongs here: the restore on one node, up to the answer to its ranks; the `Coordinator` that the
agent provides. Everything runs on the service's own thread, except for the verification.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from holdfast.flash.memory.slots import Version
from holdfast.flash.server import protocol
from holdfast.flash.server.arena_store import prove
from holdfast.flash.server.peer_parts import Gatherer, GatherError, Peers
from holdfast.flash.server.protocol import Member
from holdfast.flash.server.service import ServerState
from holdfast.flash.server.tiers import SlotImage, TierError, Work
from holdfast.flash.server.worker_thread import failure_of
from holdfast.flash.storage.manifest import FormatError, ManifestError
from holdfast_wire.messages import (
    CommitResult,
    HeldPart,
    MemoryCheckpoints,
    RestorePlan,
    RestorePlanVerified,
    RestoreRequest,
    ShardsPersisted,
    Tier,
    TierVersions,
)
from holdfast_wire.tiers import offered

log: Final = logging.getLogger(__name__)

_MOST_PARTS: Final = 8


Report = MemoryCheckpoints | ShardsPersisted | CommitResult | RestoreRequest | RestorePlanVerified
"""A message to the master."""


class Coordinator(Protocol):
    """Connection to the master; called from the service's thread, and returns at once."""

    @property
    def job(self) -> str:
        """Uid of the job."""

    @property
    def peers(self) -> Peers:
        """Connection to other agents."""

    def attempt(self, round_number: int) -> str:
        """Return the name of a world's attempts, the same on all of its nodes."""

    def world(self, round_number: int) -> str:
        """Return the name of a round's world, the same on all of its nodes; empty: unknown."""

    def send(self, message: Report, round_number: int | None = None) -> None:
        """Send to the master; of several pending `MemoryCheckpoints` only the newest is sent."""


class CoordinatedRestore:
    """Start of the newest round, on one node."""

    def __init__(
        self, node: ServerState, coordinator: Coordinator, write_beside: Callable[[Version], None]
    ) -> None:
        """Take the node, the connection to the master, and the function that flushes a version.

        write_beside: Writes a version that a world starts from to storage, from memory here.
        """
        self._node, self._arenas, self._coordinator = node, node.arenas, coordinator
        self._write_beside = write_beside
        self._round, self._asked = -1, RestoreRequest()
        """Newest round that the master was asked about, and the request."""
        self._plan: RestorePlan | None = None
        """Plan that its ranks have begun with."""
        self._gatherer = Gatherer(coordinator.peers, node.arenas.room)
        self._reading = 0
        """Number of threads that read other nodes' memory."""
        self._verified = 0
        """Number of the plan whose manifest the slots here were compared with."""

    @property
    def is_busy(self) -> bool:
        """True while a read of other nodes' memory is under way."""
        return bool(self._reading)

    def give_up(self) -> None:
        """Release what was read from other nodes' memory; ranks keep the memory that they map."""
        if not self._reading:
            self._gatherer.close()

    def _read(self, work: Callable[[], None], then: Callable[[str], None]) -> None:
        """Run work that waits for other nodes on a thread of its own.

        The other node may be waiting for this node's worker thread. then: gets the reason of a
        failure, or an empty text, on the service's thread.
        """

        def end(error: str) -> None:
            self._reading -= 1
            then(error)

        def run() -> None:
            error = failure_of("reading other nodes' memory", work, GatherError)
            self._node.worker.post(lambda: end(error))

        self._reading += 1
        threading.Thread(target=run, name="holdfast-gather", daemon=True).start()

    def look_ahead(self) -> None:
        """Compare the hashes of the newest version here while a new round's processes start.

        The verification of this version then finds it done. Ranks are not answered before.
        """
        jobs = self._arenas.newest_here()

        def looked(_: None, error: str) -> None:
            for job in jobs:
                self._arenas.done(job)
            if error:
                log.warning("the newest checkpoint was not compared ahead: %s", error)

        what = "comparing the newest checkpoint"
        self._node.worker.hand_out(what, lambda: prove(jobs), looked)

    def restate(self) -> None:
        """Repeat the request and the verification to a new master."""
        if self._round >= 0:
            self._coordinator.send(self._asked, self._round)

    def choose(self, lineage: int, asking: list[Member]) -> None:
        """Ask the master, once all ranks here wait; a rank that asks late is answered at once."""
        if len(asking) < self._arenas.kept:
            return
        if self._round == lineage:
            if self._plan is not None:
                self._begin(asking, self._plan)
            return
        try:
            question = self._question(asking)
        except (OSError, FormatError, TierError) as error:
            self._node.answer(asking, protocol.RequestRefused(error=str(error)))
            return
        self._round, self._asked, self._plan = lineage, question, None
        self._coordinator.send(question, lineage)

    def _question(self, asking: list[Member]) -> RestoreRequest:
        hellos, held = [member.hello for member in asking if member.hello], self._arenas.held
        offers = {name: tier.versions(hellos) for name, tier in self._node.tiers.items()}
        parts = sorted(held.parts().items(), reverse=True)[:_MOST_PARTS]
        return RestoreRequest(
            offers=tuple(
                TierVersions(tier=name, versions=tuple(versions))
                for name, versions in offers.items()
            ),
            parts=tuple(
                HeldPart(
                    version=version,
                    world_size=size,
                    ranks=own,
                    whole=held.is_whole([version]),
                    world=self._coordinator.world(version.lineage),
                )
                for version, (size, own) in parts
            ),
        )

    def start_from(self, round_number: int, plan: RestorePlan) -> None:
        """Act on the master's plan for a round: verify it, or start from it."""
        if self._round != round_number or self._plan is not None:
            return
        if not plan.go:
            what = f"checking step {plan.version.step if plan.version else 0}"
            check, looked = partial(self._check, plan), partial(self._looked, round_number, plan)
            self._node.worker.hand_out(what, check, looked, ManifestError, TierError)
        elif (
            plan.version is None
            or not plan.sources
            or self._gatherer.has(round_number, plan.version)
        ):
            self._go(round_number, plan)
        else:  # an earlier master had the other nodes verify it
            self._describe(round_number, plan, partial(self._go_or_refuse, round_number, plan))

    def _describe(self, round_number: int, plan: RestorePlan, then: Callable[[str], None]) -> None:
        """Fetch the descriptions of the parts in other nodes' memory."""
        assert plan.version is not None, "there are sources of it"  # noqa: S101
        describe = self._gatherer.describe
        self._read(partial(describe, round_number, plan.version, plan.sources), then)

    def _go_or_refuse(self, round_number: int, plan: RestorePlan, error: str) -> None:
        if self._round != round_number or self._plan is not None:
            return
        if error:
            asking = [member for member in self._node.members if member.asks]
            self._node.answer(asking, protocol.RequestRefused(error=error))
        else:
            self._go(round_number, plan)

    def _go(self, round_number: int, plan: RestorePlan) -> None:
        node = self._node
        # What a new master must know of the plan, now that its ranks begin with it.
        told = replace(plan, go=True, share=0, shares=0, notes=(), sources=())
        self._asked, self._plan = replace(self._asked, told=told), plan
        version, sources = plan.version, self._sources(plan)
        for name, tier in node.tiers.items():
            self._clear_up(tier.resume(version if name in sources else None))
        if not plan.sources:
            self.give_up()
        node.begun = round_number
        self._begin([member for member in node.members if member.asks], plan)
        if version is not None and not plan.partial and not self._is_durable(plan):
            self._write_beside(version)

    def _is_durable(self, plan: RestorePlan) -> bool:
        """Return True if a durable tier has the plan's version."""
        durable = [name for name, tier in self._node.tiers.items() if tier.durable]
        return plan.tier in durable or any(
            plan.version in offered(self._asked, name) for name in durable
        )

    def _sources(self, plan: RestorePlan) -> list[Tier]:
        """Return the tiers that ranks here read from: the plan's, and slots found equal to it."""
        alike = plan.plan_id == self._verified and plan.tier is not Tier.MEMORY
        return [Tier.MEMORY, plan.tier] if alike else [plan.tier]

    def _clear_up(self, work: Work | None) -> None:
        """Delete earlier worlds' unfinished attempts, after the work that is under way for them."""

        def cleared(_: None, error: str) -> None:
            if error:
                log.warning("earlier worlds' parts stay: %s", error)

        if work is not None:
            self._node.worker.hand_out("clearing up", work, cleared, OSError)

    def _check(self, plan: RestorePlan) -> None:
        """Verify on the worker thread; no rank trains, so the store has no other user meanwhile."""
        if plan.version is None:
            return
        tier = self._node.tiers[plan.tier]
        manifest = tier.verify(plan.version, plan.share, max(1, plan.shares))
        if manifest is not None:  # empty the slots that differ: they are nearer
            self._arenas.held.drop_unlike(manifest)
            self._verified = plan.plan_id

    def _looked(self, round_number: int, plan: RestorePlan, _: None, error: str) -> None:
        def tell(problem: str) -> None:
            self._coordinator.send(
                RestorePlanVerified(plan_id=plan.plan_id, error=problem), round_number
            )

        if error or plan.version is None or not plan.sources:
            tell(error)
        else:
            self._describe(round_number, plan, tell)

    def _begin(self, asking: list[Member], plan: RestorePlan) -> None:
        away = self._gatherer.lent.items() if plan.sources else ()
        lent = [SlotImage(rank=rank, fd=one.held.fd, index=0, lent=True) for rank, one in away]
        self._node.start_from(asking, plan.version, self._sources(plan), plan.notes, lent)

    def fetch(self, member: Member, wanted: protocol.Fetch) -> None:
        """Read items from other nodes' memory for a rank."""

        def fetched(error: str) -> None:
            if member in self._node.members:
                member.link.send(
                    protocol.RequestRefused(error=error) if error else protocol.Fetched()
                )

        self._read(lambda: self._gatherer.fetch(wanted.items), fetched)
