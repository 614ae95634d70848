"""The nodes of a world, as what is told to all of them and heard from each of them needs them."""

from __future__ import annotations

from holdfast_master.decide.rescue import Holder
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.world import World


def holders(world: World) -> tuple[Holder, ...]:
    """Return its nodes and their agents, in rank order."""
    return tuple((one.node_rank, one.agent_id) for one in world.fact.members)


def running_with(desk: Desk, node: Node, number: int) -> World | None:
    """Return the running world, if it is the one that a member of it speaks of."""
    world = desk.member(node)
    return world if world is not None and world.round == number else None


def send_all(desk: Desk, world: World, message: object) -> None:
    """Send a message about the world's round to all of its nodes."""
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        if node is not None:
            desk.send(node, message, world.round)
