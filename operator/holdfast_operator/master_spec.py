"""A job's spec in the words of the wire: the part that its master acts on, defaults filled in.

Pure. What the operator itself acts on (pods, cleanup, templates) stays out.
"""

from __future__ import annotations

from holdfast_operator.build.template import main_container
from holdfast_operator.spec.job import Budget as JobBudget
from holdfast_operator.spec.job import FailureRule as JobRule
from holdfast_operator.spec.job import JobSpec
from holdfast_wire.messages import Budget, BudgetKind, FailureRule, MasterSpec


def master_spec(spec: JobSpec, generation: int) -> MasterSpec:
    """Return what the master of a job with `spec` has to know.

    Args:
        spec: The checked spec.
        generation: Grows with each change of the spec; a master ignores older ones.
    """
    size = spec.size
    pod = spec.worker_template["spec"]
    main = pod["containers"][main_container(pod)]["name"]
    return MasterSpec(
        generation=generation,
        replicas=size.desired,
        min_replicas=size.least,
        max_replicas=size.most,
        node_unit=spec.node_unit,
        standbys=spec.standbys,
        success_policy=spec.success_policy,
        join_window_seconds=float(spec.join_window_s),
        scale_down_grace_seconds=float(spec.scale_down_grace_s),
        below_min_timeout_seconds=float(spec.below_min_timeout_s),
        budgets=_budgets(spec),
        failure_rules=tuple(_rule(rule, main) for rule in spec.rules),
        active_deadline_seconds=float(spec.active_deadline_s or 0),
        suspend=spec.suspend,
        memory_every=spec.memory_every,
        storage_every=spec.storage_every,
        keep_last=spec.keep_last,
        keep_every=spec.keep_every,
    )


def _budgets(spec: JobSpec) -> tuple[Budget, ...]:
    named: tuple[tuple[BudgetKind, JobBudget], ...] = (
        (BudgetKind.FAILURES, spec.budgets.failures),
        (BudgetKind.PREEMPTIONS, spec.budgets.preemptions),
        (BudgetKind.RESCALES, spec.budgets.rescales),
        (BudgetKind.NO_PROGRESS, spec.budgets.no_progress),
    )
    return tuple(
        Budget(kind=kind, limit=budget.limit, window_seconds=budget.window_s)
        for kind, budget in named
    )


def _rule(rule: JobRule, main: str) -> FailureRule:
    if rule.container not in {"", main}:
        # The exit codes that a master hears of are those of the training container. The rule stays,
        # without anything to match, so that the others keep their numbers in the reasons.
        return FailureRule(action=rule.action)
    return FailureRule(
        action=rule.action,
        exit_codes=rule.exit_codes,
        exit_codes_not_in=rule.exit_codes_not_in,
        pod_conditions=tuple(f"{kind}={status}" for kind, status in rule.pod_conditions),
        log_pattern=rule.log_pattern,
    )
