"""The job as a whole, held against the invariants: agents, charges, rounds that step.

Belongs here: what needs to know the truth that no master knows (who was hurt, what lives). Does
not belong here: what is right (`invariants`), one master's inputs and effects (`watch`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from holdfast_wire import messages as wire
from simulation.oracle import invariants
from simulation.oracle.accounts import Accounts
from simulation.oracle.health import HealthTruth
from simulation.oracle.invariants import require
from simulation.oracle.presence import Left
from simulation.oracle.promises import Promises
from simulation.oracle.watch import Watch
from simulation.training import Round

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.line import Line
    from simulation.master import Master

SWEEP_SECONDS = 1.0
"""What holds only after a while is looked at this often."""
OLD_WORKERS_SECONDS = 6.0
"""A stop, a reset and a slow node's kill and messages together take less."""


PEERS_SECONDS = 3.0
"""An agent without a master asks its peers every second, and a kill takes a second at most."""


class Checks:
    """Everything that is looked at in one run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.accounts = Accounts(job)
        self.promises = Promises(job)
        self.health = HealthTruth(job)
        self.left: Left | None = None
        """What the last master had counted; None: its successor may find less."""
        self.newest_start: dict[str, int] = {}
        self.schedules = invariants.Schedules()
        self.starts: dict[int, int] = {}
        """Round to how many agents were told to start it."""
        self.done: dict[str, set[int]] = {}
        """World hash to the ranks that ended well."""
        self._old_since: dict[str, tuple[tuple[int, bool], float]] = {}
        self._alone: dict[str, float] = {}
        """Agent to how long it was seen awake, with workers and without a master, s."""

    def new_master(self, master: Master) -> Watch:
        """A master begins."""
        return Watch(self, master)

    # --------------------------------------------------------------------------------------- agents

    def obeyed(self, agent: Agent, response: wire.SessionResponse) -> None:
        """An agent acts on a message."""
        invariants.fence_obeyed(agent.agent_id, agent.accepted, response)

    def started(self, agent: Agent, number: int, _: wire.WorldAssignment) -> None:
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
        if self.accounts.recent(rank) or self.accounts.muddled:
            return
        at = watch.contact.get((rank, agent_id))
        if at is not None:
            settings = watch.master.settings
            limit = settings.lease_seconds + 2 * settings.heartbeat_seconds
            invariants.lost_rightly(f"node {rank} ({agent_id})", watch.now - at, limit)

    def roster_told(self, agent: Agent, message: wire.WorldAssignment) -> None:
        """A node hears of a roster that follows the one that its processes were told before.

        Two masters of one epoch may each tell a node of theirs, as with `two_rounds`.
        """
        if any(fault.what == "twin_master" for fault in self.job.scenario.faults):
            return
        number = message.assignment_id
        known = [one.roster for one in agent.rosters if one.assignment_id == number]
        if known and known[-1] is not None and message.roster is not None:
            invariants.roster_follows(known[-1], message.roster)

    def schedule_confirmed(
        self, fact: wire.ScheduleConfirmed, world: wire.WorldDecided | None
    ) -> None:
        """A master confirms a schedule: it was offered to the ranks of every node that saves."""
        savers = (world.replicas or (world,))[0].world_hash if world is not None else ""
        for agent in self.job.agents.values():
            current = agent.workers.current
            if current is None or current.dead or current.exits or world is None:
                continue
            same = current.assignment.world_hash == savers
            if same and current.physics and current.follower:
                text = f"node {agent.rank} was not offered schedule {fact.schedule_id}"
                known = fact.schedule_id in current.follower.offers
                require(known, "schedule_offered", text)

    def finished(self, world: str, rank: int) -> None:
        """A training process ended well."""
        self.done.setdefault(world, set()).add(rank)

    def succeeded(self, world: wire.WorldDecided, policy: wire.SuccessPolicy) -> None:
        """A master decides that the job has succeeded."""
        size = sum(member.local_world_size for member in world.members)
        done = set(self.done.get(world.world_hash, set()))
        members, first = iter(world.members), 0
        for replica in world.replicas:
            done |= {first + rank for rank in self.done.get(replica.world_hash, set())}
            own = itertools.islice(members, replica.nodes)
            first += sum(member.local_world_size for member in own)
        invariants.success_earned(policy, size, done)

    def two_rounds(self, rounds: list[Round]) -> None:
        """Two rounds step at the same time.

        An older one may where no member of it can be told: it commits nothing and dies at the
        limit (`masterless`), or when it is reached (`old_workers`); a step may end between an
        agent's order to kill and the death of its processes. And where an epoch was given
        to two masters an agent that knew neither may follow the wrong one: whoever starts masters
        must not do that, agents and masters can only notice it. The world that the newest master
        has assigned is the newest, also where agents of another have just heard of that master.
        """
        assigned = self.job.master.core.job.state.assigned
        newest = (assigned.round, assigned.world_hash) if assigned is not None else None
        rounds.sort(
            key=lambda found: ((found.number, found.world) == newest, found.follows, found.number)
        )
        if any(found.master[1].startswith("twin") for found in rounds):
            return
        if assigned is not None and assigned.replicas:
            return  # replicas step beside each other, and one that is out disturbs nobody
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
            else:
                self._old_since.pop(agent.agent_id, None)  # it kills nobody while it stands still
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
        own = agent.workers.living_round
        newest, bound = self._told_newest(agent), OLD_WORKERS_SECONDS
        if not newest:
            newest, bound = self._peers_newest(agent), PEERS_SECONDS
        if not 0 < own < newest:
            self._old_since.pop(agent.agent_id, None)
            return
        now, key = self.job.time.now, (own, agent.connected)
        before, since = self._old_since.get(agent.agent_id, (key, now))
        since = since if before == key else now
        self._old_since[agent.agent_id] = (key, since)
        invariants.old_workers_die(agent.agent_id, own, newest, now - since, bound)

    def _told_newest(self, agent: Agent) -> int:
        """The round of the master that an agent reaches; 0: it reaches none."""
        assigned = self.job.master.core.job.worlds.assigned
        if assigned is None or not agent.reaches(self.job.master):
            return 0
        holds = assigned.holds(agent.rank, agent.agent_id)
        return assigned.round_of(agent.rank) if holds else assigned.round

    def _peers_newest(self, agent: Agent) -> int:
        """The newest round that an agent without a master hears of from its world's members."""
        current = agent.workers.current
        if agent.connected or current is None or not agent.able:
            return 0
        ranks = [int(peer.address) for peer in current.assignment.peers]
        answers = self.job.ask_peers(agent, ranks)
        fences = [answer.fence for answer in answers if answer.fence is not None]
        known = [fence.round for fence in fences if fence.epoch >= agent.accepted.epoch]
        return max(known, default=0)
