"""The job as a whole, held against the invariants: agents, charges, rounds that step.

Belongs here: what needs to know the truth that no master knows (who was hurt, what lives). Does
not belong here: what is right (`invariants`), one master's inputs and effects (`watch`).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from holdfast_master.instructions import Instruction, Record
from holdfast_wire.messages import (
    BudgetCharge,
    BudgetKind,
    Incident,
    SessionResponse,
    SuccessPolicy,
    WorldAssignment,
    WorldDecided,
)
from holdfast_wire.reasons import Cause
from simulation import invariants
from simulation.invariants import Broken, require
from simulation.training import Round
from simulation.watch import Watch

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.line import Line
    from simulation.master import Master

SWEEP_SECONDS = 1.0
"""What holds only after a while is looked at this often."""
OLD_WORKERS_SECONDS = 6.0
"""A stop, a reset and a slow node's kill and messages together take less."""


class Hurt(enum.Enum):
    """What really happened to a node."""

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


MEMORY_SECONDS = 40.0
"""A wound explains charges for this long after its end: silence, recovery and open evidence."""
_DAMAGE = (Hurt.FAILURE, Hurt.RAISED, Hurt.NETWORK)
_GUILTY = {
    BudgetKind.FAILURES: _DAMAGE,
    BudgetKind.NO_PROGRESS: _DAMAGE,
    BudgetKind.PREEMPTIONS: (Hurt.PREEMPTION,),
}


