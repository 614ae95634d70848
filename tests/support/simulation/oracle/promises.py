"""Promises of a master: a job trains on through its restart, and users get what was granted.

Belongs here: which promise is open, what breaks one, what excuses it. Does not belong here: what
masters must have of their predecessors (`handover`), the end of a run (`run`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING

from holdfast_wire import messages as wire
from simulation.oracle.invariants import require

if TYPE_CHECKING:
    from holdfast_master.inputs import UserRequest
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.master import Master

QUIET_SECONDS = 30.0
"""What a master does so long after its start, or after a grant, it does because of that."""


@dataclasses.dataclass(eq=False)
class Granted:
    """A restart or a drain that was granted."""

    text: str
    at: float
    rank: int
    agent_id: str
    """Who is to go; empty: nobody, all ranks of the running round are to be started anew."""
    round: int
    """The newest then."""
    alone: bool
    """Nothing else happens that leads to another round."""
    rounds: set[int] = dataclasses.field(default_factory=set)
    """Given out since."""


class Promises:
    """The promises that the masters of one run have to keep."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began_at: float | None = None
        """When a new master began that has only to let the world go on; None: there is more."""
        self.granted: list[Granted] = []
        self._inherits = False
        """The newest master was lost when there was nothing to be done."""
        self._alone = False
        """The newest request came while nothing else was up."""

    def disturb(self) -> None:
        """Something happens that may lead to another round."""
        self.began_at = None
        self._inherits = self._alone = False  # a slow disk may keep its answer back
        for item in self.granted:
            item.alone = False

    def master_lost(self, master: Master) -> None:
        """Note a master's loss. Its successor may not know how far the grants had come."""
        self._inherits = self._calm(master) and master.all_written
        self.began_at = None
        for item in self.granted:
            item.alone = False

    def _calm(self, master: Master) -> bool:
        """Return whether the job trains as it should and nothing is about to change that."""
        job, context = self.job, master.core.job
        world, spec, state = context.worlds.running(), job.operator.spec, context.state
        if world is None or state.spec != spec or job.others:
            return False
        doubted = {rank for rank, pod in job.operator.pods.items() if pod.unreachable}
        trusted = sum(agent.alive for rank, agent in job.agents.items() if rank not in doubted)
        if doubted and context.bounds.fit(trusted):
            return False  # the next master goes on without them, though they may live
        surplus = any(rank >= spec.replicas + spec.standbys for rank in world.places)
        if len(world.places) != spec.replicas or surplus:
            return False  # the one goes when the other comes
        busy = bool(
            context.worlds.barrier
            or context.incidents.current
            or state.stop
            or context.worlds.broken
            or state.draining
        )
        busy |= bool(context.operator.replacing)  # a pod is about to go that was asked for
        agents = [job.agents[rank] for rank in world.places]
        running = all(_sound(agent, master, world.round) for agent in agents)
        return running and not busy and state.phase is wire.JobPhase.TRAINING

    def takes_over(self) -> None:
        """A master begins after another."""
        self.began_at = self.job.time.now if self._inherits else None

    def decided(self, world: wire.WorldDecided) -> None:
        """The newest master decides a round, or gives it out."""
        now = self.job.time.now
        if not world.store_port:
            if world.replicas:
                return  # without a journal replicas begin afresh, and with one others may go on
            kept = self.began_at is None or now > self.began_at + QUIET_SECONDS
            text = f"round {world.round} follows from a new master alone: {world.reason}"
            require(kept, "no_restart_for_a_master", text)
            return
        for item in self.granted:
            if world.round > item.round:
                item.rounds.add(world.round)
            late = now > item.at + QUIET_SECONDS
            text = f"{item.text} led to rounds {sorted(item.rounds)}"
            require(len(item.rounds) <= 1 or late or not item.alone, "granted_is_done", text)

    # ---------------------------------------------------------------------------------- to a user

    def asked(self, request: UserRequest) -> None:
        """Somebody is about to ask for something."""
        if not isinstance(request, wire.DumpStacksRequest | wire.TriggerCheckpointRequest):
            calm = self._calm(self.job.master)
            self.disturb()
            self._alone = calm

    def answered(self, request: UserRequest, response: object) -> None:
        """A request was granted."""
        spec, context = self.job.operator.spec, self.job.master.core.job
        if isinstance(request, wire.ScaleRequest) and isinstance(response, wire.ScaleResponse):
            same = response.generation != spec.generation or spec.replicas == request.replicas
            text = f"{request.replicas} replicas are granted, the spec has {spec.replicas}"
            require(same, "granted_is_done", text)
        if isinstance(response, wire.RestartWorkerResponse | wire.DrainNodeResponse):
            asked = getattr(request, "node_rank", None)
            rank = -1 if asked is None else asked
            node = context.membership.nodes.get(rank)
            agent = node.agent_id if node is not None else ""
            if not self.job.disk.full and (rank < 0 or agent):
                now, text = self.job.time.now, f"{type(request).__name__} of {rank}"
                alone = rank < 0 and self._alone
                before = getattr(response, "round", 0)
                self.granted.append(Granted(text, now, rank, agent, before, alone))

    def lost_disk(self) -> None:
        """The disk is gone: what no agent keeps is forgotten."""
        digests = [agent.digest for agent in self.job.agents.values() if agent.alive]
        known = {one for digest in digests if digest for one in digest.draining_agents}
        self.granted = [item for item in self.granted if item.agent_id in known]

    def taken_over(self, draining: Collection[str], since: float) -> None:
        """A master without a journal has made up its mind; whoever comes later comes too late."""
        self.granted = [i for i in self.granted if i.at >= since or i.agent_id in draining]

    def kept(self) -> bool:
        """Return whether all that was granted is done."""
        return not self._open()

    def _open(self) -> list[str]:
        newest = self.job.master.core.job.state.assigned
        reached = newest.round if newest is not None else 0
        return [item.text for item in self.granted if not self._done(item, reached)]

    def _done(self, item: Granted, reached: int) -> bool:
        if not item.agent_id:
            return reached > item.round
        agent = self.job.agents.get(item.rank)
        return agent is None or agent.agent_id != item.agent_id or not agent.alive

    def check(self) -> None:
        """The job has had the time that it needs."""
        require(self.kept(), "granted_is_done", f"granted and not done: {self._open()}")


def _sound(agent: Agent, master: Master, number: int) -> bool:
    """Return whether an agent's round trains unhindered and its master hears of it."""
    current = agent.workers.current
    trains = agent.workers.living_round == number and current is not None and not current.exits
    hindered = agent.signals or agent.lag or agent.workers.paused
    return trains and agent.able and agent.reaches(master) and not hindered
