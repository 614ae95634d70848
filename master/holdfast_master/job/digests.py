"""The state digest: what a master without a journal would need, kept by three agents.

Belongs here: building it, keeping it fresh, taking over what one says. Does not belong here:
finding the newest (`claims`), adopting a world (`adoption`).
"""

from __future__ import annotations

import itertools

from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.decide.goodput import class_seconds, summed
from holdfast_master.job import candidacy, losses
from holdfast_master.job.desk import Desk, Placed
from holdfast_master.job.roster import Node
from holdfast_master.job.state import PROMISED
from holdfast_master.job.timers import Timer
from holdfast_wire.messages import NodeExcluded, NodeMarked, SpecAccepted, StateDigest

_KEEPERS = 3
_CHARGES = 500
"""Newest charges that fit; older ones are outside of any sensible window."""
_EXCLUDED = 200
_DRAINING = 16
"""More at once are no person's drains; each costs a look at all of them."""


def build(desk: Desk) -> StateDigest:
    """The digest as of now."""
    state = desk.state
    gone = [totals for rank, totals in state.goodput.items() if rank not in desk.roster.nodes]
    cases = desk.open_cases()
    members = state.assigned.members if state.assigned else ()
    return StateDigest(
        fence=desk.fence(state.round),
        sequence=state.sequence,
        spec=state.spec,
        charges=tuple(state.charges[-_CHARGES:]),
        excluded_nodes=tuple(state.excluded)[-_EXCLUDED:],
        event_sequence=state.event_sequence,
        job_seconds=desk.clock.job_seconds,
        restart_count=state.assigned.restart_count if state.assigned else 0,
        next_command_id=state.next_command_id,
        world_members=tuple(member.node_rank for member in members),
        goodput=class_seconds(summed(gone)),
        open_incident_id=cases[-1].id if cases else "",
        ended_round=_ended(desk),
        draining_agents=_draining(desk),
    )


def _ended(desk: Desk) -> int:
    """The round that was ended while no other has followed it; 0: none."""
    state = desk.state
    return state.assigned.round if state.assigned is not None and state.ended else 0


def _draining(desk: Desk) -> tuple[str, ...]:
    nodes, ranks = desk.state.nodes, desk.state.draining
    promised = sorted(desk.state.promised)
    if len(ranks) + len(promised) > _DRAINING:
        return ()  # a reduction: the spec says as much
    return (*(nodes[rank].agent_id for rank in sorted(ranks) if rank in nodes), *promised)


def keep_fresh(desk: Desk) -> None:
    """Place the digest when what it guards has changed since it was placed last.

    It goes out before the rest of the batch: an effect never depends on what only this master
    knows.
    """
    state = desk.state
    if state.sequence == desk.placed.sequence:
        return
    guarded = (
        state.round,
        state.spec.generation if state.spec else 0,
        len(state.charges),
        len(state.excluded),
        tuple(case.id for case in desk.open_cases()),
        _ended(desk),
        min(len(state.draining) + len(state.promised), _DRAINING),
    )
    if guarded == desk.placed.guarded or _place(desk):
        desk.placed = Placed(state.sequence, guarded)


def _place(desk: Desk) -> bool:
    """Give the digest to the first three members of the newest world; False: to nobody."""
    assigned = desk.state.assigned
    # After a restart this is asked at every word of the operator, long before an agent is back.
    if assigned is None or not desk.roster.sessions:
        return False
    there = (
        node
        for member in assigned.members
        if (node := desk.roster.nodes.get(member.node_rank)) is not None and node.session
    )
    keepers = list(itertools.islice(there, _KEEPERS))
    digest = build(desk) if keepers else None
    for node in keepers:
        desk.send_first(node, digest)
    return bool(keepers)


def take(desk: Desk) -> None:
    """What the predecessor placed with the agents: charges, exclusions, counters, the spec."""
    claims = desk.claims
    if claims.settled:
        return
    claims.settled = True
    desk.timers.cancel(Timer.ADOPT)
    if claims.digest is not None and desk.state.assigned is None:
        _replay(desk, claims.digest)


def _replay(desk: Desk, digest: StateDigest) -> None:
    if desk.state.spec is None and digest.spec is not None:
        desk.record(SpecAccepted(spec=digest.spec), durable=True)
        candidacy.recount(desk)
    desk.clock.job_base += max(0.0, digest.job_seconds)
    desk.event_floor = digest.event_sequence
    # A journal that has no world may have charges all the same.
    known = {charge.incident_id for charge in desk.state.charges}
    for charge in digest.charges:
        if charge.incident_id not in known:
            desk.record(charge)
    for host in digest.excluded_nodes:
        desk.record(NodeExcluded(node=host, reason="excluded by an earlier master"))
    for agent in digest.draining_agents:
        # Who has not come yet may come to the next master.
        desk.record(NodeMarked(agent_id=agent, mark=PROMISED, value=True), durable=True)
    for node in list(desk.roster.nodes.values()):
        drain(desk, node)


def drain(desk: Desk, node: Node) -> None:
    """The node leaves if the predecessor had promised that to somebody."""
    if node.agent_id in desk.state.promised:
        desk.record(NodeMarked(agent_id=node.agent_id, mark=PROMISED, value=False))
        losses.drain(desk, node, EvidenceKind.DRAINED, f"node {node.rank} was told to leave")
