"""State digests: the part of the durable state that three agents keep for another master."""

from __future__ import annotations

import heapq
import itertools
from typing import Any

from holdfast_master.job.incidents import goodput_marks
from holdfast_master.job.nodes import eligibility, liveness
from holdfast_master.job.state import snapshot
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import PROMISED, JobState
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.goodput import class_seconds, from_class_seconds
from holdfast_wire import messages as wire

_KEEPERS = 3
_CHARGES = 500
"""Newest charges that fit; older ones are outside of any sensible window."""
_EXCLUDED = 200
_DRAINING = 16
"""More at once are no person's drains; each costs a look at all of them."""
_DEPARTED = 200
"""Nodes that are gone whose goodput fits; the smallest of more are left out."""


def build(job: JobContext) -> wire.StateDigest:
    """The digest as of now: a projection of the durable state, cut to what may be sent."""
    state = job.state
    members = state.assigned.members if state.assigned else ()
    durable = snapshot.project(state, wire.StateDigest)
    kept: dict[str, Any] = {
        "fence": job.out.fence(state.round),
        "charges": tuple(state.charges[-_CHARGES:]),
        "excluded_nodes": tuple(state.excluded)[-_EXCLUDED:],
        "job_seconds": job.clock.job_seconds,
        "restart_count": state.assigned.restart_count if state.assigned else 0,
        "world_members": tuple(member.node_rank for member in members),
        "ended_round": _ended(job.state),
        "draining_agents": _draining(job.state),
        "departed": _departed(job),
    }
    return wire.StateDigest(**(durable | kept))


def _ended(state: JobState) -> int:
    """The round that was ended while no other has followed it; 0: none."""
    return state.assigned.round if state.assigned is not None and state.ended else 0


def _draining(state: JobState) -> tuple[str, ...]:
    nodes, ranks = state.nodes, state.draining
    promised = sorted(state.promised)
    if len(ranks) + len(promised) > _DRAINING:
        return ()  # a reduction: the spec says as much
    return (*(nodes[rank].agent_id for rank in sorted(ranks) if rank in nodes), *promised)


def _departed(job: JobContext) -> tuple[wire.DepartedNode, ...]:
    gone = [rank for rank in job.state.goodput if rank not in job.membership.nodes]
    kept = heapq.nlargest(_DEPARTED, gone, key=lambda rank: sum(job.state.goodput[rank].values()))
    return tuple(
        wire.DepartedNode(node_rank=rank, classes=class_seconds(job.state.goodput[rank]))
        for rank in kept
    )


def keep_fresh(job: JobContext) -> None:
    """Place the digest when what it guards has changed since it was placed last.

    Called where the journal has grown since then. It goes out before the rest of the batch: an
    effect never depends on what only this master knows.
    """
    state = job.state
    guarded = (
        state.round,
        state.spec.generation if state.spec else 0,
        len(state.charges),
        len(state.excluded),
        # What opens an incident may have taken a keeper away: the others get the newest.
        tuple(incident.id for incident in job.incidents.open()),
        _ended(job.state),
        min(len(state.draining) + len(state.promised), _DRAINING),
    )
    if guarded == job.placed or _place(job):
        job.placed, job.placed_sequence = guarded, state.sequence


def _place(job: JobContext) -> bool:
    """Give the digest to the first three members of the newest world; False: to nobody."""
    assigned = job.state.assigned
    # After a restart this is asked at every word of the operator, long before an agent is back.
    if assigned is None or not job.membership.sessions:
        return False
    there = (
        node
        for member in assigned.members
        if (node := job.membership.nodes.get(member.node_rank)) is not None and node.session
    )
    keepers = list(itertools.islice(there, _KEEPERS))
    if not keepers:
        return False
    digest = build(job)
    for node in keepers:
        job.out.send_first(node, digest)
    return True


def take(job: JobContext) -> None:
    """Take over the predecessor's digest: charges, exclusions, counters, the spec."""
    claims = job.claims
    if claims.settled:
        return
    claims.settled = True
    job.timers.cancel(Timer.ADOPT)
    if claims.digest is not None and job.state.assigned is None:
        _replay(job, claims.digest)


def _replay(job: JobContext, digest: wire.StateDigest) -> None:
    if job.state.spec is None and digest.spec is not None:
        job.out.record(wire.SpecAccepted(spec=digest.spec), durable=True)
        eligibility.recount(job)
    job.clock.job_base += max(0.0, digest.job_seconds)
    job.claims.event_floor = digest.event_sequence
    # A journal that has no world may have charges all the same.
    known = {charge.incident_id for charge in job.state.charges}
    for charge in digest.charges:
        if charge.incident_id not in known:
            job.out.record(charge)
    for gone in digest.departed:
        if gone.node_rank not in job.state.goodput and gone.node_rank not in job.membership.nodes:
            goodput_marks.bring(job, gone.node_rank, from_class_seconds(gone.classes))
    for host in digest.excluded_nodes:
        job.out.record(wire.NodeExcluded(node=host, reason="excluded by an earlier master"))
    for agent in digest.draining_agents:
        # Who has not come yet may come to the next master.
        job.out.record(wire.NodeMarked(agent_id=agent, mark=PROMISED, value=True), durable=True)
    for node in list(job.membership.nodes.values()):
        drain(job, node)


def drain(job: JobContext, node: Node) -> None:
    """The node leaves if the predecessor had promised that to somebody."""
    if node.agent_id in job.state.promised:
        job.out.record(wire.NodeMarked(agent_id=node.agent_id, mark=PROMISED, value=False))
        liveness.drain(job, node, EvidenceKind.DRAINED, f"node {node.rank} was told to leave")
