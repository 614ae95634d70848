"""An ElasticJob's spec as typed values, for every decision of the operator.

Made from an object that is checked and has its defaults; nothing is checked again here. Field names
follow the CRD, durations end in `_s` (seconds).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast_operator.spec.quantities import to_bytes
from holdfast_wire import messages as wire
from holdfast_wire.tiers import to_intervals


class CleanPods(enum.StrEnum):
    """Pods that are deleted when the job has finished."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class RestartPolicy(enum.StrEnum):
    """Condition for replacing the pods of an extra role."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"


class SpecVersion(NamedTuple):
    """Version of a spec; a greater one is newer."""

    generation: int = 0
    """The owner's: of the object."""
    revision: int = 0
    """Of what a queue admits, at this generation; 0: the job never had a queue."""


NO_VERSION: Final = SpecVersion()
"""Of no spec."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Numbers of workers, with defaults for what is absent in the spec."""

    least: int
    """Fewest that may train: minReplicas, else replicas."""
    desired: int
    """Wanted now: replicas."""
    most: int
    """Most that may train: maxReplicas, else replicas."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureRuleSpec:
    """One rule of failurePolicy."""

    rule: wire.FailureRule
    """The rule in the master's form; exactly one matcher is set."""
    container: str = ""
    """Container whose exit codes count; empty: any."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """More host memory for the next pod of a worker that ran out of it."""

    raise_percent: int
    """Of the limit that was too small."""
    most_bytes: int
    """No pod gets more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """Clean-up after the end."""

    pods: CleanPods
    ttl_s: int | None
    """Time after its end at which the whole job is deleted, s; None: never."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtraRole:
    """Pods beside the world."""

    name: str
    replicas: int
    restart_policy: RestartPolicy
    template: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    """Nodes on which a job's workers stay together."""

    key: str
    """Label: the nodes with one value of it."""
    required: bool
    """True: nowhere else; False: where that is possible."""


