"""Eligibility of the present nodes for a world."""

from __future__ import annotations

from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import OFF, CheckedNode, preflight_mode
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer


def refresh(job: JobContext, node: Node) -> None:
    """Work out anew whether the node is a candidate."""
    job.membership.note_beyond(node.rank, beyond=_is_beyond(job, node))
    fit, world = _is_candidate(job, node), job.worlds.newest
    if fit:
        job.timers.cancel(Timer.REJOIN, subject=node.rank)
    changed = job.membership.note_candidate(
        node.rank,
        fit=fit,
        within=node.rank < job.wanted,
        spare=world is None or not world.has(node),
    )
    if changed:
        job.touch(Change.CANDIDATES_CHANGED)
    elif node.warm and node.session is not None and not is_admitted(job, node):
        job.touch(Change.CHECK_WANTED)


def _is_candidate(job: JobContext, node: Node) -> bool:
    world = job.worlds.newest
    member = world is not None and world.assigned and world.has(node)
    ready = node.warm or member
    marked = node.rank in job.state.draining or node.rank in job.state.released
    marked |= node.rank in job.membership.surplus
    return node.session is not None and ready and not marked and is_admitted(job, node)


def is_admitted(job: JobContext, node: Node) -> bool:
    """Whether the check before a node joins lets it; so do worlds that it was in before."""
    if preflight_mode(job.state.spec) in OFF:
        return True
    if CheckedNode(node.rank, node.agent_id) in job.preflight.suspects:
        return False
    judged = job.state.judged_agent(node.rank, node.agent_id)
    if judged is not None:
        return judged.admitted
    assigned = job.worlds.assigned
    return assigned is not None and assigned.has(node)


def recount(job: JobContext) -> None:
    """Count the candidates whose ranks the spec asks for, after another spec came into force."""
    job.membership.within = {rank for rank in job.membership.candidates if rank < job.wanted}


def settle_surplus(job: JobContext) -> None:
    """Work out anew the nodes beyond the wanted ranks that must go; there are such nodes.

    One of them stands in for each wanted rank that is not there, until that is back or the time
    that was promised for a smaller job is over.
    """
    standing_in = (
        0 if job.membership.release_overdue else max(0, job.wanted - len(job.membership.within))
    )
    if not standing_in and len(job.membership.surplus) == len(job.membership.beyond):
        return  # all of them must go, as before
    staying = sorted(job.membership.beyond - job.state.draining - job.state.released)[:standing_in]
    surplus = job.membership.beyond - set(staying)
    if surplus == job.membership.surplus:
        return
    changed = surplus ^ job.membership.surplus
    job.membership.surplus = surplus
    for rank in sorted(changed):
        refresh(job, job.membership.nodes[rank])


def _is_beyond(job: JobContext, node: Node) -> bool:
    unmanaged = node.hello is not None and node.hello.unmanaged
    known = job.operator.ever and not unmanaged and job.state.spec is not None
    return known and node.rank >= job.wanted


def is_kept_out(state: JobState, node: Node) -> bool:
    """Whether the check of this very agent found it bad, so that it does not join."""
    judged = state.judged_agent(node.rank, node.agent_id)
    return judged is not None and not judged.admitted
