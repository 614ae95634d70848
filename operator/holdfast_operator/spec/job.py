"""An ElasticJob's spec as typed values: what every decision of the operator reads.

Made from an object that is checked and has its defaults; here nothing is checked again. Field
names follow the CRD, durations end in `_s` (seconds). How a spec is read is in `spec`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from holdfast_wire.messages.spec import FailureAction, SuccessPolicy


class Scaler(enum.StrEnum):
    """Who changes `replicas`."""

    EXTERNAL = "External"
    MASTER = "Master"


class Mode(enum.StrEnum):
    """What a health check leads to."""

    DISABLED = "Disabled"
    REPORT = "Report"
    ACT = "Act"


class CleanPods(enum.StrEnum):
    """Which pods are deleted when the job has finished."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class RestartPolicy(enum.StrEnum):
    """When the pods of an extra role are replaced."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How many workers, with what is absent in the spec filled in."""

    least: int
    """Fewest that may train: minReplicas, else replicas."""
    desired: int
    """Wanted now: replicas."""
    most: int
    """Most that may train: maxReplicas, else replicas."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """One rule of failurePolicy; exactly one matcher is set."""

    action: FailureAction
    exit_codes: tuple[int, ...] = ()
    exit_codes_not_in: bool = False
    container: str = ""
    """Only exit codes of this container; empty: any."""
    pod_conditions: tuple[tuple[str, str], ...] = ()
    """Type and status of conditions, one of which matches."""
    log_pattern: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """How often something may happen."""

    limit: int
    window_s: int
    """0: the job's whole life."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budgets:
    """The four separate counters."""

    failures: Budget
    preemptions: Budget
    rescales: Budget
    no_progress: Budget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Modes of the checks, as this version has them (see `availability`)."""

    preflight: Mode
    hang: Mode
    straggler: Mode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What is left after the end."""

    pods: CleanPods
    ttl_s: int | None
    """The whole job is deleted this long after its end; None: never."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtraRole:
    """Pods beside the world."""

    name: str
    replicas: int
    restart_policy: RestartPolicy
    template: Mapping[str, Any]


_MOST_STEPS = 2**31 - 1
"""What the wire carries; no job lives to see the difference."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What is wanted of one job."""

    replicas: int
    min_replicas: int | None
    max_replicas: int | None
    node_unit: int
    nproc_per_node: int | str
    """A number, or auto, gpu, cpu."""
    standbys: int
    suspend: bool
    managed_by: str
    active_deadline_s: int | None
    success_policy: SuccessPolicy
    scaler: Scaler
    join_window_s: int
    scale_down_grace_s: int
    below_min_timeout_s: int
    rules: tuple[FailureRule, ...]
    budgets: Budgets
    health: Health
    exclude_failed_nodes: bool
    max_excluded_nodes: int
    cleanup: Cleanup
    memory_every: int
    """Steps between checkpoints in memory; 0: the master computes it."""
    storage_every: int
    """Steps between checkpoints on storage; 0: the master computes it."""
    keep_last: int
    """Committed checkpoints that stay: the newest so many."""
    keep_every: int
    """Each multiple of so many steps stays for good; 0: none."""
    delete_grace_s: int | None
    """How long a deletion may wait for a last checkpoint; None: it does not wait."""
    budget_for_drains: bool
    """Whether a PodDisruptionBudget keeps `size.least` workers while nodes are drained."""
    master_port: int
    master_template: Mapping[str, Any] | None
    """None: the operator's own image and resources."""
    worker_template: Mapping[str, Any]
    extra_roles: tuple[ExtraRole, ...]

    @property
    def size(self) -> Size:
        """Effective sizes: an absent minimum or maximum equals replicas and follows it."""
        return Size(
            least=self.replicas if self.min_replicas is None else self.min_replicas,
            desired=self.replicas,
            most=self.replicas if self.max_replicas is None else self.max_replicas,
        )

    @property
    def worker_pods(self) -> int:
        """Worker pods that should exist: replicas, and the standbys after them."""
        return self.replicas + self.standbys

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> JobSpec:
        """The spec of a checked ElasticJob object that has its defaults."""
        spec = body["spec"]
        elastic, scheduling = spec["elasticPolicy"], spec["scheduling"]
        return cls(
            replicas=spec["replicas"],
            min_replicas=spec.get("minReplicas"),
            max_replicas=spec.get("maxReplicas"),
            node_unit=spec["nodeUnit"],
            nproc_per_node=spec["nprocPerNode"],
            standbys=spec["worker"]["standbys"],
            suspend=spec["suspend"],
            managed_by=spec["managedBy"],
            active_deadline_s=spec.get("activeDeadlineSeconds"),
            success_policy=SuccessPolicy[_upper(spec["successPolicy"])],
            scaler=Scaler(elastic["scaler"]),
            join_window_s=elastic["joinWindowSeconds"],
            scale_down_grace_s=elastic["scaleDownGraceSeconds"],
            below_min_timeout_s=elastic["belowMinTimeoutSeconds"],
            rules=tuple(_rule(rule) for rule in spec["failurePolicy"]["rules"]),
            budgets=_budgets(spec["failurePolicy"]["budgets"]),
            health=_health(spec["health"]),
            exclude_failed_nodes=scheduling["excludeFailedNodes"],
            max_excluded_nodes=scheduling["maxExcludedNodes"],
            cleanup=Cleanup(
                pods=CleanPods(spec["cleanup"]["pods"]),
                ttl_s=spec["cleanup"].get("ttlSecondsAfterFinished"),
            ),
            memory_every=_every(spec["checkpoint"]["memory"]),
            storage_every=_every(spec["checkpoint"]["storage"]),
            keep_last=spec["checkpoint"]["storage"]["keepLast"],
            keep_every=spec["checkpoint"]["storage"]["keepEverySteps"],
            delete_grace_s=_delete_grace(spec["checkpoint"]),
            budget_for_drains=scheduling["podDisruptionBudget"] == "MinReplicas",
            master_port=spec["master"]["port"],
            master_template=spec["master"].get("template"),
            worker_template=spec["worker"]["template"],
            extra_roles=tuple(_extra_role(role) for role in spec["extraRoles"]),
        )


