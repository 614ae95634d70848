"""Which present nodes could be in a world.

Belongs here: the one test of it, and the sets that are kept so that nobody must scan. Does not
belong here: choosing among candidates (`decide.rendezvous`).
"""

from __future__ import annotations

from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer


def refresh(desk: Desk, node: Node) -> None:
    """Work out anew whether the node is a candidate."""
    if _is_beyond(desk, node):
        desk.beyond.add(node.rank)
    else:
        desk.beyond.discard(node.rank)
        desk.surplus.discard(node.rank)
    fit = _is_candidate(desk, node)
    was = node.rank in desk.roster.candidates
    if fit:
        desk.roster.candidates.add(node.rank)
        desk.timers.cancel(Timer.REJOIN, node.rank)
    else:
        desk.roster.candidates.discard(node.rank)
    if fit and node.rank < desk.wanted:
        desk.within.add(node.rank)
    else:
        desk.within.discard(node.rank)
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
    return node.session is not None and ready and not marked


def recount(desk: Desk) -> None:
    """Which candidates the spec asks for, after another spec came into force."""
    desk.within = {rank for rank in desk.roster.candidates if rank < desk.wanted}


def settle_surplus(desk: Desk) -> None:
    """Which of the nodes beyond the wanted ranks must go.

    One of them stands in for each wanted rank that is not there, until that is back or the time
    that was promised for a smaller job is over.
    """
    if not desk.beyond:
        return
    standing_in = 0 if desk.release_overdue else max(0, desk.wanted - len(desk.within))
    if not standing_in and len(desk.surplus) == len(desk.beyond):
        return  # all of them must go, as before
    staying = sorted(desk.beyond - desk.state.draining - desk.state.released)[:standing_in]
    surplus = desk.beyond - set(staying)
    if surplus == desk.surplus:
        return
    changed = surplus ^ desk.surplus
    desk.surplus = surplus
    for rank in sorted(changed):
        refresh(desk, desk.roster.nodes[rank])


def _is_beyond(desk: Desk, node: Node) -> bool:
    unmanaged = node.hello is not None and node.hello.unmanaged
    known = desk.operator.ever and not unmanaged and desk.state.spec is not None
    return known and node.rank >= desk.wanted
