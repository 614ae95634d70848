"""The state digest: what a master without a journal would need, kept by three agents.

Belongs here: building it, placing it, taking over what one says. Does not belong here: finding the
newest (`claims`), adopting a world (`adoption`).
"""

from __future__ import annotations

from holdfast_master.decide.goodput import class_seconds, summed
from holdfast_master.job.desk import Desk
from holdfast_master.job.timers import Timer
from holdfast_wire.messages import CommandIssued, NodeExcluded, SpecAccepted, StateDigest

_KEEPERS = 3
_CHARGES = 500
"""Newest charges that fit; older ones are outside of any sensible window."""
_EXCLUDED = 200


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
        excluded_nodes=tuple(sorted(state.excluded)[:_EXCLUDED]),
        event_sequence=state.event_sequence,
        job_seconds=desk.clock.job_seconds,
        restart_count=state.assigned.restart_count if state.assigned else 0,
        next_command_id=state.next_command_id,
        world_members=tuple(member.node_rank for member in members),
        goodput=class_seconds(summed(gone)),
        open_incident_id=cases[-1].id if cases else "",
    )


def place(desk: Desk) -> None:
    """Give the digest to the first three members of the newest world."""
    assigned = desk.state.assigned
    if assigned is None:
        return
    digest = build(desk)
    placed = 0
    for member in assigned.members:
        node = desk.roster.nodes.get(member.node_rank)
        if node is not None and node.session is not None:
            desk.send(node, digest)
            placed += 1
        if placed == _KEEPERS:
            return


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
    desk.clock.job_base += max(0.0, digest.job_seconds)
    desk.event_floor = digest.event_sequence
    for charge in digest.charges:
        desk.record(charge)
    for host in digest.excluded_nodes:
        desk.record(NodeExcluded(node=host, reason="excluded by an earlier master"))
    if digest.next_command_id > desk.state.next_command_id:
        last = digest.next_command_id - 1
        desk.record(CommandIssued(command_id=last, kind="adopted"), durable=True)