class Checks:
    """Everything that is looked at in one run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.wounds: dict[int, list[Wound]] = {}
        self.muddled_until = -1.0
        """Until then masters were lost: what they knew of causes may be gone with them."""
        self.newest_start: dict[str, int] = {}
        self.schedules = invariants.Schedules()
        self.starts: dict[int, int] = {}
        """Round to how many agents were told to start it."""
        self.done: dict[str, set[int]] = {}
        """World hash to the ranks that ended well."""
        self.opened: dict[str, float] = {}
        """Incident to when it was opened, on its master's patient clock."""
        self._old_since: dict[str, float] = {}
        self._alone: dict[str, float] = {}
        """Agent to how long it was seen awake, with workers and without a master, s."""

    def new_master(self, master: Master) -> Watch:
        """A master begins."""
        return Watch(self, master)

    def hurt(self, rank: int, kind: Hurt, span: float) -> None:
        """Something happens to a node."""
        now = self.job.time.now
        self.wounds.setdefault(rank, []).append(Wound(kind, now, now + span))

    def muddle(self) -> None:
        """A master is lost with what it alone knew."""
        self.muddled_until = self.job.time.now + MEMORY_SECONDS

    # -------------------------------------------------------------------------------------- charges

    def charged(self, master: Master, charge: BudgetCharge, batch: list[Instruction]) -> None:
        """A budget pays: it must be the right one, for a node that really was hurt.

        An incident that another one, or the job's end, closes before the silence limit may not
        know its culprit yet.
        """
        facts = [item.fact for item in batch if isinstance(item, Record)]
        found = [f for f in facts if isinstance(f, Incident) and f.id == charge.incident_id]
        if not found or self.job.time.now < self.muddled_until or charge.kind not in _GUILTY:
            return
        incident = found[-1]
        if not incident.culprit_node:
            return
        settings = master.settings
        patience = settings.silence_seconds + 1.0
        brief = master.watch.now - self.opened.get(incident.id, -MEMORY_SECONDS) < patience
        rank = int(incident.culprit_node)
        kinds = {wound.kind for wound in self._recent(rank)}
        if brief or incident.cause in {Cause.WORKER_RAISED, Cause.WORKER_EXITED}:
            kinds |= self._alike(master, brief=brief)
        text = (
            f"{charge.kind.name} paid for incident {charge.incident_id} ({incident.cause}, node "
            f"{rank}: {incident.text}); what had happened to it: {sorted(k.value for k in kinds)}"
        )
        if charge.kind is not BudgetKind.PREEMPTIONS and kinds == {Hurt.PREEMPTION}:
            raise Broken("preemption_spends_no_failure", text)
        require(kinds.intersection(_GUILTY[charge.kind]), "right_account", text)

    def _recent(self, rank: int) -> list[Wound]:
        since = self.job.time.now - MEMORY_SECONDS
        return [wound for wound in self.wounds.get(rank, ()) if wound.until >= since]

    def _alike(self, master: Master, *, brief: bool) -> set[Hurt]:
        """What happened to any node that a survivor's end may be taken for.

        Delays on the wire decide which of two exceptions seems to be the earlier. And a node that
        was asked to leave ends by itself when its patience is over: the exceptions of the others
        can be heard before that, and then nothing tells them from a failure. Nor is anybody told
        of the end of a node that the spec has just given up.
        """
        everything = {wound.kind for rank in self.wounds for wound in self._recent(rank)}
        leaving = everything & {Hurt.PREEMPTION, Hurt.ASKED}
        surplus = [rank for rank in self.wounds if rank >= master.core._desk.wanted]
        if brief or leaving or surplus:
            return everything | {Hurt.RAISED}
        return everything & {Hurt.RAISED}

    # --------------------------------------------------------------------------------------- agents

    def obeyed(self, agent: Agent, response: SessionResponse) -> None:
        """An agent acts on a message."""
        invariants.fence_obeyed(agent.agent_id, agent.accepted, response)

    def started(self, agent: Agent, number: int, _: WorldAssignment) -> None:
        """An agent starts a round."""
        before = self.newest_start.get(agent.agent_id, 0)
        text = f"{agent.agent_id} starts round {number} after {before}"
        require(number > before, "rounds_grow", text)
        self.newest_start[agent.agent_id] = number
        self.starts[number] = self.starts.get(number, 0) + 1

    def thawed(self, agent: Line, stood: float, limit: float) -> None:
        """An agent goes on after it stood still."""
        invariants.lease_kills(agent.agent_id, stood, limit, agent.workers.living_round)

    def lost(self, watch: Watch, rank: int, agent_id: str) -> None:
        """A master gives a node up: something must have happened to it, or it was silent."""
        agent = self.job.agents.get(rank)
        same = agent is not None and agent.agent_id == agent_id
        if agent is None or not same or not agent.alive or agent.ending is not None:
            return
        if self._recent(rank) or self.job.time.now < self.muddled_until:
            return
        at = watch.contact.get((rank, agent_id))
        if at is not None:
            settings = watch.master.settings
            limit = settings.lease_seconds + 2 * settings.heartbeat_seconds
            invariants.lost_rightly(f"node {rank} ({agent_id})", watch.now - at, limit)

    def finished(self, world: str, rank: int) -> None:
        """A training process ended well."""
        self.done.setdefault(world, set()).add(rank)

    def succeeded(self, world: WorldDecided, policy: SuccessPolicy) -> None:
        """A master decides that the job has succeeded."""
        size = sum(member.local_world_size for member in world.members)
        invariants.success_earned(policy, size, self.done.get(world.world_hash, set()))

    def two_rounds(self, rounds: list[Round]) -> None:
        """Two rounds step at the same time.

        An older one may where no member of it can be told: it commits nothing and dies at the
        limit (`masterless`), or when it is reached (`old_workers`); a step may end between an
        agent's order to kill and the death of its processes. And where an epoch was given
        to two masters an agent that knew neither may follow the wrong one: whoever starts masters
        must not do that, agents and masters can only notice it. The world that the newest master
        has assigned is the newest, also where agents of another have just heard of that master.
        """
        assigned = self.job.master.core._desk.state.assigned
        newest = (assigned.round, assigned.world_hash) if assigned is not None else None
        rounds.sort(
            key=lambda found: (
                (found.number, found.world) == newest,
                found.follows,
                found.number,
            )
        )
        if any(found.master[1].startswith("twin") for found in rounds):
            return
        for older in rounds[:-1]:
            members = older.members.values()
            told = [member for member in members if member.reached and not member.dying]
            text = f"rounds {[found.number for found in rounds]} step at the same time"
            require(not told, "one_active_round", text)

    def sweep(self) -> None:
        """Once a second: what lives on where."""
        for agent in list(self.job.agents.values()):
            if agent.alive and not agent.frozen:
                self._masterless(agent)
                self._old_workers(agent)
        self.job.time.after(SWEEP_SECONDS, self.sweep)

    def _masterless(self, agent: Agent) -> None:
        if agent.connected or not agent.workers.living_round:
            self._alone.pop(agent.agent_id, None)
            return
        # Only what it lived through: it kills nobody while it is frozen itself.
        lived = self._alone[agent.agent_id] = self._alone.get(agent.agent_id, 0.0) + SWEEP_SECONDS
        alone = min(lived, agent.now - agent.no_master_since)
        limit = agent.welcome.masterless_limit_seconds
        invariants.masterless_ends(agent.agent_id, alone, limit + 4.0)

    def _old_workers(self, agent: Agent) -> None:
        master, own = self.job.master, agent.workers.living_round
        assigned = master.core._desk.state.assigned
        old = agent.reaches(master) and assigned is not None and 0 < own < assigned.round
        if not old or assigned is None:
            self._old_since.pop(agent.agent_id, None)
            return
        since = self._old_since.setdefault(agent.agent_id, self.job.time.now)
        invariants.old_workers_die(
            agent.agent_id, own, assigned.round, self.job.time.now - since, OLD_WORKERS_SECONDS
        )
