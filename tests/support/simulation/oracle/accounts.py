"""True fates of nodes, to which the charges of budgets are compared.

Belongs here: wounds, what of them a charge may be for, which incident has to be paid, which charges
must never be forgotten. Does not belong here: the master's own blame (`holdfast_master.policies`).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_agent.policies.round_phases import Orders
from holdfast_master.instructions import Instruction, Record
from holdfast_master.policies.failure import PLANNED
from holdfast_wire.messages import BudgetCharge, BudgetKind, Incident, WorldDecided
from holdfast_wire.reasons import Cause
from simulation.oracle.invariants import require

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.master import Master


class Hurt(enum.Enum):
    """A kind of event that really happened to a node."""

    FAILURE = "failure"
    RAISED = "raised"
    """A process raised or chose its exit code: on the wire no different from a survivor's end."""
    PREEMPTION = "preemption"
    NETWORK = "network"
    LEFT = "left"
    ASKED = "asked"


@dataclasses.dataclass(frozen=True, slots=True)
class Wound:
    """One thing that happened to a node."""

    kind: Hurt
    since: float
    until: float
    ends: int = 0
    """The round whose processes it surely ended; 0: none, or it cannot be told."""

    @property
    def blip(self) -> bool:
        """Return whether the wound is over before anybody could give the node up."""
        return self.kind is Hurt.NETWORK and self.until - self.since < BLIP_SECONDS


MEMORY_SECONDS = 40.0
"""A wound explains charges for this long after its end: silence, recovery and open evidence."""
BLIP_SECONDS = 1.0
"""No node is given up because of a network that fails for so long."""
SETTLE_SECONDS = 3.0
"""After this long a new master knows of its agents and pods what there is to know."""
_DAMAGE = (Hurt.FAILURE, Hurt.RAISED, Hurt.NETWORK)
_GUILTY = {
    BudgetKind.FAILURES: _DAMAGE,
    BudgetKind.NO_PROGRESS: _DAMAGE,
    BudgetKind.PREEMPTIONS: (Hurt.PREEMPTION,),
    BudgetKind.RESCALES: (Hurt.LEFT,),
}
_FAILURE_PAYS = frozenset({BudgetKind.FAILURES, BudgetKind.NO_PROGRESS})
_PAYS = {
    Hurt.PREEMPTION: frozenset({BudgetKind.PREEMPTIONS}),
    Hurt.LEFT: frozenset({BudgetKind.RESCALES}),
}
"""What an incident must be charged to when only this had happened."""
_PLANNED = frozenset(kind.value for kind in PLANNED)


