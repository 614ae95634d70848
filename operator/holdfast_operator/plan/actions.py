"""Actions that a plan asks its shell for. Values only; each carries its reason.

The shell may do one twice, and may do only some: the next plan asks for the rest.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast_operator.plan.history import History
from holdfast_operator.plan.pods import PodSlot, Role


class DeleteReason(enum.StrEnum):
    """Reason for deleting a pod. The operator wants it: it is neither failure nor preemption."""

    REPLACED = "Replaced"
    """The master wants another pod in its place."""
    LOST = "NodeLost"
    """Its node does not answer; its successor need not wait for it."""
    DUPLICATE = "Duplicate"
    """A newer pod of the same place lives."""
    SUPERSEDED = "Superseded"
    """It has ended, and a newer one of the place has been there."""
    SURPLUS = "ScaledDown"
    """More pods than wanted; the master released it, or its grace is over."""
    SUSPENDED = "Suspended"
    """The job is suspended."""
    DELETED = "JobDeleted"
    """The job is deleted, and its quota is given back once its pods are gone."""
    FINISHED = "JobFinished"
    """The job has ended; see `spec.cleanup.pods`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Make a pod. An existing name counts as success."""

    slot: PodSlot
    incarnation: int
    name: str
    avoid_nodes: tuple[str, ...] = ()
    """Kubernetes nodes that it must not run on."""
    shun_nodes: tuple[str, ...] = ()
    """Kubernetes nodes that it should rather not run on: a pod of its place does not end there."""
    memory_limit: int = 0
    """Memory limit of its main container, bytes; 0: its template's."""
    reason: str
    """For people."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete a pod. A missing one counts as success."""

    slot: PodSlot
    name: str
    uid: str
    """Uid of this very pod: a newer one of the name is not deleted."""
    grace_s: int
    """Between SIGTERM and SIGKILL. 0 makes Kubernetes forget a pod that may run: only for a master
    with a successor, see `fill`."""
    reason: DeleteReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleJob:
    """Change `spec.replicas`, and answer the master with a ScaleResult."""

    decision_id: int
    replicas: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """End the job: write the status and stop planning, except for the clean-up."""

    succeeded: bool
    reason: str
    """CamelCase."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete the whole job: `spec.cleanup.ttlSecondsAfterFinished` is over."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Make a deletion of the job wait for its last checkpoint: set the finalizer."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Let a deletion of the job go on: remove the finalizer."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AskToStop:
    """Ask the master to save the state and release the workers. Once is enough."""

    grace_s: float
    reason: str


Action = CreatePod | DeletePod | ScaleJob | FinishJob | DeleteJob | Hold | LetGo | AskToStop


MOST_AT_ONCE: Final = 64
"""Most pods made side by side: enough to hide the API server's latency."""


def in_steps(actions: Iterable[Action]) -> Iterator[Action | tuple[CreatePod, ...]]:
    """Yield the actions in order, pods that may be made side by side as one tuple.

    It is a slow start, as in Kubernetes' own job controller: a master alone, then 1, 2, 4, …. A
    used-up quota, or a template that the API server refuses, then costs one request and not one per
    worker.
    """
    batch: list[CreatePod] = []
    most = 1
    for action in actions:
        alone = not isinstance(action, CreatePod) or action.slot.role is Role.MASTER
        if batch and (alone or len(batch) == most):
            yield tuple(batch)
            batch, most = [], min(MOST_AT_ONCE, 2 * most)
        if not isinstance(action, CreatePod):
            yield action
        elif alone:
            yield (action,)
        else:
            batch.append(action)
    if batch:
        yield tuple(batch)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Actions to take now, and memory for the next plan."""

    actions: tuple[Action, ...]
    """Deletions first, then the master, workers by rank, extra roles, the end."""
    status: Mapping[str, Any]
    """The whole status subresource; write it when it differs from the last."""
    history: History
    """Give it to the next plan of this job."""
    requeue_after: float | None
    """Seconds until a plan differs by the clock alone; None: never."""
