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
    WorldAssignment,
)
from simulation import invariants
from simulation.invariants import Broken, require
from simulation.watch import Watch

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.master import Master

SWEEP_SECONDS = 1.0
"""What holds only after a while is looked at this often."""
OLD_WORKERS_SECONDS = 6.0
"""A stop, a reset and a slow node's kill and messages together take less."""


class Hurt(enum.Enum):
    """What really happened to a node."""

    FAILURE = "failure"
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
_GUILTY = {
    BudgetKind.FAILURES: (Hurt.FAILURE, Hurt.NETWORK),
    BudgetKind.NO_PROGRESS: (Hurt.FAILURE, Hurt.NETWORK),
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
        self._old_since: dict[str, float] = {}

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
        """A budget pays: it must be the right one, for a node that really was hurt."""
        facts = [item.fact for item in batch if isinstance(item, Record)]
        found = [f for f in facts if isinstance(f, Incident) and f.id == charge.incident_id]
        if not found or self.job.time.now < self.muddled_until or charge.kind not in _GUILTY:
            return
        incident = found[-1]
        if not incident.culprit_node:
            return
        rank = int(incident.culprit_node)
        kinds = {wound.kind for wound in self._recent(rank)}
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

    def two_rounds(self, numbers: list[int]) -> None:
        """Two rounds step at the same time."""
        raise Broken("one_active_round", f"rounds {sorted(numbers)} step at the same time")

    def sweep(self) -> None:
        """Once a second: what lives on where."""
        for agent in list(self.job.agents.values()):
            if agent.alive and not agent.frozen:
                self._masterless(agent)
                self._old_workers(agent)
        self.job.time.after(SWEEP_SECONDS, self.sweep)

    def _masterless(self, agent: Agent) -> None:
        if agent.connected or not agent.workers.living_round:
            return
        alone = agent.now - agent.no_master_since
        limit = agent.welcome.masterless_limit_seconds
        invariants.masterless_ends(agent.agent_id, alone, limit + 4.0)

    def _old_workers(self, agent: Agent) -> None:
        master, own = self.job.master, agent.workers.living_round
        stream, assigned = agent.stream, master.core._desk.state.assigned
        reaches = (
            stream is not None
            and stream.welcomed
            and stream.host is master
            and not (master.frozen or master.busy or agent.cut_down)
        )
        old = reaches and assigned is not None and 0 < own < assigned.round
        if not old or assigned is None:
            self._old_since.pop(agent.agent_id, None)
            return
        since = self._old_since.setdefault(agent.agent_id, self.job.time.now)
        invariants.old_workers_die(
            agent.agent_id, own, assigned.round, self.job.time.now - since, OLD_WORKERS_SECONDS
        )
