"""A job under a planner: its pods, its master's word and its clock, changed by hand.

`World` carries plans out as a perfect cluster would. Nothing here decides anything.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast_operator.plan.actions import (
    Action,
    AskToStop,
    CreatePod,
    DeletePod,
    FinishJob,
    Hold,
    LetGo,
    Plan,
    ScaleJob,
)
from holdfast_operator.plan.history import ApiRefusal, History
from holdfast_operator.plan.inputs import Grouped, PlannedJob, Queued
from holdfast_operator.plan.pods import MASTER, MASTER_SLOT, WORKER, ObservedPod, PodSlot
from holdfast_operator.plan.view import MasterView, Said
from holdfast_operator.planner import plan
from holdfast_operator.spec.admission import change_job
from holdfast_operator.spec.job import SpecVersion
from holdfast_operator.spec.schema import parse_crd
from holdfast_operator.spec.structure import check_structure
from holdfast_wire.messages import PodPhase
from jobs.job_files import CRD, job, read

NOW = 1_700_000_000.0
STATUS_SCHEMA = parse_crd(CRD).schema.properties["status"]


def worker(rank: int) -> PodSlot:
    """The place of a worker."""
    return PodSlot(WORKER, rank)


@dataclasses.dataclass
class World:
    """One job with its pods; `look` plans, `carry_out` applies what was planned."""

    fields: dataclasses.InitVar[dict[str, Any]]
    now: float = NOW
    pods: dict[str, ObservedPod] = dataclasses.field(default_factory=dict)
    master: MasterView = dataclasses.field(default_factory=MasterView)
    generation: int = 1
    revision: int = 0
    """Of what its queue admits."""
    history: History = dataclasses.field(default_factory=dict)
    status: dict[str, Any] = dataclasses.field(default_factory=dict)
    refused: dict[PodSlot, ApiRefusal] = dataclasses.field(default_factory=dict)
    stopping: bool = False
    held: bool | None = None
    """None: nothing can hold it, as locally."""
    deleted_at: float = 0.0
    first_seen_at: float = 0.0
    """0: long ago."""
    cut_off: bool = False
    unreachable: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    struck: tuple[str, ...] = ()
    queue: str = ""
    """Queue that admits all of it; empty: it has none."""
    grouped: Grouped | None = None
    named: int = 0
    """Pods made so far, for their uids."""

    def __post_init__(self, fields: dict[str, Any]) -> None:
        self.job = read(job(**fields))

    def look(self) -> Plan:
        """Return the planner's next plan. Keep its history and status, which fits the CRD."""
        made = plan(self._job(), self.pods.values(), self.master, self.now)
        self.history, self.status = made.history, dict(made.status)
        assert list(check_structure(self.status, STATUS_SCHEMA)) == []
        return made

    def look_again(self) -> Plan:
        """The same look once more, without consequences."""
        return plan(self._job(), self.pods.values(), self.master, self.now)

    def _job(self) -> PlannedJob:
        return PlannedJob(
            name="t",
            uid="u",
            version=SpecVersion(self.generation, self.revision),
            spec=self.job.spec,
            status=self.status,
            history=self.history,
            refused=self.refused,
            stopping=self.stopping,
            held=self.held,
            deleted_at=self.deleted_at,
            first_seen_at=self.first_seen_at,
            cut_off=self.cut_off,
            unreachable=self.unreachable,
            silent_nodes=self.silent,
            struck_nodes=self.struck,
            queued=Queued(queue=self.queue, asked=self.job.spec, reason="") if self.queue else None,
            grouped=self.grouped,
        )

    def carry_out(self, action: Action) -> None:
        """Does one action at once and completely, but deletions with a grace only begin."""
        match action:
            case CreatePod():
                self.make(action.slot, action.incarnation, action.avoid_nodes)
            case DeletePod() if action.grace_s == 0:
                del self.pods[action.name]
            case DeletePod():
                self.change(action.name, deleting=True)
            case ScaleJob():
                self.master = self.master.answered(action.decision_id)
                self.scale(action.replicas)
            case Hold() | LetGo():
                self.held = isinstance(action, Hold)
            case FinishJob() | AskToStop():
                pass  # it stands in the status; the master is the test's affair
            case _:
                self.pods.clear()

    def do(self, made: Plan) -> None:
        """Carries out all of a plan."""
        for action in made.actions:
            self.carry_out(action)

    def settle(self, rounds: int = 20) -> Plan:
        """Plans and carries out until nothing is left to do; every pod gets ready or goes."""
        made = self.look()
        for _ in range(rounds):
            self.do(made)
            self.finish_deletions()
            for name, pod in list(self.pods.items()):
                if pod.live:
                    self.change(name, phase=PodPhase.RUNNING, ready=True)
            made = self.look()
            if not made.actions:
                return made
        raise AssertionError(f"no rest after {rounds} plans: {made.actions}")

    def make(
        self, slot: PodSlot, incarnation: int = 0, avoids: tuple[str, ...] = ()
    ) -> ObservedPod:
        """A new pod, Pending, on a node that it does not avoid."""
        self.named += 1
        node = f"node-{slot.index}"
        pod = ObservedPod(
            slot=slot,
            incarnation=incarnation,
            name=slot.pod_name("t", incarnation),
            uid=f"uid-{self.named}",
            phase=PodPhase.PENDING,
            created_at=self.now,
            node=node if node not in avoids else f"spare-{slot.index}",
            avoids=avoids,
        )
        self.pods[slot.pod_name("t", incarnation)] = pod
        return pod

    def change(self, name: str, **fields: Any) -> ObservedPod:
        """Changes what is seen of a pod."""
        self.pods[name] = dataclasses.replace(self.pods[name], **fields)
        return self.pods[name]

    def end(self, name: str, exit_code: int = 1, **fields: Any) -> None:
        """Ends a pod's process now."""
        phase = PodPhase.FAILED if exit_code else PodPhase.SUCCEEDED
        ended = {"phase": phase, "exit_code": exit_code, "ended_at": self.now, "ready": False}
        self.change(name, **{**ended, **fields})

    def finish_deletions(self) -> None:
        """Every pod that is being deleted is gone; those on lost nodes stay."""
        for name, pod in list(self.pods.items()):
            if pod.deleting and not pod.lost:
                del self.pods[name]

    def scale(self, replicas: int) -> None:
        """Changes the wanted number of workers, where the CRD allows it."""
        spec = self.job.spec
        least = 1 if spec.min_replicas is None else spec.min_replicas
        most = 10_000 if spec.max_replicas is None else spec.max_replicas
        if not least <= replicas <= most:
            change_job(self.job, CRD, replicas=replicas)  # says why not
        self._respecify(replicas=replicas)

    def suspend(self, wanted: bool) -> None:  # noqa: FBT001
        """Suspends or resumes the job."""
        self._respecify(suspend=wanted)

    def _respecify(self, **fields: Any) -> None:
        # Not by `change_job`, whose check of the whole object takes most of a property's time.
        spec = dataclasses.replace(self.job.spec, **fields)
        self.job = dataclasses.replace(self.job, spec=spec)
        self.generation += 1

    def hear(self, said: Said) -> None:
        """The master says something."""
        self.master = self.master.hear(said, now=self.now, version=SpecVersion(self.generation))

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition in the last status; empty: it is not stated."""
        return next((one for one in self.status["conditions"] if one["type"] == kind), {})

    def stated(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = self.condition(kind)
        return found["status"], found["reason"]

    def live(self, name: str = WORKER) -> list[int]:
        """Indices of the living pods of a role."""
        return sorted(
            pod.slot.index for pod in self.pods.values() if pod.live and pod.slot.name == name
        )


def running(**fields: Any) -> World:
    """A job whose pods all run and are ready."""
    world = World(fields)
    world.settle()
    return world


def made_by(made: Plan) -> list[CreatePod]:
    """The pods to make."""
    return [action for action in made.actions if isinstance(action, CreatePod)]


def creates(made: Plan) -> list[str]:
    """Names of the pods to make."""
    return [action.name for action in made_by(made)]


def deletes(made: Plan) -> dict[str, str]:
    """Names of the pods to delete, with the reasons."""
    return {
        action.name: action.reason.value for action in made.actions if isinstance(action, DeletePod)
    }


__all__ = [
    "MASTER",
    "MASTER_SLOT",
    "NOW",
    "WORKER",
    "World",
    "creates",
    "deletes",
    "made_by",
    "running",
    "worker",
]
