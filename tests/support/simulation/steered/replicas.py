"""Steered jobs of replicas under local SGD: how they begin, and what tests ask about them."""

from __future__ import annotations

from holdfast_wire.messages import OuterRoster
from simulation.steered.job import SteeredJob, job_spec


def say(job: SteeredJob, rank: int, message: object) -> None:
    """An agent says something about the round of its processes."""
    agent = job.agents[rank]
    agent.report(message, agent.round)


def replicated(nodes: int, nodes_per_replica: int = 1, **changes: object) -> SteeredJob:
    """A job of replicas that all train and are in one roster."""
    values = {"replicas": nodes, "min_replicas": nodes_per_replica, "max_replicas": 2 * nodes}
    spec = job_spec(nodes_per_replica=nodes_per_replica, **(values | changes))
    job = SteeredJob(spec)
    job.add_agents(nodes)
    job.run_until("TRAINING")
    job.run(1.0)
    return job


def roster(job: SteeredJob) -> OuterRoster:
    """The newest roster."""
    found = job.core.job.state.roster
    assert found is not None
    return found


def seats(job: SteeredJob) -> dict[int, list[int]]:
    """Replica to its node ranks, of the running world."""
    world = job.core.job.worlds.running()
    assert world is not None, job.tale()
    return {one.number: list(world.members_of(one)) for one in world.replicas}


def rounds_of(job: SteeredJob) -> dict[int, int]:
    """Node rank to the round of its processes."""
    return {rank: agent.round for rank, agent in job.agents.items() if agent.alive}


def newest_told(job: SteeredJob, rank: int) -> OuterRoster | None:
    """The newest roster that a node's agent was told."""
    told = job.agents[rank].rosters
    return told[-1].roster if told else None


def until_broken(job: SteeredJob) -> None:
    """Let time pass until no world runs: one is decided, or about to be."""
    for _ in range(3000):
        job.run(0.001)
        if job.core.job.worlds.running() is None:
            return
    raise AssertionError(job.tale())


def hold_store(job: SteeredJob, rank: int) -> None:
    """Have a node take three seconds for its next store, so that a world stays undecided."""
    agent = job.agents[rank]
    agent.waiting, ready = None, agent._store_ready
    agent._store_ready = lambda name: agent.later(3.0, ready, name)  # type: ignore[assignment, method-assign]


def stands(job: SteeredJob, rank: int, *, stuck: bool = True) -> None:
    """The processes of a node complete no further step, or go on."""
    current = job.agents[rank].workers.current
    assert current is not None
    assert current.physics is not None
    job.training.hang(current.physics, current.assignment.group_rank, stuck=stuck)
