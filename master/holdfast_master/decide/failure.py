"""Whom an incident is laid to, which budget it spends, and which rule answers it.

Belongs here: ranking evidence, blame, the charge, the failure rules. Does not belong here: how much
a budget has left (`budgets`), when the world is formed anew (`rendezvous`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from holdfast_wire.messages import BudgetKind, FailureAction, FailureRule
from holdfast_wire.reasons import Cause


class EvidenceKind(enum.Enum):
    """What was seen. The value is the incident's cause if this evidence is the best."""

    NODE_REMOVED = Cause.NODE_REMOVED
    PREEMPTED = Cause.PREEMPTED
    DRAINED = Cause.DRAINED
    WORKER_CRASHED = Cause.WORKER_CRASHED
    POD_FAILED = Cause.POD_FAILED
    AGENT_SILENT = Cause.AGENT_SILENT
    AGENT_REPLACED = Cause.AGENT_REPLACED
    AGENT_FAILED = Cause.AGENT_FAILED
    AGENT_LEFT = Cause.AGENT_LEFT
    LEASE_EXPIRED = Cause.LEASE_EXPIRED
    WORKER_RAISED = Cause.WORKER_RAISED
    WORKER_EXITED = Cause.WORKER_EXITED
    WORKERS_MISSING = Cause.WORKERS_MISSING
    ROUND_LOST = Cause.ROUND_LOST
    RESTART_ASKED = Cause.RESTART_ASKED
    RESCALED = Cause.RESCALED


TAKEN = frozenset(
    {
        EvidenceKind.NODE_REMOVED,
        EvidenceKind.PREEMPTED,
    }
)
"""Somebody took the node away."""
_DIED = {
    EvidenceKind.WORKER_CRASHED,
    EvidenceKind.POD_FAILED,
    EvidenceKind.AGENT_SILENT,
    EvidenceKind.AGENT_REPLACED,
    EvidenceKind.AGENT_FAILED,
    EvidenceKind.AGENT_LEFT,
    EvidenceKind.LEASE_EXPIRED,
    EvidenceKind.ROUND_LOST,
}
_STRENGTHS = (
    (TAKEN, 5),
    (_DIED, 4),
    ({EvidenceKind.WORKER_RAISED}, 3),
    ({EvidenceKind.WORKER_EXITED}, 2),
    ({EvidenceKind.WORKERS_MISSING}, 1),
    ({EvidenceKind.DRAINED, EvidenceKind.RESTART_ASKED, EvidenceKind.RESCALED}, 0),
)
STRENGTH = {kind: strength for kinds, strength in _STRENGTHS for kind in kinds}
"""How far evidence of a kind outranks other evidence. A node that was taken away explains every
exception and signal of the others; a process or node that died explains their exceptions; an
intended change explains nothing once something has failed on its way."""

PLANNED = frozenset(kind for kind, strength in STRENGTH.items() if strength == 0)
"""Kinds that somebody wanted: no failure."""

_UNCHARGED = PLANNED | {EvidenceKind.NODE_REMOVED, EvidenceKind.ROUND_LOST}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was seen of an interruption."""

    kind: EvidenceKind
    text: str
    """One sentence for people."""
    at: float
    """When it happened (not when it was told), s."""
    node_rank: int | None = None
    agent_id: str = ""
    rank: int | None = None
    """Global rank of the process; None: it is about the node."""
    exit_code: int | None = None
    """Of the process or of the agent; -N for signal N; None: nobody's own."""
    conditions: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Log patterns of the rules that were found in the process's standard error."""
    final: bool = False
    """Who started the process has no restarts left: it takes part in no further world."""


def worker_kind(exit_code: int, error_type: str) -> EvidenceKind:
    """What a training process's end is evidence of."""
    if exit_code < 0 or 128 < exit_code <= 128 + 64:
        return EvidenceKind.WORKER_CRASHED
    return EvidenceKind.WORKER_RAISED if error_type else EvidenceKind.WORKER_EXITED


