"""The planner's view of pods: slot, name, and life of each. Frozen inputs only.

A "pod" is a Kubernetes pod, or locally a process of the runner.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast_operator.spec.job import JobSpec
from holdfast_wire.messages import PodPhase

UNSCHEDULABLE: Final = "Unschedulable"
"""Why a pod cannot begin: no node takes it."""
MASTER: Final = "master"
WORKER: Final = "worker"


class Role(enum.Enum):
    """Purpose of a pod."""

    MASTER = MASTER
    WORKER = WORKER
    EXTRA = "extra"
    """A pod beside the world, of a role in `spec.extraRoles`."""


class PodSlot(NamedTuple):
    """Place that one pod at a time fills: a role and a number in it.

    A tuple: each plan compares and hashes it a dozen times for each pod.
    """

    name: str
    """`master`, `worker`, or the name of an extra role."""
    index: int  # type: ignore[assignment]  # in place of a tuple's search, which nobody needs
    """From 0; for workers the node rank."""

    @property
    def role(self) -> Role:
        """Purpose of the slot's pods."""
        return _ROLES.get(self.name, Role.EXTRA)

    def pod_name(self, job: str, incarnation: int) -> str:
        """Return the name of one pod of this place; a name never comes twice in a job's life."""
        return f"{job}-{self.name}-{self.index}-{incarnation}"


_ROLES: Final[Mapping[str, Role]] = {MASTER: Role.MASTER, WORKER: Role.WORKER}
MASTER_SLOT: Final = PodSlot(MASTER, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """An existing pod, as last seen."""

    slot: PodSlot
    incarnation: int
    """Last number of its name: how many pods of the place came before it."""
    name: str
    """Its real name: place and number are labels, which people can edit."""
    uid: str
    """Uid, for the master."""
    phase: PodPhase
    lingers: bool = False
    """True: its main process has ended, and other containers of it run on."""
    exit_code: int | None = None
    """Exit code of the main container (locally: process), -N for signal N; None while it lives."""
    reason: str = ""
    """For example OOMKilled or Evicted; locally Killed."""
    text: str = ""
    """Last words of its main container, or of its node about it."""
    deleting: bool = False
    """True: a deletion is under way."""
    gone_by: float | None = None
    """Time at which that deletion should be over, grace included; Unix time, s; None: unknown."""
    lost: bool = False
    """True: its node does not answer, so its state is unknown; its lease has run out."""
    ready: bool = False
    """True: its agent is connected (for a master: it serves); other pods in a cluster: Ready."""
    proven: bool = True
    """True: its readiness shows that pods of its place can start. A pod without a probe is ready as
    soon as its container runs, which shows nothing."""
    serving: bool = False
    """True: all its containers were ready when its node was last heard of."""
    unheard: bool = False
    """True: the cluster has not heard of its node for a while."""
    node: str = ""
    """Kubernetes node; locally the pod's own name."""
    avoids: tuple[str, ...] = ()
    """Nodes that it was made to avoid."""
    created_at: float = 0.0
    """Unix time, s."""
    memory_limit: int = 0
    """Memory limit of its main container, bytes; 0: it has none."""
    ran_out_of_memory: bool = False
    """True: the kernel ended its main container for lack of memory, at least once."""
    waiting: str = ""
    """Reason why it cannot begin: Unschedulable, ImagePullFailed, ContainerNotStarted; empty: none
    is known."""
    waiting_text: str = ""
    """The same as a text of the scheduler or the node."""
    not_started: str = ""
    """Obstacle to the start of its main container, be it only time; empty: it has started, or
    unknown."""
    ended_at: float | None = None
    """Unix time, s; None: it lives, or the time is unknown."""

    @property
    def live(self) -> bool:
        """True if its main process may run."""
        return self.phase not in _DEAD and not self.lost

    @property
    def occupies(self) -> bool:
        """True if any process of it may run: its node's devices are not free."""
        return self.live or self.lost or self.lingers


OVERDUE_SECONDS: Final = 10.0
"""A pod that still runs so long after the end of its deletion is on a node that does not answer. A
kubelet reports the end of the processes before it cleans up after them."""


def overdue(pods: Iterable[ObservedPod], now: float) -> Iterator[ObservedPod]:
    """Yield the pods; mark those as lost whose deletion is overdue."""
    for pod in pods:
        late = pod.gone_by is not None and now >= pod.gone_by + OVERDUE_SECONDS
        yield dataclasses.replace(pod, lost=True) if late and pod.live else pod


_DEAD: Final = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.GONE})


def by_slot(pods: Iterable[ObservedPod]) -> dict[PodSlot, tuple[ObservedPod, ...]]:
    """Return the existing pods by place, of each place the oldest first; places in order."""
    ordered = sorted(pods, key=lambda pod: (pod.slot, pod.incarnation, pod.uid))
    result: dict[PodSlot, tuple[ObservedPod, ...]] = {}
    for pod in ordered:
        if pod.phase is not PodPhase.GONE:
            result[pod.slot] = (*result.get(pod.slot, ()), pod)
    return result


def template_of(spec: JobSpec, slot: PodSlot) -> Mapping[str, Any]:
    """Return the pod template of a place; empty: the operator's own, of a master."""
    if slot.role is Role.WORKER:
        return spec.worker_template
    if slot.role is Role.MASTER:
        return spec.master_template or {}
    return next((role.template for role in spec.extra_roles if role.name == slot.name), {})


def wanted_slots(spec: JobSpec) -> tuple[PodSlot, ...]:
    """Return the places of a running job: its master, replicas and standbys, extra roles."""
    extra = tuple((role.name, role.replicas) for role in spec.extra_roles)
    return _slots(spec.worker_pods, extra)


@functools.lru_cache(maxsize=8)
def _slots(workers: int, extra: tuple[tuple[str, int], ...]) -> tuple[PodSlot, ...]:
    """Return the places by their numbers: a plan asks for those of one job half a dozen times."""
    groups = ((WORKER, workers), *extra)
    places = (PodSlot(name, index) for name, count in groups for index in range(count))
    return (MASTER_SLOT, *places)
