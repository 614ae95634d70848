"""What the failure rules want done about a culprit, besides a new round.

Belongs here: replacing the culprit's node and excluding its host, once for each culprit. Does not
belong here: which rule matches (`decide.failure`), rules that end the job (`charges`).
"""

from __future__ import annotations

from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.job import exclusions, losses, replacements
from holdfast_master.job.case import Case
from holdfast_master.job.desk import Desk, Warn
from holdfast_wire.messages import FailureAction
from holdfast_wire.reasons import EventReason

_REPLACE = frozenset({FailureAction.REPLACE_POD, FailureAction.REPLACE_ON_OTHER_NODE})


def act(desk: Desk) -> None:
    """Carry the rules' answers to the open incidents out."""
    for case in desk.open_cases():
        rank = case.best.node_rank
        if case.response.action in _REPLACE and rank is not None and rank not in case.replaced:
            case.replaced.add(rank)
            _replace(desk, case, rank)


def _replace(desk: Desk, case: Case, rank: int) -> None:
    elsewhere = case.response.action is FailureAction.REPLACE_ON_OTHER_NODE
    why = case.response.reason
    host = exclusions.exclude(desk, rank, why) if elsewhere else ""
    node = desk.roster.nodes.get(rank)
    if node is None or node.agent_id != case.best.agent_id:
        return  # it is gone already, and its replacement asked for
    if replacements.ask(desk, rank, node.pod_uid, why, avoid_node=host):
        node.condemned = True
        losses.drain(desk, node, EvidenceKind.DRAINED, f"node {rank} is replaced: {why}")
    else:
        text = f"nobody can replace node {rank}; its processes are restarted in place: {why}"
        desk.event(EventReason.REPLACE_REQUESTED, text, Warn, node=rank)
