"""Frozen twins of `spec.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses
import enum


class SuccessPolicy(enum.IntEnum):
    """SuccessPolicy says which workers must end with exit code 0."""

    UNSPECIFIED = 0
    ALL_WORKERS = 1
    ANY_WORKER = 2
    RANK0 = 3


class FailureAction(enum.IntEnum):
    """FailureAction is what a failure rule leads to."""

    UNSPECIFIED = 0
    IGNORE = 1
    """Restart, charge no budget."""
    RESTART_IN_PLACE = 2
    """New processes in the same agents."""
    REPLACE_POD = 3
    """A new pod (locally: a new agent process) for the culprit's node rank."""
    REPLACE_ON_OTHER_NODE = 4
    """As REPLACE_POD, and the node of the culprit is excluded."""
    FAIL_JOB = 5


class BudgetKind(enum.IntEnum):
    """BudgetKind names the four budgets."""

    UNSPECIFIED = 0
    FAILURES = 1
    PREEMPTIONS = 2
    RESCALES = 3
    NO_PROGRESS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Budget bounds how often something may happen."""

    kind: BudgetKind = BudgetKind.UNSPECIFIED
    limit: int = 0
    """Allowed charges inside the window; one more fails the job."""
    window_seconds: int = 0
    """Sliding window in seconds of the job's own time; 0: the job's whole life."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """FailureRule: the first rule that matches decides. Exactly one matcher is set."""

    action: FailureAction = FailureAction.UNSPECIFIED
    exit_codes: tuple[int, ...] = ()
    """Matcher: exit codes of a training process (128 + signal number for a signal)."""
    exit_codes_not_in: bool = False
    """True: matches codes that are not listed (never 0)."""
    pod_conditions: tuple[str, ...] = ()
    """Matcher: types of pod conditions with the wanted status, as "Type=Status"."""
    log_pattern: str = ""
    """Matcher: RE2 pattern looked for in the end of the failed process's standard error. The
    agents look, with the patterns of Welcome.log_patterns, and report the indices that
    matched."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MasterSpec:
    """MasterSpec is the part of the spec that a master acts on, defaults filled in."""

    generation: int = 0
    """Grows with each change; older generations are ignored."""
    replicas: int = 0
    """Wanted nodes."""
    min_replicas: int = 0
    max_replicas: int = 0
    node_unit: int = 0
    """The world is a multiple of this."""
    standbys: int = 0
    """Extra nodes that are kept warm."""
    success_policy: SuccessPolicy = SuccessPolicy.UNSPECIFIED
    join_window_seconds: float = 0.0
    """How long a world that could still grow waits for more nodes, s."""
    scale_down_grace_seconds: float = 0.0
    """Time for the checkpoint and the new world before surplus nodes are stopped, s."""
    below_min_timeout_seconds: float = 0.0
    """How long fewer than min_replicas are waited for before the job fails, s."""
    budgets: tuple[Budget, ...] = ()
    failure_rules: tuple[FailureRule, ...] = ()
    active_deadline_seconds: float = 0.0
    """Fails the job after this long of its own time, s; 0: none."""
    suspend: bool = False
    """True: stop at a checkpoint and wait."""
    memory_every: int = 0
    """Steps between checkpoints in memory, and on storage; 0: the master computes it."""
    storage_every: int = 0
    keep_last: int = 0
    """Committed checkpoints that stay on storage: the newest so many, and each multiple of so many
    steps for good; 0: nothing is said, none is."""
    keep_every: int = 0