def culprit(evidence: Sequence[Evidence]) -> Evidence:
    """The evidence that the incident is laid to; the order of arrival does not matter.

    The strongest kind wins, within it the earliest; ties go to the lowest node and rank.
    """
    return min(evidence, key=_order)


def _order(item: Evidence) -> tuple[float, float, bool, int, int, str, str]:
    node = -1 if item.node_rank is None else item.node_rank
    rank = -1 if item.rank is None else item.rank
    # A pod's own end says more than the silence that it explains.
    vague = item.kind is not EvidenceKind.POD_FAILED
    return (-_strength(item), item.at, vague, node, rank, item.kind.value, item.text)


def _strength(item: Evidence) -> float:
    # A survivor of a broken collective raises, and at most turns that into exit code 1. Another
    # code without an exception was chosen by the script: it is no echo of somebody else's end.
    chosen = item.kind is EvidenceKind.WORKER_EXITED and item.exit_code not in (None, 0, 1)
    return STRENGTH[EvidenceKind.WORKER_RAISED] + 0.5 if chosen else STRENGTH[item.kind]


@dataclasses.dataclass(frozen=True, slots=True)
class Charge:
    """Which budget an incident spends; None: none."""

    kind: BudgetKind | None
    reason: str


def charge(blamed: Evidence, action: FailureAction, *, progressed: bool, asked: bool) -> Charge:
    """Which budget an incident with this culprit spends.

    `progressed`: a new step was completed since the failure before. `asked`: a person wanted the
    change of size that this was.
    """
    kind = blamed.kind
    if action is FailureAction.IGNORE:
        return Charge(None, "a failure rule says Ignore")
    if kind is EvidenceKind.PREEMPTED:
        return Charge(BudgetKind.PREEMPTIONS, "the node was taken away")
    if kind is EvidenceKind.RESCALED and not asked:
        return Charge(BudgetKind.RESCALES, "nobody asked for this change of size")
    if kind in _UNCHARGED:
        return Charge(None, "it was wanted")
    if kind is EvidenceKind.AGENT_LEFT:
        return Charge(BudgetKind.RESCALES, "the node left by itself, nothing failed")
    if not progressed:
        return Charge(BudgetKind.NO_PROGRESS, "no new step since the failure before")
    return Charge(BudgetKind.FAILURES, "a process, pod or node failed")


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """What the failure rules say."""

    action: FailureAction
    reason: str


DEFAULT_RESPONSE = Response(FailureAction.RESTART_IN_PLACE, "no failure rule matches")


def respond(item: Evidence, rules: Sequence[FailureRule]) -> Response:
    """The action of the first rule that matches the evidence."""
    if item.kind in PLANNED:
        return DEFAULT_RESPONSE
    for number, rule in enumerate(rules):
        why = _match(item, rule)
        if why:
            return Response(rule.action, f"failurePolicy.rules[{number}] matches: {why}")
    return DEFAULT_RESPONSE


def _match(item: Evidence, rule: FailureRule) -> str:
    if rule.exit_codes or rule.exit_codes_not_in:
        return _match_code(item, rule)
    if rule.pod_conditions:
        common = sorted(set(rule.pod_conditions).intersection(item.conditions))
        return f"pod condition {common[0]}" if common else ""
    if rule.log_pattern and rule.log_pattern in item.patterns:
        return f"the log matches {rule.log_pattern!r}"
    return ""


def _match_code(item: Evidence, rule: FailureRule) -> str:
    # What ends on a node that is taken away ends by a signal of the node's, not by its own choice.
    if item.kind in TAKEN or item.exit_code is None or item.exit_code == 0:
        return ""
    code = 128 - item.exit_code if item.exit_code < 0 else item.exit_code
    if (code in rule.exit_codes) is rule.exit_codes_not_in:
        return ""
    return f"exit code {code}"


def strongest(kinds: Sequence[EvidenceKind]) -> EvidenceKind:
    """The kind of evidence that outranks the others."""
    return max(kinds, key=lambda kind: (STRENGTH[kind], kind.value))
