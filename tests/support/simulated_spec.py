"""The spec that simulated jobs begin with."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import Budget, BudgetKind, MasterSpec, SuccessPolicy


def job_spec(**changes: object) -> MasterSpec:
    """A spec with generous budgets."""
    limits = {
        BudgetKind.FAILURES: 1000,
        BudgetKind.PREEMPTIONS: 1000,
        BudgetKind.RESCALES: 1000,
        BudgetKind.NO_PROGRESS: 1000,
    }
    spec = MasterSpec(
        generation=1,
        replicas=4,
        min_replicas=2,
        max_replicas=8,
        node_unit=1,
        success_policy=SuccessPolicy.ALL_WORKERS,
        join_window_seconds=5.0,
        scale_down_grace_seconds=30.0,
        below_min_timeout_seconds=600.0,
        budgets=tuple(Budget(kind=kind, limit=limit) for kind, limit in limits.items()),
    )
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
