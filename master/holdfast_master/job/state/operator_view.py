"""The operator as the master knows it: its reports, and the requests that are still open."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import ClusterStrikes, PodObservation, PodPhase, ReplaceDecision

_COMING = frozenset({PodPhase.PENDING, PodPhase.RUNNING})
_ASKED_LIMIT = 1_000
_OVER = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.GONE})


def is_over(pod: PodObservation) -> bool:
    """Whether the pod's processes have ended for certain."""
    return pod.phase in _OVER


@dataclasses.dataclass(slots=True)
class PendingScale:
    """A user's Scale that waits for the operator."""

    request_id: int
    replicas: int
    decision_id: int
    accepted: bool = False


@dataclasses.dataclass(slots=True)
class OperatorView:
    """The operator as the master knows it."""

    connected: bool = False
    ever: bool = False
    """An operator has connected at least once: somebody makes and deletes pods."""
    list_done: bool = False
    listed: set[int] = dataclasses.field(default_factory=set)
    """Node ranks named since the stream began."""
    inherited: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods that a list named: they may have been there before this master."""
    pods: dict[int, PodObservation] = dataclasses.field(default_factory=dict)
    """The newest pod of each node rank."""
    over: set[int] = dataclasses.field(default_factory=set)
    """Ranks whose newest pod is over: counted at every event, and pods may be ten thousand."""
    unreachable: set[int] = dataclasses.field(default_factory=set)
    """Ranks whose newest pod is on a node that answers nothing to the operator."""
    superseded: dict[int, set[str]] = dataclasses.field(default_factory=dict)
    replacing: dict[int, ReplaceDecision] = dataclasses.field(default_factory=dict)
    """Replacements that have not been seen yet."""
    asked: dict[str, int] = dataclasses.field(default_factory=dict)
    """Uids of pods that were to be replaced, with their node rank; the newest thousand."""
    ended_early: dict[str, None] = dataclasses.field(default_factory=dict)
    """Uids of pods whose end before their agent joined was told; the newest thousand."""
    cluster: ClusterStrikes = dataclasses.field(default_factory=ClusterStrikes)
    """Strikes of other jobs on the hosts of this one."""
    pending_scales: dict[int, PendingScale] = dataclasses.field(default_factory=dict)
    """By request id."""

    def newest_pod(self, rank: int) -> str | None:
        """Uid of the rank's newest pod, if somebody watches who can tell."""
        pod = self.pods.get(rank)
        if not (self.connected and self.list_done) or pod is None or is_over(pod):
            return None
        return pod.pod_uid

    def ended_pod(self, rank: int) -> str | None:
        """Uid of the rank's newest pod where that is over."""
        return self.pods[rank].pod_uid if rank in self.over else None

    def note(self, pod: PodObservation) -> None:
        """Keep an observation; another uid follows the one before."""
        self.listed.add(pod.node_rank)
        if not self.list_done:
            self.inherited.add(pod.pod_uid)
        before = self.pods.get(pod.node_rank)
        if before is not None and before.pod_uid != pod.pod_uid:
            self.superseded.setdefault(pod.node_rank, set()).add(before.pod_uid)
        self.pods[pod.node_rank] = pod
        for ranks, holds in ((self.over, is_over(pod)), (self.unreachable, pod.unreachable)):
            (ranks.add if holds else ranks.discard)(pod.node_rank)

    def note_asked(self, rank: int, pod_uid: str) -> None:
        """The pod's end is now of the master's own making."""
        self.asked[pod_uid] = rank
        while len(self.asked) > _ASKED_LIMIT:
            del self.asked[next(iter(self.asked))]

    def note_early_end(self, pod_uid: str) -> None:
        """The pod ended before its agent joined, and that was told."""
        self.ended_early[pod_uid] = None
        while len(self.ended_early) > _ASKED_LIMIT:
            del self.ended_early[next(iter(self.ended_early))]

    def is_old(self, pod: PodObservation) -> bool:
        """Whether a newer pod of the rank is known."""
        return pod.pod_uid in self.superseded.get(pod.node_rank, ())

    def is_coming(self, rank: int) -> bool:
        """Whether the rank has a pod that lives and stays."""
        pod = self.pods.get(rank)
        return pod is not None and pod.phase in _COMING and not pod.terminating

    def ends_of(self, rank: int, pod_uid: str) -> int:
        """The number of ends of the pod's container, each followed by a start in the pod."""
        pod = self.pods.get(rank)
        return pod.ends if pod is not None and pod.pod_uid == pod_uid else 0

    def starts_again(self, rank: int, pod_uid: str, known_ends: int) -> bool:
        """Whether the pod stays and its container ended after this number of ends."""
        return self.is_coming(rank) and self.ends_of(rank, pod_uid) > known_ends

    def host_of(self, rank: int) -> str:
        """Kubernetes node of the rank's newest pod; empty: not known."""
        pod = self.pods.get(rank)
        return "" if pod is None else pod.node
