"""Spec of a job as a master is told it: in the words of the wire, with nothing left out."""

from __future__ import annotations

import dataclasses

from holdfast_operator.master_spec import master_spec
from holdfast_operator.spec.job import SpecVersion
from holdfast_wire.messages import (
    Budget,
    BudgetKind,
    CheckpointPolicy,
    FailureAction,
    FailureRule,
    HangPolicy,
    HealthMode,
    HealthPolicy,
    MasterSpec,
    PreflightPolicy,
    StragglerPolicy,
    SuccessPolicy,
    Tier,
    TierInterval,
)
from holdfast_wire.tiers import TIERS, by_tier
from jobs.job_files import job, read


def test_every_field_that_a_master_acts_on_is_filled_in() -> None:
    """Effective sizes, durations in seconds, the four budgets and the rules in order."""
    spec = read(
        job(
            minReplicas=2,
            nodeUnit=2,
            worker__standbys=1,
            suspend=True,
            successPolicy="AnyWorker",
            activeDeadlineSeconds=60,
            elasticPolicy={"joinWindowSeconds": 1, "scaleDownGraceSeconds": 2},
            failurePolicy__budgets={"failures": {"limit": 3, "windowSeconds": 0}},
            failurePolicy__rules=[
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [7]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {"action": "ReplacePod", "onLogPattern": "ECC"},
            ],
            health={"hang": {"stepTimeFactor": 20}, "straggler": {"windowSteps": 25}},
            checkpoint={
                "memory": {"interval": 5},
                "storage": {"interval": 2**40, "keepLast": 7, "keepEverySteps": 500},
            },
        )
    ).spec
    assert master_spec(spec, SpecVersion(5)) == MasterSpec(
        generation=5,
        replicas=4,
        asked_replicas=4,
        min_replicas=2,
        max_replicas=4,
        node_unit=2,
        standbys=1,
        success_policy=SuccessPolicy.ANY_WORKER,
        join_window_seconds=1.0,
        scale_down_grace_seconds=2.0,
        below_min_timeout_seconds=1800.0,
        budgets=(
            Budget(kind=BudgetKind.FAILURES, limit=3, window_seconds=0),
            Budget(kind=BudgetKind.PREEMPTIONS, limit=1000, window_seconds=86400),
            Budget(kind=BudgetKind.RESCALES, limit=1000, window_seconds=86400),
            Budget(kind=BudgetKind.NO_PROGRESS, limit=5, window_seconds=0),
        ),
        failure_rules=(
            FailureRule(action=FailureAction.FAIL_JOB, exit_codes=(7,), exit_codes_not_in=True),
            FailureRule(action=FailureAction.IGNORE, pod_conditions=("DisruptionTarget=True",)),
            FailureRule(action=FailureAction.REPLACE_POD, log_pattern="ECC"),
        ),
        active_deadline_seconds=60.0,
        suspend=True,
        checkpoint=CheckpointPolicy(
            keep_last=7,
            keep_every=500,
            intervals=(
                TierInterval(tier=Tier.MEMORY, every=5),
                TierInterval(tier=Tier.STORAGE, every=2**31 - 1),
            ),
        ),
        health=HealthPolicy(
            preflight=PreflightPolicy(
                mode=HealthMode.DISABLED, network_check=True, timeout_seconds=300.0
            ),
            hang=HangPolicy(
                mode=HealthMode.REPORT,
                step_time_factor=20.0,
                min_seconds=45.0,
                first_step_seconds=1800.0,
            ),
            straggler=StragglerPolicy(
                mode=HealthMode.REPORT,
                slowdown_percent=20.0,
                window_steps=25,
                votes=3,
                votes_out_of=5,
            ),
        ),
    )


def test_nodes_of_a_replica_are_told_and_make_the_unit() -> None:
    """A world of whole replicas; workers beyond are standbys."""
    spec = read(job(replicas=4, replicaPolicy={"nodesPerReplica": 2})).spec
    assert master_spec(spec, SpecVersion(1)).nodes_per_replica == 2
    assert spec.unit == 2


def test_a_rule_for_another_container_matches_no_training_process() -> None:
    """Made before the CRD refused it, it keeps its place: reasons name the numbers of the file."""
    codes = {"operator": "In", "values": [7]}
    given = read(
        job(
            failurePolicy__rules=[
                {"action": "FailJob", "onExitCodes": codes},
                {"action": "ReplacePod", "onExitCodes": {"containerName": "worker", **codes}},
            ]
        )
    ).spec
    older = dataclasses.replace(given.rules[0], container="proxy")
    spec = dataclasses.replace(given, rules=(older, given.rules[1]))
    assert master_spec(spec, SpecVersion(1)).failure_rules == (
        FailureRule(action=FailureAction.FAIL_JOB),
        FailureRule(action=FailureAction.REPLACE_POD, exit_codes=(7,)),
    )


def test_a_field_that_the_wire_gains_is_noticed_here() -> None:
    """A master never guesses a default: each field is set from the spec."""
    spec = master_spec(read(job()).spec, SpecVersion(1), progress_seconds=2.0)
    told = dataclasses.asdict(spec)
    assert set(told) == {field.name for field in dataclasses.fields(MasterSpec)}
    assert told["active_deadline_seconds"] == 0.0
    unset = {name for name, value in told.items() if value in (0, (), False)}
    assert unset == {
        "standbys",
        "failure_rules",
        "active_deadline_seconds",
        "suspend",
        "nodes_per_replica",
        "revision",
    }
    auto = read(job()).spec.checkpoint.intervals
    assert by_tier(auto) == dict.fromkeys(TIERS, 0), "0 is Auto: the master computes it"
    policy = job(checkpoint__storage={"keepLast": 7, "keepEverySteps": 500})
    given = dataclasses.asdict(master_spec(read(policy).spec, SpecVersion(1)))["checkpoint"]
    assert [one["tier"] for one in given["intervals"]] == list(TIERS), "a tier that no file sets"
    assert all(given.values()), "a value of the job's file that no master and no rank hears of"
