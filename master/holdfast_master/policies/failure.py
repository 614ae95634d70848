"""The failure policy: root cause, rule, budget and its balance, pause before a restart."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from holdfast_master.policies.quantities import period
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import Budget, BudgetCharge, BudgetKind, FailureAction, FailureRule
from holdfast_wire.reasons import Cause, EndReason


class EvidenceKind(enum.Enum):
    """The kind of evidence; the value is the incident's cause if the evidence is the strongest."""

    NODE_REMOVED = Cause.NODE_REMOVED
    PREEMPTED = Cause.PREEMPTED
    DRAINED = Cause.DRAINED
    WORKER_CRASHED = Cause.WORKER_CRASHED
    OUT_OF_MEMORY = Cause.OUT_OF_MEMORY
    POD_FAILED = Cause.POD_FAILED
    AGENT_SILENT = Cause.AGENT_SILENT
    AGENT_REPLACED = Cause.AGENT_REPLACED
    AGENT_FAILED = Cause.AGENT_FAILED
    AGENT_LEFT = Cause.AGENT_LEFT
    LEASE_EXPIRED = Cause.LEASE_EXPIRED
    STORE_LOST = Cause.STORE_LOST
    HUNG = Cause.HUNG
    WORKER_RAISED = Cause.WORKER_RAISED
    WORKER_EXITED = Cause.WORKER_EXITED
    WORKERS_MISSING = Cause.WORKERS_MISSING
    ROUND_LOST = Cause.ROUND_LOST
    RESTART_ASKED = Cause.RESTART_ASKED
    RESCALED = Cause.RESCALED


