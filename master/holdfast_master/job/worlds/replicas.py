"""Replicas of the running world: which of them go on, and who is in the next world."""

from __future__ import annotations

from holdfast_master.job.nodes import eligibility
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.world import World, world_hash
from holdfast_master.policies import replicas as policy
from holdfast_master.policies.rendezvous import Candidate
from holdfast_master.policies.replicas import SeatedReplica
from holdfast_wire.messages import WorldMember, WorldReplica


def going(job: JobContext) -> list[SeatedReplica]:
    """The replicas of the last assigned world whose processes all go on, by number."""
    world = job.worlds.assigned
    if world is None or not world.replicas or job.spec.nodes_per_replica == 0:
        return []
    if job.worlds.broken and not job.worlds.recovering:
        return []  # all were stopped: too few were left
    found = []
    for replica in world.replicas:
        ranks = world.members_of(replica)
        whole = replica.nodes == job.spec.nodes_per_replica
        if whole and all(_goes_on(job, world, rank) for rank in ranks):
            members = tuple(_candidate(job, world, rank) for rank in ranks)
            found.append(SeatedReplica(replica.number, members, replica.round))
    return found


def _goes_on(job: JobContext, world: World, rank: int) -> bool:
    """Whether a member's processes may go on; one that is merely away has them still."""
    node = job.membership.nodes.get(rank)
    if node is None or not world.holds(rank, node.agent_id) or rank in world.disturbed:
        return False
    state = job.state
    leaves = rank in state.draining or rank in state.released or rank in job.membership.surplus
    return not (leaves or node.over or node.condemned) and eligibility.is_admitted(job, node)


def _candidate(job: JobContext, world: World, rank: int) -> Candidate:
    node = job.membership.nodes.get(rank)
    if node is not None:
        return node.candidate
    member = world.places[rank].member
    return Candidate(
        node_rank=rank, agent_id=member.agent_id, local_world_size=member.local_world_size
    )


def seated(job: JobContext, size: int) -> tuple[SeatedReplica, ...]:
    """The replicas of a world of at most `size` nodes, by number."""
    kept, world = going(job), job.worlds.assigned
    taken = {one.node_rank for replica in kept for one in replica.members}
    nodes = job.membership.nodes
    free = [nodes[rank] for rank in job.membership.candidates - taken]
    return policy.seat(
        kept,
        [node.candidate for node in free],
        nodes=job.spec.nodes_per_replica,
        size=size,
        last=job.state.last_replica,
        before={rank: place.replica.number for rank, place in world.places.items()}
        if world
        else {},
        not_first={node.rank for node in free if node.store_failed},
    )


def present(job: JobContext) -> int:
    """The number of nodes that the next world could have.

    Those of a replica that goes on count although one of them is away; others in whole replicas.
    """
    nodes = job.spec.nodes_per_replica
    if nodes == 0:
        return len(job.membership.candidates)
    kept = {one.node_rank for replica in going(job) for one in replica.members}
    return len(kept) + len(job.membership.candidates - kept) // nodes * nodes


def recorded(
    job: JobContext, number: int, chosen: tuple[SeatedReplica, ...]
) -> tuple[WorldReplica, ...]:
    """The replicas of a world as the journal has them; `number`: the world's round."""
    assigned = job.state.assigned
    known = {one.number: one for one in assigned.replicas} if assigned is not None else {}
    return tuple(known[one.number] if one.round else _started(job, number, one) for one in chosen)


def _started(job: JobContext, number: int, replica: SeatedReplica) -> WorldReplica:
    """A replica whose processes are to be started in round `number`."""
    members = [as_member(one) for one in replica.members]
    return WorldReplica(
        number=replica.number,
        round=number,
        nodes=len(members),
        world_hash=world_hash(job.identity.epoch, replica.number, number, members),
    )


def as_member(one: Candidate) -> WorldMember:
    """A node as a member of a world."""
    return WorldMember(
        node_rank=one.node_rank, agent_id=one.agent_id, local_world_size=one.local_world_size
    )
