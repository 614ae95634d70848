"""Which present nodes could be in a world.

Belongs here: the one test of it, and the sets that are kept so that nobody must scan. Does not
belong here: choosing among candidates (`decide.rendezvous`).
"""

from __future__ import annotations

from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node


def refresh(desk: Desk, node: Node) -> None:
    """Work out anew whether the node is a candidate."""
    if is_surplus(desk, node):
        desk.surplus.add(node.rank)
    else:
        desk.surplus.discard(node.rank)
    fit = _is_candidate(desk, node)
    was = node.rank in desk.roster.candidates
    if fit:
        desk.roster.candidates.add(node.rank)
    else:
        desk.roster.candidates.discard(node.rank)
    world = desk.world
    if fit and (world is None or not world.holds(node.rank, node.agent_id)):
        desk.spares.add(node.rank)
    else:
        desk.spares.discard(node.rank)
    desk.dirty |= fit is not was


def _is_candidate(desk: Desk, node: Node) -> bool:
    world = desk.world
    member = world is not None and world.assigned and world.holds(node.rank, node.agent_id)
    ready = node.warm or member
    marked = node.rank in desk.state.draining or node.rank in desk.state.released
    marked |= node.rank in desk.surplus
    host = desk.operator.host_of(node.rank)
    excluded = bool(host) and host in desk.state.excluded
    return node.session is not None and ready and not marked and not excluded


def is_surplus(desk: Desk, node: Node) -> bool:
    """Whether the spec asks for fewer nodes than would include this one."""
    unmanaged = node.hello is not None and node.hello.unmanaged
    known = desk.operator.ever and not unmanaged and desk.state.spec is not None
    return known and node.rank >= desk.wanted
