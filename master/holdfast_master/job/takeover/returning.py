"""Compares the processes of a returning agent with those that it should run."""

from __future__ import annotations

from holdfast_master.job.checkpoints import interval, on_demand
from holdfast_master.job.incidents import incidents
from holdfast_master.job.requests import agent_messages
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import CheckedNode
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import assignment, roster, start
from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.messages import Hello


def round_to_keep(job: JobContext, node: Node) -> int:
    """The round whose processes a returning agent leaves alone; 0: none.

    Those of a node that is to be checked again have ended or are to end: it may have been away
    when it was told so.
    """
    worlds = job.worlds
    last = worlds.assigned
    given_up = bool(worlds.broken) and not worlds.recovering
    checked = CheckedNode(node.rank, node.agent_id) in job.preflight.suspects
    if last is None or given_up or checked or not last.has(node):
        return 0
    return last.round_of(node.rank)


def take_up(job: JobContext, node: Node, hello: Hello) -> None:
    """Compare what a member of a decided world runs with what it should run."""
    world = job.worlds.newest
    if world is None or not world.has(node):
        return
    number = world.round_of(node.rank)
    if job.worlds.broken or (number < world.round and not world.assigned):
        gone = agent_messages.absent(node.local_world_size, hello, number)
        if gone - _ended_well(job, node):
            text = f"node {node.rank} is back without processes of round {number}"
            incidents.note_gone(job, node, text)
        elif world.replicas and hello.round == number:
            _send_missed(job, node)  # its replica goes on
        return
    if _is_anothers(world, node, hello):
        _renumber(job, node, world, hello)
    elif not world.assigned:
        return
    elif hello.round == number:
        _go_on(job, node, world, hello)
    elif hello.round < number and node.rank not in world.started and world.store_ids:
        assignment.send_assignment(job, node, incidents.failure_limit(job))
    else:
        text = f"node {node.rank} is in round {hello.round}, not in round {number}"
        _lost_round(job, node, world, text)


def _ended_well(job: JobContext, node: Node) -> set[int]:
    """The local ranks of a member that are known to have ended with exit code 0."""
    worlds = (job.worlds.newest, job.worlds.assigned)
    known = [one for one in worlds if one is not None and one.has(node)]
    return {local for one in known for local in one.done.get(node.rank, ())}


def _is_anothers(world: World, node: Node, hello: Hello) -> bool:
    """Whether a master that did not know of its successor gave this round's number as well.

    Or one above it, while nobody has been told of this round.
    """
    number = world.round_of(node.rank)
    if hello.round != number:
        return hello.round > number and not world.assigned
    if number != world.round:
        return False  # its replica goes on from an earlier world
    place, own = hello.assignment, world.places[node.rank].replica.world_hash
    return not world.assigned if place is None else place.world_hash != own


def _renumber(job: JobContext, node: Node, world: World, hello: Hello) -> None:
    """Give the world up; the next one's number is above all that were ever heard of.

    The agent would take this number for one that it has had, and checkpoints' lineages bear it.
    """
    text = f"node {node.rank} had a round {hello.round} of another master"
    if world.assigned:
        _lost_round(job, node, world, text)
    else:
        incidents.break_world(job, text)


def _go_on(job: JobContext, node: Node, world: World, hello: Hello) -> None:
    gone = agent_messages.absent(node.local_world_size, hello, world.round_of(node.rank))
    world.unexplained.pop(node.rank, None)  # a hello says which processes run now
    if gone:
        agent_messages.miss_soon(job, node, gone)
    else:
        job.timers.cancel(Timer.MISSING, subject=node.rank)
        start.started(job, world, node.rank)
    if world.saves(node.rank):
        world.reached = max(world.reached, hello.step)
    if world.training:
        world.stepped.add(node.rank)
    barrier.send_barrier(job, node)
    _send_missed(job, node)


def _send_missed(job: JobContext, node: Node) -> None:
    """Tell a member what it may have missed."""
    on_demand.send(job, node)
    interval.send(job, node)
    roster.send(job, node)


def _lost_round(job: JobContext, node: Node, world: World, text: str) -> None:
    item = node.evidence(EvidenceKind.ROUND_LOST, text, job.now)
    incidents.report_process(job, item, world.round_of(node.rank))
