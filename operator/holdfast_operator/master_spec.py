"""The part of a job's spec that its master needs, as a message of the wire. Pure."""

from __future__ import annotations

from holdfast_operator.pods.template import main_container
from holdfast_operator.spec.job import FailureRuleSpec, JobSpec, SpecVersion
from holdfast_wire.messages import FailureRule, MasterSpec


def master_spec(
    spec: JobSpec,
    version: SpecVersion,
    *,
    asked_replicas: int = 0,
    progress_seconds: float = 0.0,
) -> MasterSpec:
    """Return the part of a spec that the job's master needs; it ignores older versions.

    Args:
        spec: The spec to carry out.
        version: Its version.
        asked_replicas: Workers that the owner asks for; 0: as many as the spec has.
        progress_seconds: Shortest time between two statuses that tell progress only, s; 0: its own.
    """
    size = spec.size
    return MasterSpec(
        generation=version.generation,
        revision=version.revision,
        replicas=size.desired,
        min_replicas=size.least,
        max_replicas=size.most,
        node_unit=spec.node_unit,
        nodes_per_replica=spec.nodes_per_replica,
        standbys=spec.standbys,
        success_policy=spec.success_policy,
        join_window_seconds=float(spec.join_window_s),
        scale_down_grace_seconds=float(spec.scale_down_grace_s),
        below_min_timeout_seconds=float(spec.below_min_timeout_s),
        budgets=spec.budgets,
        failure_rules=_rules(spec),
        active_deadline_seconds=float(spec.active_deadline_s or 0),
        suspend=spec.suspend,
        checkpoint=spec.checkpoint,
        health=spec.health,
        progress_seconds=progress_seconds,
        asked_replicas=asked_replicas or size.desired,
    )


def _rules(spec: JobSpec) -> tuple[FailureRule, ...]:
    pod = spec.worker_template["spec"]
    main = pod["containers"][main_container(pod)]["name"]
    return tuple(_rule(rule, main) for rule in spec.rules)


def _rule(spec: FailureRuleSpec, main: str) -> FailureRule:
    if spec.container in {"", main}:
        return spec.rule
    # The master only gets exit codes of the training container. The rule stays, without a matcher,
    # so that the other rules keep their numbers in the reasons.
    return FailureRule(action=spec.rule.action)
