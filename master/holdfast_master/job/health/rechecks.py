"""Second checks of nodes that something speaks against since their first one.

Belongs here: when suspicion is looked for, and the nodes that it keeps from the next world until
their check is over. Does not belong here: what makes a node suspect (`policies.node_history`), the
check itself (`preflight`).

A running world is never touched. It is looked once after the end of a world, before the next one is
formed: the others may go on without a suspect node, and it joins after its check as a new one does.
Ranks of the world that ended may still live on it, in a collective without the others: they are
stopped, or they would be measured along, and the agent would refuse.
"""

from __future__ import annotations

import math

from holdfast_master.job.incidents import strikes
from holdfast_master.job.nodes import eligibility
from holdfast_master.job.nodes.stop_orders import stop_round
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.nodes import Node
from holdfast_master.job.state.preflight import CheckedNode
from holdfast_master.policies.node_history import why_again


def look(job: JobContext) -> None:
    """Find the suspect nodes, once for each world that has ended."""
    own, worlds = job.preflight, job.worlds
    running = worlds.newest is not None and not worlds.broken
    if running or own.looked_after == job.state.round:
        return
    own.looked_after = job.state.round
    if not job.state.strikes:
        return
    # Replicas that nothing has disturbed train on while others are formed anew.
    training = worlds.assigned.undisturbed() if worlds.assigned is not None else set()
    found = {node: why for node, why in _suspects(job).items() if node.rank not in training}
    present = {CheckedNode(rank, node.agent_id) for rank, node in job.membership.nodes.items()}
    own.suspects = {node: why for node, why in own.suspects.items() if node in present} | found
    for checked in found:
        node = job.membership.nodes[checked.rank]
        _stop_ranks(job, node)
        eligibility.refresh(job, node)


def _stop_ranks(job: JobContext, node: Node) -> None:
    assigned = job.worlds.assigned
    if assigned is not None and assigned.holds(node.rank, node.agent_id):
        reason = f"node {node.rank} is checked before it joins a world again"
        stop_round(job.out, node, assigned.round_of(node.rank), reason)
        assigned.disturb(node.rank)


def _suspects(job: JobContext) -> dict[CheckedNode, str]:
    noted, standings = strikes.own(job), strikes.standings(job)
    found = dict[CheckedNode, str]()
    for rank, node in sorted(job.membership.nodes.items()):
        host = strikes.host_of(job, rank)
        if eligibility.is_kept_out(job, node):
            continue
        # Its own also under another name: a new master hears late on which hosts its nodes are.
        known = [one for one in noted if one.host == host or one.node_rank == rank]
        why = why_again(rank, _judged_at(job, node), known, standings.get(host))
        if why:
            found[CheckedNode(rank, node.agent_id)] = why
    return found


def _judged_at(job: JobContext, node: Node) -> float:
    """Return the time of this agent's verdict; 0: it joined before checks were wanted.

    A journal of a release before has no time: nothing came later than that verdict.
    """
    judged = job.state.judged.get(node.rank)
    if judged is None or judged.agent_id != node.agent_id:
        return 0.0
    return judged.unix_time or math.inf
