"""The operator's state of one job between two looks: object, memory, master's view."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast_operator.master_link import Upward
from holdfast_operator.master_spec import master_spec
from holdfast_operator.nodes.history import ClusterNodes
from holdfast_operator.nodes.reachability import NodeReachability
from holdfast_operator.nodes.strikes import ExcludedNode
from holdfast_operator.plan.actions import Action, CreatePod, Plan
from holdfast_operator.plan.history import ApiRefusal, History, refused
from holdfast_operator.plan.inputs import Grouped, PlannedJob, Queued, unix_time
from holdfast_operator.plan.pods import MASTER_SLOT, UNSCHEDULABLE, PodSlot, Role
from holdfast_operator.plan.slices import Verdict
from holdfast_operator.plan.view import Said
from holdfast_operator.pods.gang import Grouping
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.pod import PodSource
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.pods.revision import TemplatesInForce
from holdfast_operator.pods.workloads import QUEUE
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.spec import ElasticJob, JobSpec, from_object
from holdfast_operator.spec.job import NO_VERSION, SpecVersion
from holdfast_operator.state.credentials import HeldCredentials
from holdfast_operator.state.expectations import Expectations
from holdfast_operator.state.link import Link
from holdfast_operator.state.status import WrittenStatus
from holdfast_wire import keys
from holdfast_wire.messages import (
    AvoidedHost,
    ClusterStrikes,
    MasterSpec,
    PodListDone,
    PodObservation,
    PodPhase,
)

Key = tuple[str, str]
"""Namespace and name of a job."""
NO_ROOM_SECONDS: Final = 120.0
"""A worker that waits for a node for so long is made anew with other jobs' bad nodes: an autoscaler
makes a node in less, and training on a bad node beats none."""


@dataclasses.dataclass(slots=True, kw_only=True)
class JobState:
    """One job. A job that is deleted and made again under its name is another one."""

    owner: Owner
    job: ElasticJob
    body: Mapping[str, Any]
    """Newest object that was seen."""
    pods_now: Callable[[Key], Iterable[PodRecord]]
    progress_seconds: Callable[[], float] = lambda: 0.0
    """Returns the shortest time between two reports of progress that this process can take, s; 0:
    any."""
    credentials: HeldCredentials
    nodes: ClusterNodes
    needs_struck: bool = False
    """True: a worker found no node but those that it avoided for what other jobs met there."""
    status: WrittenStatus
    templates: TemplatesInForce = dataclasses.field(default_factory=TemplatesInForce)
    expectations: Expectations = dataclasses.field(default_factory=Expectations)
    link: Link = dataclasses.field(default_factory=Link)
    admission: Verdict | None = None
    """What its queue admits; None: it has no queue."""
    grouping: Grouping = dataclasses.field(default_factory=Grouping)
    """How its next workers are scheduled."""
    revision: int = 0
    """Revision of that: grows with each change, also over operators; 0: it never had a queue."""
    _judged: bool = False
    """True: this process knows what the revision stands for."""
    history: History = dataclasses.field(default_factory=dict)
    """History that the last plan returned."""
    _avoided: set[str] = dataclasses.field(default_factory=set)
    """Struck nodes that people were told of."""
    refused: dict[PodSlot, ApiRefusal] = dataclasses.field(default_factory=dict)
    """Places whose pods the API server refused at the last try."""
    first_seen_at: float = 0.0
    """Time of this process's first look at it; Unix time, s."""
    sure_at: float = 0.0
    """Monotonic time at which its object was known to exist."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.owner.namespace, self.owner.name

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self.body["metadata"]["generation"])

    @property
    def version(self) -> dict[str, str]:
        """Metadata that every write of the object sends: it is refused if there is a newer version.

        The uid alone guards nothing: writes of a custom resource's status ignore it (tried with
        Kubernetes 1.37). Without the version a write could reach the next job of the name, or come
        late, from an operator that was killed, and take a successor's epoch back.
        """
        metadata = self.body["metadata"]
        return {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}

    @property
    def spec(self) -> JobSpec:
        """Spec to carry out: the owner's with the templates in force, as its queue admits it."""
        asked, given = self.asked, self.admission
        return asked if given is None else asked.admitted(given.workers, given.roles, given.memory)

    @property
    def asked(self) -> JobSpec:
        """Spec of the owner, with the templates that are in force."""
        return self.templates.of(self.job.spec)

    @property
    def spec_version(self) -> SpecVersion:
        """Version of the spec to carry out."""
        return SpecVersion(self.generation, self.revision)

    @property
    def queue(self) -> str:
        """Name of its queue; empty: it has none."""
        return str((self.body["metadata"].get("labels") or {}).get(QUEUE, ""))

    def admits(self, verdict: Verdict | None, now: float) -> None:
        """Note what its queue admits now; `now`: Unix time, s."""
        before, self.admission = self.admission, verdict
        same = self._judged and _workers(before) == _workers(verdict)
        self._judged = True
        # A job that has lost its queue has all that it asks for: that is a change like others.
        if not same and (verdict is not None or self.revision):
            # An operator before this one may have sent more than its status says: time goes on.
            self.revision = max(self.revision + 1, int(now * 1000))

    def groups(self, grouping: Grouping) -> None:
        """Note how its next workers are scheduled."""
        self.grouping = grouping

    @property
    def held(self) -> bool:
        """True if our finalizer holds the object."""
        return keys.FINALIZER in (self.body["metadata"].get("finalizers") or ())

    @property
    def deleted(self) -> bool:
        """True if it was deleted, and its object still exists."""
        return "deletionTimestamp" in self.body["metadata"]

    @property
    def runs(self) -> bool:
        """True if a pod lives, or comes to live, whose template must not change."""
        living = {PodPhase.PENDING, PodPhase.RUNNING, PodPhase.UNSPECIFIED}
        return self.expectations.open or any(
            pod.phase in living and not pod.lost and pod.slot.role is not Role.MASTER
            for pod in self.pods()
        )

    @property
    def wanted_revision(self) -> str:
        """Name of the templates that its spec has now."""
        return self.templates.wanted(self.owner.name, self.job.spec, self.generation)

    def may_begin(self, now: float) -> bool:
        """Return True if the objects that a job always has may be made now, or exist."""
        refusal = self.refused.get(MASTER_SLOT)
        return self.credentials.prepared or refusal is None or now >= refusal.not_before

    def expect(self, name: str, until: float) -> None:
        """Note a pod that was made and has to show."""
        self.expectations.pod_made(name, until, self.pods())

    def expect_deletion(self, uid: str, until: float) -> None:
        """Note a deletion that was requested and has to show."""
        self.expectations.deletion_asked(uid, until, self.pods())

    def shows(self, pod: PodRecord, *, gone: bool) -> None:
        """Note a pod that was seen."""
        self.link.shows(pod)
        self.expectations.shows(pod, gone=gone)

    def needs_note(self, action: Action) -> bool:
        """Return True if an action begins with a write of the status: an epoch or the templates."""
        return isinstance(action, CreatePod) and (
            action.slot == MASTER_SLOT or self.status.revision != self.templates.revision
        )

    def refuse(self, slot: PodSlot, text: str, now: float) -> None:
        """Note that the API server refuses a place's pod for now."""
        self.refused[slot] = refused(self.refused.get(slot), text, now)

    def accept(self, slot: PodSlot) -> None:
        """Note that the API server has accepted a place's pod."""
        self.refused.pop(slot, None)

    def is_there(self, now: float) -> None:
        """Note that its object was found, or asked for, a moment ago; `now` is monotonic."""
        self.sure_at = now

    def pods(self) -> list[PodRecord]:
        """Return its own pods, without those of an earlier job of the name."""
        return [pod for pod in self.pods_now(self.key) if pod.owner == self.owner.uid]

    def update(self, body: Mapping[str, Any]) -> None:
        """Note a newer object."""
        if body is self.body:
            return
        same = body["spec"] is self.job.body["spec"]
        self.job = dataclasses.replace(self.job, body=body) if same else from_object(body)
        self.body = body

    def patched(self, body: Mapping[str, Any]) -> None:
        """Note the object in the answer to a request; its spec may be a newer one."""
        self.update(with_spec_of(self.body, body))

    def planned_as(self, made: Plan) -> None:
        """Keep the parts of a plan that the next plan needs."""
        self.history = made.history
        self.status.planned(made.status.get("conditions"))

    def source(self, settings: OperatorSettings, *, newest: bool = False) -> PodSource:
        """Return the source of the job's pods; `newest`: with the templates that the spec has."""
        return PodSource(
            owner=self.owner,
            spec=self.job.spec if newest else self.spec,
            body=self.job.body,
            image=settings.image,
            master_defaults=settings.master_pod,
            lost_node_s=settings.lost_node_toleration_s,
            admission=self.admission,
            gang=self.grouping.additions(self.owner.gang),
        )

    def planned(self, endpoint: str, *, cut_off: bool = False) -> PlannedJob:
        """Return the job for a planner; `cut_off`: rather this side reaches no master."""
        metadata = self.body["metadata"]
        return PlannedJob(
            name=self.owner.name,
            uid=self.owner.uid,
            version=self.spec_version,
            spec=self.spec,
            status=self.status.for_planner(),
            history=self.history,
            refused=self.refused,
            stopping=self.deleted,
            held=self.held,
            deleted_at=unix_time(metadata["deletionTimestamp"]) if self.deleted else 0.0,
            first_seen_at=self.first_seen_at,
            cut_off=cut_off,
            unreachable=self.link.reach.unreachable,
            silent_nodes=self.nodes.silent(),
            struck_nodes=tuple(one.host for one in self.struck()),
            master_endpoint=endpoint,
            queued=self._queued(),
            grouped=self._grouped(),
        )

    def _queued(self) -> Queued | None:
        if self.admission is None:
            return None
        return Queued(queue=self.queue, asked=self.asked, reason=self.admission.reason)

    def _grouped(self) -> Grouped | None:
        backend, fault = self.grouping.backend, self.grouping.fault
        if backend is None and not fault:
            return None
        if fault:
            return Grouped(ready=False, text=fault, blocked=self.grouping.blocked)
        name, least = f"{backend.api} {self.owner.gang}" if backend else "", self.spec.size.least
        return Grouped(ready=True, text=f"PodGroup {name}: at least {least} at once")

    def receive(self, message: Said | None, now: float) -> None:
        """Apply a message of the master; None: the stream to it has ended."""
        self.link.receive(message, now, self.pods())

    def master_address(self) -> str:
        """Return host:port of its newest master, preferring one that stays; empty: there is none.

        A master that is being deleted may still have a state to save.
        """
        masters = [pod for pod in self.pods() if pod.slot.role is Role.MASTER]
        newest = max(masters, key=lambda pod: (not pod.deleting, pod.incarnation), default=None)
        if newest is None or not newest.address:
            return ""
        host = f"[{newest.address}]" if ":" in newest.address else newest.address
        return f"{host}:{self.spec.master_port}"

    @property
    def met_at(self) -> str | None:
        """Return the node of a master that was reached once and should be there; None: none."""
        return self.link.met_at(self.pods())

    def in_doubt(self) -> Iterable[str]:
        """Return suspect nodes: that of a master that was reached once and is not any more."""
        node = None if self.link.view.connected else self.met_at
        return () if node is None else (node,)

    def finds(self, reach: NodeReachability) -> None:
        """Note the nodes that answer nothing, and tell the master of the workers there."""
        changed = self.link.finds(reach)
        for pod in self.pods():
            if pod.node in changed and pod.slot.role is Role.WORKER:
                self.link.send(self.observation(pod))

    def noticed(self, node: str) -> None:
        """Tell the master of its workers on a node whose notice has changed."""
        for pod in self.pods():
            if pod.node == node and pod.slot.role is Role.WORKER:
                self.link.send(self.observation(pod))

    def observation(self, pod: PodRecord, *, gone: bool = False) -> PodObservation:
        """Return a worker's pod for the master; `gone`: the pod does not exist any more.

        A pod that never answered is not called unreachable: it may be new on a node that is back.
        """
        reach = self.link.reach
        return pod.observation(
            wanted=pod.uid in self.expectations.deletions,
            unreachable=pod.node in reach.unreachable and pod.uid in reach.answered,
            phase=PodPhase.GONE if gone else None,
            notice=self.nodes.notice(pod.node),
        )

    def first_messages(self) -> Iterable[Upward]:
        """Yield the first messages of a new stream to the master."""
        yield self._master_spec()
        self.link.strikes_sent = self._strikes()
        if self.link.strikes_sent != ClusterStrikes():
            yield self.link.strikes_sent
        # A list is sorted by name, 10 before 9. The older pod of a place must come first: otherwise
        # its end would be taken for its successor's.
        for pod in sorted(self.pods(), key=lambda pod: (pod.slot, pod.incarnation)):
            if pod.slot.role is Role.WORKER:
                yield self.observation(pod)
        yield PodListDone()
        if self.link.stop is not None:
            yield self.link.stop

    def send_news(self) -> None:
        """Tell the master of a spec, and of other jobs' strikes, that it does not know yet."""
        sent, wanted = self.link.spec_sent, self.progress_seconds()
        told = self.link.progress_sent
        paced = told == wanted or wanted / 2 < told < wanted * 2
        known = sent == self.spec_version and paced
        if self.link.stream is not None and sent != NO_VERSION and not known:
            self.link.send(self._master_spec())
        strikes = self._strikes()
        if self.link.view.connected and strikes != self.link.strikes_sent:
            self.link.strikes_sent = strikes
            self.link.send(strikes)

    def _master_spec(self) -> MasterSpec:
        self.link.spec_sent, self.link.progress_sent = self.spec_version, self.progress_seconds()
        pace = self.link.progress_sent
        return master_spec(
            self.spec,
            self.spec_version,
            asked_replicas=self.job.spec.replicas,
            progress_seconds=pace,
        )

    def _strikes(self) -> ClusterStrikes:
        struck = self.struck()
        hosts = {pod.node for pod in self.pods() if pod.node} | {one.host for one in struck}
        return ClusterStrikes(
            strikes=self.nodes.history.elsewhere(self.owner.uid, hosts),
            avoided=tuple(AvoidedHost(host=one.host, reason=one.reason) for one in struck),
        )

    def struck(self) -> tuple[ExcludedNode, ...]:
        """Return the nodes that its new pods avoid for what several jobs met there."""
        if not self.spec.avoid_struck_nodes or self.needs_struck:
            return ()
        own = set(self.link.view.excluded or self.status.fields.get("excludedNodes", ()))
        found = self.nodes.history.excluded(self.spec.worker_pods + len(own))
        return tuple(one for one in found if one.host not in own)

    def watch_room(self, now: float) -> None:
        """Give up avoiding other jobs' bad nodes once a worker has found no other node for long.

        Many nodes of a cluster take none of its pods: what is left to it is only seen so.
        """
        waits = [
            pod
            for pod in self.pods()
            if not pod.node
            and pod.waiting == UNSCHEDULABLE
            and pod.slot.role is Role.WORKER
            and now - pod.created_at >= NO_ROOM_SECONDS
        ]
        if waits:
            struck = {one.host for one in self.struck()}
            self.needs_struck |= any(not struck.isdisjoint(pod.avoids) for pod in waits)

    def avoids_anew(self) -> list[ExcludedNode]:
        """Return those that were not among them the last time."""
        struck = self.struck()
        known, self._avoided = self._avoided, {one.host for one in struck}
        return [one for one in struck if one.host not in known]


def with_spec_of(known: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object with the spec of a known one, if both are equal.

    A spec is two thirds of an object: thousands of jobs keep it once, whatever is written to them.
    """
    mine, its = body.get("spec"), known.get("spec")
    return body if mine is its or mine != its else {**body, "spec": its}


def _workers(verdict: Verdict | None) -> int | None:
    return None if verdict is None else verdict.workers
