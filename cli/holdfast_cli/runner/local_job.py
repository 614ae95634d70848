"""The runner's knowledge of its job: spec, pods, the master's view. Touches no process."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.crd import load_crd
from holdfast_operator.master_spec import master_spec
from holdfast_operator.plan.actions import CreatePod, Plan, ScaleJob
from holdfast_operator.plan.history import History
from holdfast_operator.plan.inputs import PlannedJob
from holdfast_operator.plan.pods import ObservedPod, PodSlot, Role
from holdfast_operator.plan.view import KnownMaster, MasterView, Said
from holdfast_operator.planner import plan
from holdfast_operator.spec import ElasticJob, InvalidJobError, change_job
from holdfast_operator.spec.job import SpecVersion
from holdfast_operator.status.conditions import EXTRA_GIVEN_UP
from holdfast_wire import messages as wire

_BEGAN: Final = time.time() - time.monotonic()


def now() -> float:
    """Return the runner's time: Unix time at its start, from then on by a steady clock.

    The plan compares points in time, all of them this process's own: a wall clock that is set back
    meanwhile (by NTP, by hand) must not count.
    """
    return _BEGAN + time.monotonic()


@dataclasses.dataclass(slots=True, kw_only=True)
class LocalPod:
    """A process in place of a pod."""

    slot: PodSlot
    incarnation: int
    name: str
    created_at: float
    """Unix time, s."""
    uid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    ended_at: float | None = None
    exit_code: int | None = None
    """-N for signal N; None while it lives."""
    wanted_end: bool = False
    """True: the runner itself is ending it."""
    ready: bool = False
    host: str = ""
    """Host on which it runs; empty: this machine."""
    said: str = ""
    """Last line of its log, if it failed."""

    @property
    def phase(self) -> wire.PodPhase:
        """Phase of a pod: running, or its end."""
        if self.exit_code is None:
            return wire.PodPhase.RUNNING
        return wire.PodPhase.SUCCEEDED if self.exit_code == 0 else wire.PodPhase.FAILED

    @property
    def node(self) -> str:
        """Name that stands for the pod's Kubernetes node: its host's, or the pod's own.

        Each process of this machine counts as a machine of its own. With this machine's name, the
        exclusion of one node would exclude all others.
        """
        return self.host or self.name

    def observed(self) -> ObservedPod:
        """Return the pod in a planner's form."""
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

    def observation(self) -> wire.PodObservation:
        """Return the pod in the master's form."""
        return wire.PodObservation(
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
    """One local job, with everything that a plan is made from."""

    def __init__(self, job: ElasticJob, uid: str) -> None:
        self.job = job
        self.uid = uid
        self.version = SpecVersion(generation=1)
        self.view = MasterView()
        self.master = KnownMaster()
        """Newest master that was started or heard: only its messages count."""
        self.stopping = False
        """True: no more pods are made."""
        self._pods: dict[str, LocalPod] = {}
        self._status: Mapping[str, Any] = {}
        self._history: History = {}

    @property
    def pods(self) -> list[LocalPod]:
        """Newest pod of each place, and older ones that still live."""
        return list(self._pods.values())

    def add(self, pod: LocalPod) -> None:
        """Add a pod; an ended one in its place is forgotten."""
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
        """Return the plan at Unix time `now`, and keep the state for the next plan."""
        job = PlannedJob(
            name=self.job.name,
            uid=self.uid,
            version=self.version,
            spec=self.job.spec,
            status=self._status,
            history=self._history,
            stopping=self.stopping,
        )
        made = plan(job, [pod.observed() for pod in self.pods], self.view, now)
        self._status, self._history = made.status, made.history
        return made

    def refusal(self, fence: wire.Fence | None) -> str:
        """Return the reason to drop a message; empty: its sender is now the known master."""
        refusal = self.master.refusal(fence)
        if not refusal:
            self.master = self.master.heard(fence)
        return refusal

    def receive(self, said: Said, now: float) -> None:
        """Apply a message of the master."""
        self.view = self.view.hear(said, now=now, version=self.version)

    def first_messages(self) -> Iterator[wire.MasterSpec | wire.PodObservation | wire.PodListDone]:
        """Yield the first messages of a new stream to the master."""
        yield self.spec_message()
        for pod in self.pods:
            if pod.slot.role is Role.WORKER:
                yield pod.observation()
        yield wire.PodListDone()

    def spec_message(self) -> wire.MasterSpec:
        """Return the spec as a message of the wire."""
        return master_spec(self.job.spec, self.version)

    def scale(self, change: ScaleJob) -> wire.ScaleResult:
        """Change the number of replicas, and return the outcome."""
        self.view = self.view.answered(change.decision_id)
        try:
            self.job = change_job(self.job, load_crd(), replicas=change.replicas)
        except InvalidJobError as error:
            return wire.ScaleResult(decision_id=change.decision_id, ok=False, error=str(error))
        self.version = SpecVersion(self.version.generation + 1)
        return wire.ScaleResult(decision_id=change.decision_id, ok=True)


class ExtraRoles:
    """Reports each restart of an extra role's pod once, and once that there will be no more.

    The master does not know these pods, so no event of the job mentions them.
    """

    def __init__(self) -> None:
        """Begin without a report."""
        self._given_up = ""

    def news(self, made: Plan) -> Iterator[str]:
        """Yield a line for each pod of an extra role that is made again or given up."""
        for action in made.actions:
            if not isinstance(action, CreatePod) or action.slot.role is not Role.EXTRA:
                continue
            if action.incarnation > 0:
                yield f"{action.reason}; {action.name} takes its place"
        conditions = made.status.get("conditions", ())
        text = next((one["message"] for one in conditions if one["reason"] == EXTRA_GIVEN_UP), "")
        if text and text != self._given_up:
            self._given_up = text
            yield text