def _delete_grace(checkpoint: Mapping[str, Any]) -> int | None:
    seconds: int = checkpoint["onDeleteTimeoutSeconds"]
    return seconds if checkpoint["onDelete"] else None


def _every(tier: Mapping[str, Any]) -> int:
    interval = tier["interval"]
    return 0 if interval == "Auto" else min(int(interval), _MOST_STEPS)


def _upper(camel: str) -> str:
    """AllWorkers as ALL_WORKERS: the wire's enums have the CRD's words in this form."""
    return "".join(f"_{c}" if c.isupper() and at else c for at, c in enumerate(camel)).upper()


def _rule(rule: Mapping[str, Any]) -> FailureRule:
    codes = rule.get("onExitCodes", {})
    conditions = rule.get("onPodConditions", ())
    return FailureRule(
        action=FailureAction[_upper(rule["action"])],
        exit_codes=tuple(codes.get("values", ())),
        exit_codes_not_in=codes.get("operator") == "NotIn",
        container=codes.get("containerName", ""),
        pod_conditions=tuple((one["type"], one["status"]) for one in conditions),
        log_pattern=rule.get("onLogPattern", ""),
    )


def _budgets(budgets: Mapping[str, Mapping[str, int]]) -> Budgets:
    def one(name: str) -> Budget:
        return Budget(budgets[name]["limit"], budgets[name]["windowSeconds"])

    return Budgets(
        failures=one("failures"),
        preemptions=one("preemptions"),
        rescales=one("rescales"),
        no_progress=one("noProgressRestarts"),
    )


def _health(health: Mapping[str, Mapping[str, Any]]) -> Health:
    return Health(
        preflight=Mode(health["preflight"]["mode"]),
        hang=Mode(health["hang"]["mode"]),
        straggler=Mode(health["straggler"]["mode"]),
    )


def _extra_role(role: Mapping[str, Any]) -> ExtraRole:
    return ExtraRole(
        name=role["name"],
        replicas=role["replicas"],
        restart_policy=RestartPolicy(role["restartPolicy"]),
        template=role["template"],
    )