_MOST_STEPS: Final = 2**31 - 1
"""Limit of the wire; no job lives long enough to reach it."""
BUDGETS: Final[Mapping[wire.BudgetKind, str]] = {
    wire.BudgetKind.FAILURES: "failures",
    wire.BudgetKind.PREEMPTIONS: "preemptions",
    wire.BudgetKind.RESCALES: "rescales",
    wire.BudgetKind.NO_PROGRESS: "noProgressRestarts",
}
"""Each budget's name in the spec and in the status."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Wanted state of one job."""

    replicas: int
    min_replicas: int | None
    max_replicas: int | None
    node_unit: int
    nodes_per_replica: int
    """Workers of one replica, which is a torch world of its own; 0: all workers are one world."""
    nproc_per_node: int | str
    """A number, or auto, gpu, cpu."""
    standbys: int
    suspend: bool
    active_deadline_s: int | None
    success_policy: wire.SuccessPolicy
    join_window_s: int
    scale_down_grace_s: int
    below_min_timeout_s: int
    rules: tuple[FailureRuleSpec, ...]
    budgets: tuple[wire.Budget, ...]
    memory: MemoryPolicy | None
    """None: each pod has what its template says."""
    health: wire.HealthPolicy
    exclude_failed_nodes: bool
    max_excluded_nodes: int
    avoid_struck_nodes: bool
    """True: new pods avoid nodes on which several jobs had trouble."""
    gang: str
    """Scheduler that has to place `size.least` workers at once: its name, Auto or None."""
    gang_timeout_s: int
    topology: Topology | None
    """None: anywhere."""
    cleanup: Cleanup
    checkpoint: wire.CheckpointPolicy
    """Settings of checkpoints; they go unchanged to the master and to the checkpoint servers."""
    delete_grace_s: int | None
    """Time for which a deletion may wait for a last checkpoint, s; None: it does not wait."""
    budget_for_drains: bool
    """True: a PodDisruptionBudget keeps `size.least` workers while nodes are drained."""
    master_port: int
    master_template: Mapping[str, Any] | None
    """Template of the master; None: the operator's own image and resources."""
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
    def unit(self) -> int:
        """The active world is a multiple of so many workers."""
        return max(self.node_unit, self.nodes_per_replica)

    @property
    def worker_pods(self) -> int:
        """Number of worker pods that should exist: replicas and standbys."""
        return self.replicas + self.standbys

    def admitted(self, workers: int, roles: Mapping[str, int], memory: int) -> JobSpec:
        """Return the spec as a queue admits it.

        Args:
            workers: Worker pods; 0: it is suspended.
            roles: Pods of each extra role.
            memory: Most memory that a worker may get, bytes; 0: what its template says.
        """
        if not workers:
            return dataclasses.replace(self, suspend=True)
        size, replicas = self.size, min(self.replicas, workers)
        policy = self.memory
        if policy is not None and policy.most_bytes > memory:
            policy = dataclasses.replace(policy, most_bytes=memory)
        return dataclasses.replace(
            self,
            replicas=replicas,
            min_replicas=size.least,
            max_replicas=size.most,
            standbys=min(self.standbys, workers - replicas),
            memory=policy,
            extra_roles=tuple(
                dataclasses.replace(role, replicas=min(role.replicas, roles.get(role.name, 0)))
                for role in self.extra_roles
            ),
        )

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> JobSpec:
        """Return the spec of a checked ElasticJob object that has its defaults."""
        spec = body["spec"]
        elastic, scheduling = spec["elasticPolicy"], spec["scheduling"]
        return cls(
            replicas=spec["replicas"],
            min_replicas=spec.get("minReplicas"),
            max_replicas=spec.get("maxReplicas"),
            node_unit=spec["nodeUnit"],
            nodes_per_replica=_nodes_per_replica(spec),
            nproc_per_node=spec["nprocPerNode"],
            standbys=spec["worker"]["standbys"],
            suspend=spec["suspend"],
            active_deadline_s=spec.get("activeDeadlineSeconds"),
            success_policy=wire.SuccessPolicy[_upper(spec["successPolicy"])],
            join_window_s=elastic["joinWindowSeconds"],
            scale_down_grace_s=elastic["scaleDownGraceSeconds"],
            below_min_timeout_s=elastic["belowMinTimeoutSeconds"],
            rules=tuple(_rule(rule) for rule in spec["failurePolicy"]["rules"]),
            budgets=tuple(_budgets(spec["failurePolicy"]["budgets"])),
            memory=_memory(spec["failurePolicy"].get("memory")),
            health=_health(spec["health"]),
            exclude_failed_nodes=scheduling["excludeFailedNodes"],
            max_excluded_nodes=scheduling["maxExcludedNodes"],
            avoid_struck_nodes=scheduling.get("avoidStruckNodes", True),
            gang=scheduling["gang"]["backend"],
            gang_timeout_s=scheduling["gang"]["timeoutSeconds"],
            topology=_topology(scheduling.get("topology")),
            cleanup=Cleanup(
                pods=CleanPods(spec["cleanup"]["pods"]),
                ttl_s=spec["cleanup"].get("ttlSecondsAfterFinished"),
            ),
            checkpoint=_checkpoint(spec["checkpoint"]),
            delete_grace_s=_delete_grace(spec["checkpoint"]),
            budget_for_drains=scheduling["podDisruptionBudget"] == "MinReplicas",
            master_port=spec["master"]["port"],
            master_template=spec["master"].get("template"),
            worker_template=spec["worker"]["template"],
            extra_roles=tuple(_extra_role(role) for role in spec["extraRoles"]),
        )


def _nodes_per_replica(spec: Mapping[str, Any]) -> int:
    """Return the new field, else the one that it replaces; the CRD refuses unequal ones."""
    policy, older = spec.get("replicaPolicy"), spec.get("localSGD")
    if policy is not None:
        return int(policy["nodesPerReplica"])
    return 0 if older is None else int(older["replicaNodes"])


