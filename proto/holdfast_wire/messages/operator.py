"""Frozen twins of `operator.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages.fence import Fence
from holdfast_wire.messages.job import JobStatus
from holdfast_wire.messages.spec import MasterSpec


class PodPhase(enum.IntEnum):
    """PodPhase as in core/v1."""

    UNSPECIFIED = 0
    PENDING = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    GONE = 5
    """The pod no longer exists."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncRequest: operator to master."""

    message: MasterSpec | PodObservation | ScaleResult | StopWish | PodListDone | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodListDone:
    """PodListDone ends the first list of pods after a stream began."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """PodObservation: what the operator sees of one worker pod (locally: agent process)."""

    node_rank: int = 0
    pod_uid: str = ""
    name: str = ""
    phase: PodPhase = PodPhase.UNSPECIFIED
    exit_code: int = 0
    """Exit code of the agent's container, or -N for signal N; valid when phase is SUCCEEDED,
    FAILED or GONE."""
    reason: str = ""
    """For example OOMKilled, Evicted, Deleted; locally Killed."""
    conditions: tuple[str, ...] = ()
    """Conditions as "Type=Status"."""
    node: str = ""
    """Kubernetes node; locally the pod's own name."""
    terminating: bool = False
    """A deletion is under way."""
    wanted: bool = False
    """The operator itself deleted it (scale down, suspend, cleanup): no failure and no
    preemption."""
    text: str = ""
    """The last thing that a pod which failed said: locally the last line of its log."""
    ends: int = 0
    """Ends of the agent's container after which its node starts it again in the same pod. While
    the pod runs, exit_code, reason and text are those of the newest of them."""
    unreachable: bool = False
    """Its Kubernetes node answers nothing to the operator, which others answer: it is gone or cut
    off."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """ScaleResult answers a ScaleDecision."""

    decision_id: int = 0
    ok: bool = False
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopWish:
    """StopWish: end the job (deleted, activeDeadline, the person's Ctrl-C)."""

    reason: str = ""
    grace_seconds: float = 0.0
    """Time for a checkpoint boundary and SIGTERM, s."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """SyncResponse: master to operator."""

    message: (
        JobStatus
        | ReplaceDecision
        | ReleaseDecision
        | ScaleDecision
        | ExcludeDecision
        | FinishDecision
        | None
    ) = None
    fence: Fence | None = None
    """The master that says it; its round is 0. Of a master that sends none nothing is known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceDecision:
    """ReplaceDecision: the pod of this node rank must be made anew."""

    decision_id: int = 0
    node_rank: int = 0
    pod_uid: str = ""
    """The pod that is to go; a newer pod of the rank satisfies the decision."""
    reason: str = ""
    avoid_node: str = ""
    """Kubernetes node to avoid; empty: any."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDecision:
    """ReleaseDecision: these node ranks are no longer needed by any world and may be deleted."""

    decision_id: int = 0
    node_ranks: tuple[int, ...] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """ScaleDecision: a user (or the master's own scaler) wants this many replicas.

    The operator is the only writer.
    """

    decision_id: int = 0
    replicas: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeDecision:
    """ExcludeDecision: replacements avoid this Kubernetes node."""

    decision_id: int = 0
    node: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishDecision:
    """FinishDecision: the job has ended."""

    decision_id: int = 0
    succeeded: bool = False
    reason: str = ""
    """CamelCase, for conditions."""
    text: str = ""
