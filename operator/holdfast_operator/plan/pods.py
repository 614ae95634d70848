"""What a planner sees of pods: which place each fills, how it is named, whether it lives.

Frozen inputs only. A "pod" is a Kubernetes pod, or locally a process of the runner. What follows
from them is in `history` and `decide`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from holdfast_operator.spec.job import JobSpec
from holdfast_wire.messages import PodPhase

MASTER: Final = "master"
WORKER: Final = "worker"


class Role(enum.Enum):
    """What a pod is for."""

    MASTER = MASTER
    WORKER = WORKER
    EXTRA = "extra"
    """A pod beside the world, of a role in `spec.extraRoles`."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place that one pod at a time fills: a role and a number in it."""

    name: str
    """`master`, `worker`, or the name of an extra role."""
    index: int
    """From 0; for workers the node rank."""

    @property
    def role(self) -> Role:
        """What its pods are for."""
        return _ROLES.get(self.name, Role.EXTRA)

    def pod_name(self, job: str, incarnation: int) -> str:
        """The name of one pod of this place; a name never comes twice in a job's life."""
        return f"{job}-{self.name}-{self.index}-{incarnation}"


_ROLES: Final[Mapping[str, Role]] = {MASTER: Role.MASTER, WORKER: Role.WORKER}
MASTER_SLOT: Final = Slot(MASTER, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """One pod that exists, as last seen."""

    slot: Slot
    incarnation: int
    """The last number of its name: how many pods of the place came before it."""
    name: str
    """Its real one: place and number are labels, which people can edit."""
    uid: str
    """What the master knows it by."""
    phase: PodPhase
    exit_code: int | None = None
    """Of the main container (locally: process), -N for signal N; None while it lives."""
    reason: str = ""
    """For example OOMKilled or Evicted; locally Killed."""
    deleting: bool = False
    """A deletion is under way."""
    gone_by: float | None = None
    """When that deletion should be over, its grace included; Unix time, s; None: nobody knows."""
    lost: bool = False
    """Its node does not answer, so nobody can say whether it lives; its lease has run out."""
    ready: bool = False
    """Its agent is connected (for a master: it serves); in a cluster of any other pod: Ready."""
    proven: bool = True
    """That it is ready shows that pods of its place can start. A pod without a probe is ready as
    soon as its container runs, which shows nothing."""
    serving: bool = False
    """All its containers were ready when its node was last heard of."""
    unheard: bool = False
    """The cluster has not heard of its node for a while."""
    node: str = ""
    """The Kubernetes node; locally the pod's own name."""
    avoids: tuple[str, ...] = ()
    """The nodes that it was made to avoid."""
    created_at: float = 0.0
    """Unix time, s."""
    waiting: str = ""
    """Why it cannot begin: Unschedulable, ImagePullFailed, ContainerNotStarted; empty: nothing is
    known to be in its way."""
    waiting_text: str = ""
    """The same in the words of the scheduler or of the node."""
    ended_at: float | None = None
    """Unix time, s; None while it lives or where nobody knows."""

    @property
    def live(self) -> bool:
        """Whether its processes may run."""
        return self.phase not in _DEAD and not self.lost


OVERDUE_S: Final = 10.0
"""A pod that still runs so long after its deletion should have been over is on a node that does not
answer. A kubelet reports the end of the processes before it cleans up after them."""


def overdue(pods: Iterable[ObservedPod], now: float) -> Iterator[ObservedPod]:
    """The pods, those lost that nobody ends in time."""
    for pod in pods:
        late = pod.gone_by is not None and now >= pod.gone_by + OVERDUE_S
        yield dataclasses.replace(pod, lost=True) if late and pod.live else pod


_DEAD: Final = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.GONE})


def by_slot(pods: Iterable[ObservedPod]) -> dict[Slot, tuple[ObservedPod, ...]]:
    """The pods that exist, of each place the oldest first; places in order."""
    ordered = sorted(pods, key=lambda pod: (pod.slot, pod.incarnation, pod.uid))
    result: dict[Slot, tuple[ObservedPod, ...]] = {}
    for pod in ordered:
        if pod.phase is not PodPhase.GONE:
            result[pod.slot] = (*result.get(pod.slot, ()), pod)
    return result


def wanted_slots(spec: JobSpec) -> Iterator[Slot]:
    """The places that a running job fills: its master, replicas and standbys, extra roles."""
    yield MASTER_SLOT
    yield from (Slot(WORKER, index) for index in range(spec.worker_pods))
    for role in spec.extra_roles:
        yield from (Slot(role.name, index) for index in range(role.replicas))
