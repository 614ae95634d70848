"""What an agent that was away runs, beside what it should run.

Belongs here: taking up the thread with a member of the world. Does not belong here: whose hello it
is (`hellos`), processes that an earlier master started (`adoption`).
"""

from __future__ import annotations

from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.job import (
    assignments,
    charges,
    incidents,
    reports,
    saving,
    schedules,
    starting,
    stopping,
)
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.world import World
from holdfast_wire.messages import Hello


def round_to_keep(desk: Desk, node: Node) -> int:
    """The round whose processes a returning agent leaves alone; 0: none."""
    last = desk.assigned
    given_up = bool(desk.broken) and not desk.recovering
    if last is None or given_up or not last.holds(node.rank, node.agent_id):
        return 0
    return last.round


def take_up(desk: Desk, node: Node, hello: Hello) -> None:
    """Compare what a member of a decided world runs with what it should run."""
    world = desk.world
    if world is None or desk.broken or not world.holds(node.rank, node.agent_id):
        return
    if _is_anothers(world, hello):
        _renumber(desk, node, world, hello)
    elif not world.assigned:
        return
    elif hello.round == world.round:
        _go_on(desk, node, world, hello)
    elif hello.round < world.round and node.rank not in world.started and world.store_id:
        assignments.send_assignment(desk, node, charges.failure_limit(desk))
    else:
        text = f"node {node.rank} is in round {hello.round}, not in round {world.round}"
        _lost_round(desk, node, world, text)


def _is_anothers(world: World, hello: Hello) -> bool:
    """Whether a master that did not know of its successor gave this round's number as well.

    Or one above it, while nobody has been told of this round.
    """
    if hello.round != world.round:
        return hello.round > world.round and not world.assigned
    place = hello.assignment
    return not world.assigned if place is None else place.world_hash != world.fact.world_hash


def _renumber(desk: Desk, node: Node, world: World, hello: Hello) -> None:
    """Give the world up; the next one's number is above all that were ever heard of.

    The agent would take this number for one that it has had, and checkpoints' lineages bear it.
    """
    text = f"node {node.rank} had a round {hello.round} of another master"
    if world.assigned:
        _lost_round(desk, node, world, text)
    else:
        incidents.break_world(desk, text)


def _go_on(desk: Desk, node: Node, world: World, hello: Hello) -> None:
    workers = sum(1 for worker in hello.workers if worker.round == world.round)
    if workers >= node.local_world_size:
        starting.started(desk, world, node.rank)
    else:
        reports.miss_soon(desk, node)
    world.reached = max(world.reached, hello.step)
    if world.training:
        world.stepped.add(node.rank)
    stopping.send_arm(desk, node)
    saving.send(desk, node)
    schedules.send(desk, node)


def _lost_round(desk: Desk, node: Node, world: World, text: str) -> None:
    item = Evidence(
        kind=EvidenceKind.ROUND_LOST,
        text=text,
        at=desk.now,
        node_rank=node.rank,
        agent_id=node.agent_id,
    )
    incidents.report_process(desk, item, world.round)
