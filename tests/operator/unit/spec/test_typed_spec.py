"""The typed spec says what the object says, with absent sizes filled in."""

from __future__ import annotations

import pytest

from holdfast_operator.spec.job import CleanPods, ExtraRole, FailureRuleSpec, RestartPolicy, Size
from holdfast_wire.messages import Budget, BudgetKind, FailureAction, FailureRule, SuccessPolicy
from jobs.job_files import TEMPLATE, job, read


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({}, Size(4, 4, 4)),
        ({"minReplicas": 2}, Size(2, 4, 4)),
        ({"maxReplicas": 8}, Size(4, 4, 8)),
        ({"minReplicas": 1, "maxReplicas": 9}, Size(1, 4, 9)),
    ],
)
def test_absent_sizes_equal_replicas(fields: dict[str, int], size: Size) -> None:
    """An absent minimum or maximum is replicas, and follows it."""
    assert read(job(**fields)).spec.size == size


def test_the_shortest_job_has_the_defaults_of_the_crd() -> None:
    """A field that the job leaves out has the CRD's default."""
    spec = read(job()).spec
    assert (spec.replicas, spec.standbys, spec.worker_pods, spec.node_unit) == (4, 0, 4, 1)
    assert (spec.nproc_per_node, spec.suspend) == ("auto", False)
    assert spec.active_deadline_s is None
    assert spec.success_policy is SuccessPolicy.ALL_WORKERS
    assert (spec.join_window_s, spec.scale_down_grace_s, spec.below_min_timeout_s) == (
        30,
        120,
        1800,
    )
    assert spec.rules == ()
    assert spec.budgets == (
        Budget(kind=BudgetKind.FAILURES, limit=32, window_seconds=86400),
        Budget(kind=BudgetKind.PREEMPTIONS, limit=1000, window_seconds=86400),
        Budget(kind=BudgetKind.RESCALES, limit=1000, window_seconds=86400),
        Budget(kind=BudgetKind.NO_PROGRESS, limit=5, window_seconds=0),
    )
    assert (spec.exclude_failed_nodes, spec.max_excluded_nodes) == (True, 8)
    assert (spec.cleanup.pods, spec.cleanup.ttl_s) == (CleanPods.RUNNING, None)
    assert (spec.master_port, spec.master_template, spec.extra_roles) == (50051, None, ())


def test_every_part_of_a_full_job_is_read() -> None:
    """Rules, budgets, policies and roles come through with their values."""
    spec = read(
        job(
            worker__standbys=2,
            nprocPerNode=8,
            successPolicy="Rank0",
            activeDeadlineSeconds=60,
            failurePolicy={
                "rules": [
                    {
                        "action": "RestartInPlace",
                        "onExitCodes": {
                            "containerName": "worker",
                            "operator": "NotIn",
                            "values": [3, 4],
                        },
                    },
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "A"}, {"type": "B", "status": "Unknown"}],
                    },
                    {"action": "ReplaceOnOtherNode", "onLogPattern": "ECC"},
                ],
                "budgets": {"noProgressRestarts": {"limit": 1, "windowSeconds": 9}},
            },
            cleanup={"pods": "All", "ttlSecondsAfterFinished": 7},
            extraRoles=[
                {"name": "e", "replicas": 2, "restartPolicy": "Never", "template": TEMPLATE}
            ],
        )
    ).spec
    assert (spec.worker_pods, spec.nproc_per_node, spec.active_deadline_s) == (6, 8, 60)
    assert spec.success_policy is SuccessPolicy.RANK0
    assert spec.rules == (
        FailureRuleSpec(
            rule=FailureRule(
                action=FailureAction.RESTART_IN_PLACE, exit_codes=(3, 4), exit_codes_not_in=True
            ),
            container="worker",
        ),
        FailureRuleSpec(
            rule=FailureRule(action=FailureAction.IGNORE, pod_conditions=("A=True", "B=Unknown"))
        ),
        FailureRuleSpec(
            rule=FailureRule(action=FailureAction.REPLACE_ON_OTHER_NODE, log_pattern="ECC")
        ),
    )
    no_progress = Budget(kind=BudgetKind.NO_PROGRESS, limit=1, window_seconds=9)
    assert spec.budgets[-1] == no_progress
    assert (spec.cleanup.pods, spec.cleanup.ttl_s) == (CleanPods.ALL, 7)
    assert spec.extra_roles == (
        ExtraRole(name="e", replicas=2, restart_policy=RestartPolicy.NEVER, template=TEMPLATE),
    )
