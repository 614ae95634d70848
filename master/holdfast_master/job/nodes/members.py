"""The nodes of a world, for messages to all of them and from each of them."""

from __future__ import annotations

from holdfast_master.job.state.membership import Membership
from holdfast_master.job.state.nodes import Node
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_master.job.state.world import World, Worlds
from holdfast_master.policies.flush import Holder


def holders(world: World) -> tuple[Holder, ...]:
    """Return its nodes and their agents, in rank order."""
    return tuple((one.node_rank, one.agent_id) for one in world.fact.members)


def running_with(worlds: Worlds, node: Node, number: int) -> World | None:
    """Return the running world, if it is the one that a member of it speaks of."""
    world = worlds.member(node)
    return world if world is not None and world.round == number else None


def send_all(membership: Membership, out: OutgoingBatch, world: World, message: object) -> None:
    """Send a message about the world's round to all of its nodes."""
    for rank in world.places:
        node = membership.nodes.get(rank)
        if node is not None:
            out.send(node, message, world.round)