TAKEN = frozenset({EvidenceKind.NODE_REMOVED, EvidenceKind.PREEMPTED})
"""Somebody took the node away."""
_DIED = {
    EvidenceKind.WORKER_CRASHED,
    EvidenceKind.OUT_OF_MEMORY,
    EvidenceKind.POD_FAILED,
    EvidenceKind.AGENT_SILENT,
    EvidenceKind.AGENT_REPLACED,
    EvidenceKind.AGENT_FAILED,
    EvidenceKind.AGENT_LEFT,
    EvidenceKind.LEASE_EXPIRED,
    EvidenceKind.STORE_LOST,
    EvidenceKind.ROUND_LOST,
    # What ranks meet that are ended for it comes later.
    EvidenceKind.HUNG,
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
    """One observation about an interruption."""

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
    memory_limit: int = 0
    """Of the process's container, bytes, where lack of memory ended it; 0: none, or not known."""
    conditions: tuple[str, ...] = ()
    matched: tuple[FailureRule, ...] = ()
    """Rules that match by what only the agent sees, as it knew them."""
    final: bool = False
    """Who started the process has no restarts left: it takes part in no further world."""


_KILLED = (-9, 128 + 9)
"""Ended by SIGKILL; the second form is a shell's whose command was."""


def worker_kind(exit_code: int, error_type: str, oom_kills: int = 0) -> EvidenceKind:
    """The kind of evidence that a training process's end is.

    oom_kills: processes of its container that the kernel ended for lack of memory in this round.
    """
    if exit_code in _KILLED and oom_kills:
        return EvidenceKind.OUT_OF_MEMORY
    if exit_code < 0 or 128 < exit_code <= 128 + 64:
        return EvidenceKind.WORKER_CRASHED
    return EvidenceKind.WORKER_RAISED if error_type else EvidenceKind.WORKER_EXITED


_CLOSED = (
    "connection closed by peer",
    "connection reset by peer",
    "connection was likely closed",
    "broken pipe",
    "remote process exited",
    "socket closed",
    "read 0 bytes",
    "got 0 bytes",
)
"""Words of gloo, NCCL and the TCPStore when the other side has gone, in small letters."""


def met_closed_connection(text: str) -> bool:
    """Whether an error says that another process has closed its connection."""
    lowered = text.lower()
    return any(words in lowered for words in _CLOSED)


def culprit(evidence: Sequence[Evidence]) -> Evidence:
    """The evidence that counts as the incident's cause, whatever order it arrived in.

    The strongest evidence wins, among equals the earliest; ties go to the lowest node and rank.
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
    """The budget that an incident spends, with the reason; None: the incident spends none."""

    kind: BudgetKind | None
    reason: str


def charge(blamed: Evidence, action: FailureAction, *, progressed: bool, asked: bool) -> Charge:
    """The budget that an incident with this culprit spends, with the reason.

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
        return Charge(None, "it was wanted" if kind in PLANNED else "nothing of the job failed")
    if kind is EvidenceKind.AGENT_LEFT:
        return Charge(BudgetKind.RESCALES, "the node left by itself, nothing failed")
    if not progressed:
        return Charge(BudgetKind.NO_PROGRESS, "no new step since the failure before")
    return Charge(BudgetKind.FAILURES, "a process, pod or node failed")


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """The action that the failure rules ask for, with the reason."""

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
    if rule.log_pattern and any(rule.log_pattern == one.log_pattern for one in item.matched):
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


END_REASONS = {
    BudgetKind.FAILURES: EndReason.FAILURE_BUDGET_EXHAUSTED,
    BudgetKind.PREEMPTIONS: EndReason.PREEMPTION_BUDGET_EXHAUSTED,
    BudgetKind.RESCALES: EndReason.RESCALE_BUDGET_EXHAUSTED,
    BudgetKind.NO_PROGRESS: EndReason.NO_PROGRESS,
}
"""Why the job ends when a budget of this kind has nothing left."""

CHARGEABLE = tuple(END_REASONS)
"""Every kind that can be charged, in the order in which they are shown."""

BUDGET_NAMES = {
    BudgetKind.FAILURES: "failures",
    BudgetKind.PREEMPTIONS: "preemptions",
    BudgetKind.RESCALES: "rescales",
    BudgetKind.NO_PROGRESS: "noProgressRestarts",
}
"""Field names under `failurePolicy.budgets`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Balance:
    """One budget and the charges that it bears."""

    kind: BudgetKind
    used: int
    limit: int | None
    """None: the spec has no such budget, nothing limits it."""
    window: int
    """s of the job's own time; 0: its whole life."""


def has_own_account(budgets: Sequence[Budget], failure_cap: int | None = None) -> bool:
    """Whether restarts without progress are counted apart from other failures.

    They are not where the spec has no budget for them. Nor are they where `failure_cap` (the
    agents' --max-restarts) allows no more restarts than that budget: torchrun counts every restart,
    so the flag would bound nothing while each failure but the first went to the other budget.
    """
    own = next((budget for budget in budgets if budget.kind is BudgetKind.NO_PROGRESS), None)
    return own is not None and (failure_cap is None or failure_cap > own.limit)


@dataclasses.dataclass(frozen=True, slots=True)
class Affordable:
    """The answer to one more charge, with the reason."""

    ok: bool
    reason: str


def balance(
    kind: BudgetKind,
    budgets: Sequence[Budget],
    charges: Iterable[BudgetCharge],
    job_seconds: float,
    failure_cap: int | None = None,
) -> Balance:
    """The budget with the charges that count at `job_seconds` of the job's own time.

    `failure_cap` (the agents' --max-restarts) lowers the limit of failures and nothing else; where
    it bounds restarts without progress as well, those are failures like others (`has_own_account`).
    """
    found = next((budget for budget in budgets if budget.kind is kind), None)
    limit = None if found is None else found.limit
    window = 0 if found is None else found.window_seconds
    if kind is BudgetKind.FAILURES and failure_cap is not None:
        limit = failure_cap if limit is None else min(limit, failure_cap)
    since = job_seconds - window if window > 0 else float("-inf")
    used = sum(1 for charge in charges if charge.kind is kind and charge.job_seconds > since)
    return Balance(kind, used, limit, window)


def afford(account: Balance) -> Affordable:
    """Return True if the budget can take one more charge, and why."""
    name = BUDGET_NAMES[account.kind]
    if account.limit is None:
        return Affordable(ok=True, reason=f"{name} has no limit")
    span = f" within {period(account.window)}" if account.window else ""
    if account.used + 1 > account.limit:
        text = f"{name} allows {account.limit}{span}; this would be number {account.used + 1}"
        return Affordable(ok=False, reason=text)
    text = f"number {account.used + 1} of {account.limit} {name}{span}"
    return Affordable(ok=True, reason=text)


_RESTARTS_AT_ONCE = 1
"""Restarts without progress that do not wait."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """The pause before one restart, with its reason."""

    seconds: float
    reason: str


def pause(in_a_row: int, settings: CoreSettings) -> Pause:
    """The pause before the restart with this number in a row without a new step; 0: it made one.

    It counts from the end of the failed round. The first restart without progress is at once, as
    any other: a second fault can follow on the first one by chance. What fails twice in a row fails
    for a reason that lasts, such as storage that is away; the budget should last until that is
    over. There is no jitter: one job has one master, and nobody else restarts at its time.
    """
    doublings = in_a_row - _RESTARTS_AT_ONCE - 1
    if doublings < 0:
        return Pause(0.0, "the first restart is at once")
    # The exponent is bounded: a budget may allow thousands of restarts.
    seconds = settings.backoff_seconds * 2.0 ** min(doublings, 32)
    seconds = min(settings.longest_backoff_seconds, seconds)
    text = f"restart {in_a_row} in a row without a new step begins after {seconds:g} s"
    return Pause(seconds, text)
