"""What the runner knows of its job: spec, pods, the master's word. Touches no process."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast_operator.crd import load_crd
from holdfast_operator.master_spec import master_spec
from holdfast_operator.plan.actions import Plan, ScaleJob
from holdfast_operator.plan.decide import plan
from holdfast_operator.plan.history import History
from holdfast_operator.plan.masters import KnownMaster
from holdfast_operator.plan.pods import ObservedPod, Role, Slot
from holdfast_operator.plan.situation import Job
from holdfast_operator.plan.view import MasterView, Said
from holdfast_operator.spec import ElasticJob, InvalidJobError, change_job
from holdfast_wire.messages import (
    Fence,
    MasterSpec,
    PodListDone,
    PodObservation,
    PodPhase,
    ScaleResult,
)


@dataclasses.dataclass(slots=True, kw_only=True)
class LocalPod:
    """One process that stands for a pod."""

    slot: Slot
    incarnation: int
    name: str
    created_at: float
    """Unix time, s."""
    uid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    ended_at: float | None = None
    exit_code: int | None = None
    """-N for signal N; None while it lives."""
    wanted_end: bool = False
    """The runner itself is ending it."""
    ready: bool = False
    said: str = ""
    """The last line of its log, where it failed."""

    @property
    def phase(self) -> PodPhase:
        """Running, or how it ended."""
        if self.exit_code is None:
            return PodPhase.RUNNING
        return PodPhase.SUCCEEDED if self.exit_code == 0 else PodPhase.FAILED

    @property
    def node(self) -> str:
        """What stands for its Kubernetes node: its own name.

        Each process is a machine of its own here; were it this machine's name, a node that is
        excluded would take all the others along.
        """
        return self.name

    def observed(self) -> ObservedPod:
        """Return the pod as a planner sees it."""
        return ObservedPod(
            slot=self.slot,
            incarnation=self.incarnation,
            name=self.name,
            uid=self.uid,
            phase=self.phase,
            exit_code=self.exit_code,
            reason=self._reason(),
            deleting=self.wanted_end and self.exit_code is None,
            ready=self.ready,
            node=self.node,
            created_at=self.created_at,
            ended_at=self.ended_at,
        )

    def observation(self) -> PodObservation:
        """Return the pod as its master hears of it."""
        return PodObservation(
            node_rank=self.slot.index,
            pod_uid=self.uid,
            name=self.name,
            phase=self.phase,
            exit_code=self.exit_code or 0,
            reason=self._reason(),
            node=self.node,
            terminating=self.wanted_end and self.exit_code is None,
            wanted=self.wanted_end,
            text=self.said,
        )

    def _reason(self) -> str:
        return "Killed" if self.exit_code is not None and self.exit_code < 0 else ""


class LocalJob:
    """One local job and everything that a plan of it is made from."""

    def __init__(self, job: ElasticJob, uid: str) -> None:
        self.job = job
        self.uid = uid
        self.generation = 1
        self.view = MasterView()
        self.master = KnownMaster()
        """The newest that was started or heard: only its words count."""
        self.stopping = False
        """Nobody makes pods any more."""
        self._pods: dict[str, LocalPod] = {}
        self._status: Mapping[str, Any] = {}
        self._history: History = {}

    @property
    def pods(self) -> list[LocalPod]:
        """The newest pod of each place, and older ones that still live."""
        return list(self._pods.values())

    def add(self, pod: LocalPod) -> None:
        """Take note of a new pod; what ended in its place before is forgotten."""
        for old in self.pods:
            if old.slot == pod.slot and old.exit_code is not None:
                del self._pods[old.name]
        self._pods[pod.name] = pod

    def remove(self, name: str) -> None:
        """Forget a pod."""
        self._pods.pop(name, None)

    def find(self, name: str) -> LocalPod | None:
        """Return the pod called `name`."""
        return self._pods.get(name)

    def living(self, role: Role) -> list[LocalPod]:
        """Return the pods of a role whose process runs."""
        return [pod for pod in self.pods if pod.slot.role is role and pod.exit_code is None]

    def plan(self, now: float) -> Plan:
        """Return what to do at Unix time `now`, and remember what the next plan needs."""
        job = Job(
            name=self.job.name,
            uid=self.uid,
            generation=self.generation,
            spec=self.job.spec,
            status=self._status,
            history=self._history,
            stopping=self.stopping,
        )
        made = plan(job, [pod.observed() for pod in self.pods], self.view, now)
        self._status, self._history = made.status, made.history
        return made

    def refusal(self, fence: Fence | None) -> str:
        """Why a message of a master is not acted on; empty: it is, and its sender is known now."""
        refusal = self.master.refusal(fence)
        if not refusal:
            self.master = self.master.heard(fence)
        return refusal

    def hear(self, said: Said, now: float) -> None:
        """Take in what the master said."""
        self.view = self.view.hear(said, now=now, generation=self.generation)

    def first_messages(self) -> Iterator[MasterSpec | PodObservation | PodListDone]:
        """Yield what a new stream to the master begins with."""
        yield self.spec_message()
        for pod in self.pods:
            if pod.slot.role is Role.WORKER:
                yield pod.observation()
        yield PodListDone()

    def spec_message(self) -> MasterSpec:
        """Return the spec in the words of the wire."""
        return master_spec(self.job.spec, self.generation)

    def scale(self, wish: ScaleJob) -> ScaleResult:
        """Change the number of replicas, and say how that went."""
        self.view = self.view.answered(wish.decision_id)
        try:
            self.job = change_job(self.job, load_crd(), replicas=wish.replicas)
        except InvalidJobError as error:
            return ScaleResult(decision_id=wish.decision_id, ok=False, error=str(error))
        self.generation += 1
        return ScaleResult(decision_id=wish.decision_id, ok=True)
