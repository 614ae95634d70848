"""What a plan asks its shell to do. Values only; every one carries its reason.

The shell may do an action twice (a name that exists already is a success), and may do only some:
the next plan asks for the rest.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast_operator.plan.history import History
from holdfast_operator.plan.pods import Role, Slot


class DeleteReason(enum.StrEnum):
    """Why a pod is deleted. In each case this side wants it: no failure and no preemption."""

    REPLACED = "Replaced"
    """The master wants another one in its place."""
    LOST = "NodeLost"
    """Its node does not answer; its successor need not wait for it."""
    DUPLICATE = "Duplicate"
    """A newer pod of the same place lives."""
    SUPERSEDED = "Superseded"
    """It has ended, and a newer one of the place has been there."""
    SURPLUS = "ScaledDown"
    """More than is wanted; the master released it, or its grace is spent."""
    SUSPENDED = "Suspended"
    """The job is suspended."""
    FINISHED = "JobFinished"
    """The job has ended; `spec.cleanup.pods` says so."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Make a pod. A name that exists is a success."""

    slot: Slot
    incarnation: int
    name: str
    avoid_nodes: tuple[str, ...] = ()
    """Kubernetes nodes that it must not run on."""
    shun_nodes: tuple[str, ...] = ()
    """Kubernetes nodes that it had better not run on: the cluster may not know yet that they do not
    answer, and where there is no other one they are waited for."""
    reason: str
    """For people."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete a pod. One that is gone is a success."""

    slot: Slot
    name: str
    uid: str
    """Only this very pod, never a newer one of the name."""
    grace_s: int
    """Between SIGTERM and SIGKILL. 0 makes Kubernetes forget a pod that may run: only for a master
    that was followed, see `fill`."""
    reason: DeleteReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleJob:
    """Change `spec.replicas`, and answer the master with a ScaleResult."""

    decision_id: int
    replicas: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """The job is over: write the status and stop planning but for the clean-up."""

    succeeded: bool
    reason: str
    """CamelCase."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete the whole job: `spec.cleanup.ttlSecondsAfterFinished` is spent."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Have a deletion of the job wait for its last checkpoint: set the finalizer."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """A deletion of the job waits for nothing any more: take the finalizer away."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AskToStop:
    """Ask the master to have the state saved and the workers leave. Once is enough."""

    grace_s: float
    reason: str


Action = CreatePod | DeletePod | ScaleJob | FinishJob | DeleteJob | Hold | LetGo | AskToStop


MOST_AT_ONCE: Final = 64
"""Pods that are made side by side at the most: enough to hide the API server's latency."""


def in_steps(actions: Iterable[Action]) -> Iterator[Action | tuple[CreatePod, ...]]:
    """The actions in their order, pods that may be made side by side as one tuple.

    A slow start, as Kubernetes' own job controller has it: a master alone, then 1, 2, 4, …, so
    that a quota which is used up, or a template that nobody takes, costs one request and not one
    for each worker.
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
    """What to do now, and what to remember for the next plan."""

    actions: tuple[Action, ...]
    """Deletions first, then the master, workers by rank, extra roles, the end."""
    status: Mapping[str, Any]
    """The whole status subresource; write it when it differs from the last."""
    history: History
    """Give it to the next plan of this job."""
    requeue_after: float | None
    """Seconds until a plan has something new to say by the clock alone; None: never."""