def _topology(topology: Mapping[str, Any] | None) -> Topology | None:
    if topology is None:
        return None
    return Topology(topology["key"], topology["mode"] == "Required")


def _checkpoint(checkpoint: Mapping[str, Any]) -> wire.CheckpointPolicy:
    storage = checkpoint["storage"]
    every = {wire.Tier.MEMORY: _every(checkpoint["memory"]), wire.Tier.STORAGE: _every(storage)}
    return wire.CheckpointPolicy(
        keep_last=storage["keepLast"],
        keep_every=storage["keepEverySteps"],
        intervals=to_intervals(every),
    )


def _delete_grace(checkpoint: Mapping[str, Any]) -> int | None:
    seconds: int = checkpoint["onDeleteTimeoutSeconds"]
    return seconds if checkpoint["onDelete"] else None


def _every(tier: Mapping[str, Any]) -> int:
    interval = tier["interval"]
    return 0 if interval == "Auto" else min(int(interval), _MOST_STEPS)


def _upper(camel: str) -> str:
    """Return AllWorkers as ALL_WORKERS: the wire's enums have the CRD's words in this form."""
    return "".join(f"_{c}" if c.isupper() and at else c for at, c in enumerate(camel)).upper()


def _rule(rule: Mapping[str, Any]) -> FailureRuleSpec:
    codes = rule.get("onExitCodes", {})
    conditions = rule.get("onPodConditions", ())
    made = wire.FailureRule(
        action=wire.FailureAction[_upper(rule["action"])],
        exit_codes=tuple(codes.get("values", ())),
        exit_codes_not_in=codes.get("operator") == "NotIn",
        pod_conditions=tuple(f"{one['type']}={one['status']}" for one in conditions),
        log_pattern=rule.get("onLogPattern", ""),
    )
    return FailureRuleSpec(rule=made, container=codes.get("containerName", ""))


def _budgets(budgets: Mapping[str, Mapping[str, int]]) -> Iterator[wire.Budget]:
    for kind, name in BUDGETS.items():
        limit, window_s = budgets[name]["limit"], budgets[name]["windowSeconds"]
        yield wire.Budget(kind=kind, limit=limit, window_seconds=window_s)


def _memory(memory: Mapping[str, Any] | None) -> MemoryPolicy | None:
    if memory is None:
        return None
    most = to_bytes(memory["maxMemory"])
    return MemoryPolicy(raise_percent=memory["raisePercent"], most_bytes=most or 0)


def _health(health: Mapping[str, Mapping[str, Any]]) -> wire.HealthPolicy:
    preflight, hang, straggler = health["preflight"], health["hang"], health["straggler"]
    return wire.HealthPolicy(
        preflight=wire.PreflightPolicy(
            mode=_health_mode(preflight),
            network_check=preflight["networkCheck"],
            timeout_seconds=float(preflight["timeoutSeconds"]),
        ),
        hang=wire.HangPolicy(
            mode=_health_mode(hang),
            step_time_factor=float(hang["stepTimeFactor"]),
            min_seconds=float(hang["minSeconds"]),
            first_step_seconds=float(hang["firstStepSeconds"]),
        ),
        straggler=wire.StragglerPolicy(
            mode=_health_mode(straggler),
            slowdown_percent=float(straggler["slowdownPercent"]),
            window_steps=straggler["windowSteps"],
            votes=straggler["votes"],
            votes_out_of=straggler["votesOutOf"],
        ),
    )


def _health_mode(check: Mapping[str, Any]) -> wire.HealthMode:
    return wire.HealthMode[check["mode"].upper()]


def _extra_role(role: Mapping[str, Any]) -> ExtraRole:
    return ExtraRole(
        name=role["name"],
        replicas=role["replicas"],
        restart_policy=RestartPolicy(role["restartPolicy"]),
        template=role["template"],
    )