class Accounts:
    """Wounds of all nodes in one run, and the charges of all its masters."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.wounds: dict[int, list[Wound]] = {}
        self.muddled_at = -MEMORY_SECONDS - 1.0
        """Then masters were lost last: what they knew of causes may be gone with them."""
        self.overruled_at = -math.inf
        """When an older master last judged: it ends rounds that the newer one knows as its own, and
        hears of late, if it stood still."""
        self.opened: dict[str, tuple[float, float]] = {}
        """Incident to when it was opened: virtual time, its master's patient clock."""
        self.worlds: dict[int, tuple[float, frozenset[int]]] = {}
        """Round to when it was given out, and to the node ranks of its members."""
        self.stalled = 0.0
        """Seconds in which a master stood still: it heard that much later of everything."""
        self.unwatched: list[tuple[float, float]] = []
        """When no operator watched: later pods do not tell what it would have said of a pod."""
        self.durable: dict[str, BudgetCharge] = {}
        """Charges that the disk must keep, by incident."""

    def hurt(self, rank: int, kind: Hurt, span: float) -> None:
        """Something happens to a node."""
        now = self.job.time.now
        if kind is not Hurt.ASKED:  # who asks says so
            self.job.checks.promises.disturb()
        lasting = bool(span) and kind is not Hurt.PREEMPTION
        ends = 0 if lasting else self._running(rank)
        self.wounds.setdefault(rank, []).append(Wound(kind, now, now + span, ends))

    def _running(self, rank: int) -> int:
        """The round of the node's processes, if its master counts on them now."""
        current = self.job.agents[rank].workers.current
        world = self.job.master.core.job.worlds.running()
        if current is None or world is None or not current.started or current.dead:
            return 0
        ending = current.exits or current.orders & (Orders.KILLED | Orders.STOPPED)
        return 0 if ending or world.round != current.number else world.round

    def muddle(self, span: float = 0.0) -> None:
        """A master is lost with what it alone knew, or two of them give orders, for so long."""
        self.muddled_at = max(self.muddled_at, self.job.time.now + span)

    def look_away(self, span: float) -> None:
        """Nobody watches the pods for so long."""
        now = self.job.time.now
        self.unwatched.append((now, now + span))

    def _unseen(self, wound: Wound) -> bool:
        return any(begin <= wound.since <= end for begin, end in self.unwatched)

    @property
    def muddled(self) -> bool:
        """Return whether a master may still lay blame by another one's knowledge."""
        return self.job.time.now < self.muddled_at + MEMORY_SECONDS

    def recent(self, rank: int, since: float | None = None) -> list[Wound]:
        """Return a node's wounds that are recent enough to explain something."""
        since = self.job.time.now - MEMORY_SECONDS if since is None else since
        return [wound for wound in self.wounds.get(rank, ()) if wound.until >= since]

    # ------------------------------------------------------------------------------------ incidents

    def told(self, master: Master, fact: Incident, batch: Sequence[Instruction]) -> None:
        """A master opens an incident, lays it to another, or closes it."""
        opened, _ = self.opened.setdefault(fact.id, (self.job.time.now, master.watch.now))
        if master is not self.job.master:
            self.overruled_at = self.job.time.now
        if not fact.open and master is self.job.master:
            self._closed(master, fact, opened, batch)

    def assigned(self, world: WorldDecided) -> None:
        """A master gives a world out."""
        ranks = frozenset(member.node_rank for member in world.members)
        self.worlds[world.round] = (self.job.time.now, ranks)

    def _relevant(self, fact: Incident, silence: float) -> list[Wound]:
        """Return members' wounds since shortly before the incident's world was given out.

        A silence is noticed in the world that follows. And a world that came to nothing before the
        one that ended the incident belongs to it: whoever was in it; nor may the one that should
        have ended it have trained. Blips are over at once.
        """
        since, ranks = self.worlds.get(fact.from_round, (0.0, frozenset(self.wounds)))
        ranks |= self.worlds.get(fact.to_round, (0.0, ranks))[1]
        if fact.to_round > fact.from_round + 1:
            ranks = frozenset(self.wounds)
        since -= silence + SETTLE_SECONDS + self.stalled
        found = [wound for rank in sorted(ranks) for wound in self.recent(rank, since)]
        return [wound for wound in found if not wound.blip]

    def _closed(
        self, master: Master, fact: Incident, opened: float, batch: Sequence[Instruction]
    ) -> None:
        """Require payment for an incident that only one kind of thing can have led to."""
        if fact.reported_only:
            return
        wounds = self._relevant(fact, master.settings.silence_seconds)
        if self._blurred(opened, wounds):
            return
        facts = [item.fact for item in batch if isinstance(item, Record)]
        paid = {f.kind for f in facts if isinstance(f, BudgetCharge) and f.incident_id == fact.id}
        due = self._due(fact, opened, wounds, brief=self._brief(master, fact.id))
        names = sorted(kind.name for kind in due)
        text = f"incident {fact.id} ({fact.text}) cost {sorted(k.name for k in paid)}, not {names}"
        require(not due or due & paid, "incident_paid", text)

    def _blurred(self, opened: float, wounds: Sequence[Wound]) -> bool:
        """Return whether masters were lost since the incident or its possible causes began."""
        since = min([opened, *(wound.since for wound in wounds)])
        overruled = since < self.overruled_at + SETTLE_SECONDS + self.stalled
        return overruled or since < self.muddled_at + SETTLE_SECONDS

    def _brief(self, master: Master, incident: str) -> bool:
        """Return whether the incident is over too soon for a silence to be noticed."""
        _, opened = self.opened.get(incident, (0.0, -MEMORY_SECONDS))
        return master.watch.now - opened < master.settings.silence_seconds + 1.0

    def _due(
        self, fact: Incident, opened: float, wounds: Sequence[Wound], *, brief: bool
    ) -> frozenset[BudgetKind]:
        kinds = {wound.kind for wound in wounds}
        given_up = self.job.master.core.job.state.departed
        if not self.wounds and self.job.operator.spec.generation == 1 and not given_up:
            return frozenset({BudgetKind.RESCALES})  # nobody asked, and nothing had happened
        causes = [w for w in wounds if w.ends == fact.from_round and w.since <= opened]
        if not causes or fact.cause in _PLANNED:
            return frozenset()
        if kinds <= {Hurt.FAILURE, Hurt.RAISED}:
            return _FAILURE_PAYS
        single = len(kinds) == 1 and not brief and not any(map(self._unseen, wounds))
        return _PAYS.get(kinds.pop(), frozenset()) if single else frozenset()

    # -------------------------------------------------------------------------------------- charges

    def charged(self, master: Master, charge: BudgetCharge, batch: Sequence[Instruction]) -> None:
        """A budget pays: it must be the right one, for a node that really was hurt.

        An incident that another one, or the job's end, closes before the silence limit may not
        know its culprit yet.
        """
        facts = [item.fact for item in batch if isinstance(item, Record)]
        found = [f for f in facts if isinstance(f, Incident) and f.id == charge.incident_id]
        if not found or not found[-1].culprit_node:
            return
        incident = found[-1]
        everything = [wound for rank in self.wounds for wound in self.recent(rank)]
        if self._blurred(self.opened[incident.id][0], everything):
            return
        settings, brief = master.settings, self._brief(master, incident.id)
        rank = int(incident.culprit_node)
        kinds = self._kinds(rank, incident.from_round, settings.silence_seconds)
        if brief or incident.cause in {Cause.WORKER_RAISED, Cause.WORKER_EXITED}:
            kinds |= self._alike(master, brief=brief)
        text = (
            f"{charge.kind.name} paid for incident {charge.incident_id} ({incident.cause}, node "
            f"{rank}: {incident.text}); what had happened to it: {sorted(k.value for k in kinds)}"
        )
        if charge.kind not in {BudgetKind.PREEMPTIONS, BudgetKind.RESCALES}:
            require(kinds != {Hurt.PREEMPTION}, "preemption_spends_no_failure", text)
        guilty = set(_GUILTY[charge.kind])
        unseen = any(map(self._unseen, self.recent(rank)))
        if (brief or unseen) and charge.kind is BudgetKind.RESCALES:
            guilty.add(Hurt.PREEMPTION)  # it left by itself, and the operator had not said why
        elif unseen and self._unheard(rank):
            guilty.add(Hurt.LEFT)  # nobody heard its goodbye, and nobody saw how its pod ended
        require(kinds & guilty, "right_account", text)

    def _unheard(self, rank: int) -> bool:
        """Return whether a node left during a reconnection, without a goodbye."""
        lately = self.recent(rank)
        cuts = [wound for wound in lately if wound.kind is Hurt.NETWORK]
        left = [wound.since for wound in lately if wound.kind is Hurt.LEFT]
        return any(w.since <= at <= w.until + BLIP_SECONDS for w in cuts for at in left)

    def _kinds(self, rank: int, number: int, silence: float) -> set[Hurt]:
        """Return the kinds of a node's wounds since shortly before a round was given out."""
        assigned, _ = self.worlds.get(number, (0.0, frozenset()))
        lately = self.recent(rank, assigned - silence - SETTLE_SECONDS - self.stalled)
        return {wound.kind for wound in lately if not wound.blip}

    def _alike(self, master: Master, *, brief: bool) -> set[Hurt]:
        """Return the kinds of wounds that a survivor's end may be taken for.

        Delays on the wire decide which of two exceptions seems to be the earlier. And a node that
        was asked to leave ends by itself when its patience is over: the exceptions of the others
        can be heard before that, and then nothing tells them from a failure. Nor is anybody told
        of the end of a node that the spec has just given up.
        """
        everything = {wound.kind for rank in self.wounds for wound in self.recent(rank)}
        leaving = everything & {Hurt.PREEMPTION, Hurt.ASKED}
        surplus = [rank for rank in self.wounds if rank >= master.core.job.wanted]
        if brief or leaving or surplus:
            return everything | {Hurt.RAISED}
        return everything & {Hurt.RAISED}

    # ------------------------------------------------------------------------------------- survival

    def written(self, charges: Sequence[BudgetCharge]) -> None:
        """The newest master's charges are on the disk, for good."""
        self.durable.update((charge.incident_id, charge) for charge in charges)

    def lost_disk(self) -> None:
        """The disk is gone: what agents keep is left."""
        self.durable.clear()
