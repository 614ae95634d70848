"""What the operator knows of one job between two looks at it: its object, memory, master's word.

Touches nothing outside; `reconcile` reads the cluster and writes to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from holdfast_operator.build.names import Owner
from holdfast_operator.build.pod import PodSource
from holdfast_operator.build.revision import Templates, with_templates
from holdfast_operator.credentials import JobCredentials
from holdfast_operator.kube.pods import PodRecord
from holdfast_operator.master_link import MasterLink, Upward
from holdfast_operator.master_spec import master_spec
from holdfast_operator.plan.actions import Action, CreatePod, DeletePod
from holdfast_operator.plan.history import History
from holdfast_operator.plan.masters import KnownMaster
from holdfast_operator.plan.pods import MASTER_SLOT, Role, Slot
from holdfast_operator.plan.reach import Reach
from holdfast_operator.plan.refusals import Refusal, refused
from holdfast_operator.plan.situation import Job
from holdfast_operator.plan.view import MasterView, Said
from holdfast_operator.sounding import Sounding
from holdfast_operator.spec import ElasticJob, JobSpec, from_object
from holdfast_wire import keys
from holdfast_wire.messages import Fence, PodListDone, PodObservation, PodPhase, StopWish

EXPECT_S: Final = 30.0
"""What was asked for and has not shown after this long is asked for again."""
EXISTS_S: Final = 1.0
"""A pod that was there already when it should be made: what it is shows sooner than this."""
Key = tuple[str, str]
"""Namespace and name of a job."""


@dataclasses.dataclass(slots=True, kw_only=True)
class JobKeeper:
    """One job. A job that is deleted and made again under its name is another one."""

    owner: Owner
    job: ElasticJob
    body: Mapping[str, Any]
    """The newest object that was seen."""
    status: Mapping[str, Any]
    """As last written, which may be newer than the object's."""
    credentials: JobCredentials
    conditions: Sequence[Mapping[str, Any]] | None = None
    """As last planned; None: not yet. The status is written once a second, and what was so between
    two writes counts all the same: a scaling goes on until a world of the new size trains."""
    pods_now: Callable[[Key], Iterable[PodRecord]]
    first_seen_at: float = 0.0
    """When this process first looked at it; Unix time, s."""
    view: MasterView = dataclasses.field(default_factory=MasterView)
    history: History = dataclasses.field(default_factory=dict)
    link: MasterLink | None = None
    master: KnownMaster = dataclasses.field(default_factory=KnownMaster)
    """The newest master that was started or heard: only its words count."""
    master_ends: tuple[str, int] = ("", 0)
    """Uid of the master's pod, and how often its container was seen to end."""
    prepared: bool = False
    """Its Secrets and Services were made or found by this process."""
    certified: set[int] = dataclasses.field(default_factory=set)
    """Ranks that have a key pair in their Secret."""
    checked_at: float = 0.0
    """When its Secrets were looked at; Unix time, s."""
    hurry_s: float = 10.0
    """Until they are looked at again while something may be missing; doubles."""
    renew_at: float | None = None
    """When the first of their certificates is to be renewed; None: not known yet."""
    budget: int | None = None
    """Workers that its PodDisruptionBudget keeps, 0: there is none; None: not known yet."""
    revision: str = ""
    """Name of the templates in force; empty: not known yet."""
    templates: Templates | None = None
    """Those templates: what the running pods were made from."""
    wanted: tuple[int, str] = (0, "")
    """Name of the templates that its spec has, with the generation of that."""
    refused: dict[Slot, Refusal] = dataclasses.field(default_factory=dict)
    """Places whose pods the API server did not take when last tried."""
    expected: dict[str, float] = dataclasses.field(default_factory=dict)
    """Names of pods that were made and not seen yet, uids of those whose deletion was not seen yet,
    and until when (monotonic) that is waited for: the copy of the cluster lags behind."""
    sounding: Sounding | None = None
    """Asks its nodes whether they are there."""
    reach: Reach = dataclasses.field(default_factory=Reach)
    """What it found last."""
    stop: StopWish | None = None
    """What its master was asked for, once it was."""
    spec_sent: int = 0
    """Generation that the master was told last."""
    deletions: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods that this side has deleted."""
    sure_at: float = 0.0
    """Monotonic time when its object was known to be there."""
    written_at: float = -math.inf
    """Monotonic time of the last write of the status, whoever needed it and whatever came of it."""
    leaves_since: float | None = None
    """Monotonic time since when the pods of its master are being deleted; None: one stays."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.owner.namespace, self.owner.name

    @property
    def generation(self) -> int:
        """Of the spec."""
        return int(self.body["metadata"]["generation"])

    @property
    def spec(self) -> JobSpec:
        """What is wanted of it, with the templates that are in force."""
        if self.templates is None:
            return self.job.spec
        return with_templates(self.job.spec, self.templates)

    @property
    def held(self) -> bool:
        """Whether our finalizer holds it."""
        return keys.FINALIZER in (self.body["metadata"].get("finalizers") or ())

    @property
    def deleted(self) -> bool:
        """Whether somebody has deleted it, and its object is still there."""
        return "deletionTimestamp" in self.body["metadata"]

    @property
    def runs(self) -> bool:
        """Whether a pod lives, or comes to live, whose template must not change around it."""
        living = {PodPhase.PENDING, PodPhase.RUNNING, PodPhase.UNSPECIFIED}
        return bool(self.expected) or any(
            pod.phase in living and not pod.lost and pod.slot.role is not Role.MASTER
            for pod in self.pods()
        )

    def may_begin(self, now: float) -> bool:
        """Whether what a job has all its life may be made now, or is there."""
        refusal = self.refused.get(MASTER_SLOT)
        return self.prepared or refusal is None or now >= refusal.not_before

    def put_in_force(self, revision: str, templates: Templates) -> None:
        """Make pods from these templates from now on."""
        self.revision, self.templates = revision, templates

    def expect(self, name: str, until: float) -> None:
        """Take note of a pod that was made and has to show; see `expected`."""
        if all(name != pod.name for pod in self.pods()):
            self.expected[name] = until

    def expect_deletion(self, uid: str, until: float) -> None:
        """Take note of a deletion that was asked for and has to show; see `expected`."""
        pod = next((pod for pod in self.pods() if pod.uid == uid), None)
        if pod is None:  # its end was seen before the answer: nothing will ever show
            self.deletions.discard(uid)
        elif not pod.deleting:
            self.expected[uid] = until

    def give_up_expecting(self, now: float) -> None:
        """Forget what did not show in time: it keeps no template in force any more."""
        self.expected = {what: until for what, until in self.expected.items() if until > now}

    def shows(self, pod: PodRecord, *, gone: bool) -> None:
        """A pod was seen: nothing about it is expected any more that it shows."""
        if pod.uid == self.view.speaker and not pod.serving and not self.view.connected:
            # Its node lives and starts it again: it has to be reached once more.
            self.view = self.view.met("")
        self.expected.pop(pod.name, None)
        if pod.deleting or gone:
            self.expected.pop(pod.uid, None)
        if gone:
            self.expected.pop(by_force(pod.uid), None)
            self.deletions.discard(pod.uid)
        if pod.slot.role is Role.MASTER and pod.ends and (pod.uid, pod.ends) != self.master_ends:
            self.master_ends = (pod.uid, pod.ends)
            self.master = self.master.ended()

    def expects(self, action: Action, now: float) -> float:
        """How long to wait for what an action led to a moment ago; 0: it is to be carried out."""
        match action:
            case CreatePod():
                what = action.name
            case DeletePod():
                what = action.uid if action.grace_s else by_force(action.uid)
            case _:
                return 0.0
        left = self.expected.get(what, now) - now
        if left <= 0:
            self.expected.pop(what, None)
        return max(0.0, left)

    def needs_note(self, action: Action) -> bool:
        """Whether an action begins with a write of the status: an epoch or the templates."""
        return isinstance(action, CreatePod) and (
            action.slot == MASTER_SLOT or self.status.get("templateRevision") != self.revision
        )

    def may_write_in(self, period_s: float, now: float) -> float:
        """How long to wait before the status is written again, s."""
        return max(0.0, self.written_at + period_s - now)

    def holds_back(self, period_s: float, now: float) -> float:
        """How long what is no note lets one pass that is about to be needed, s.

        A master's pod goes: its successor's epoch shall not have to wait for the next period.
        """
        masters = [pod for pod in self.pods() if pod.slot == MASTER_SLOT]
        if not masters or not all(pod.deleting for pod in masters):
            self.leaves_since = None
            return 0.0
        if self.leaves_since is None:
            self.leaves_since = now
        return max(0.0, self.leaves_since + period_s - now)

    def refuse(self, slot: Slot, text: str, now: float) -> None:
        """The API server does not let a place's pod be made now."""
        self.refused[slot] = refused(self.refused.get(slot), text, now)

    def pods(self) -> list[PodRecord]:
        """Its own pods; those of an earlier job of the name are not."""
        return [pod for pod in self.pods_now(self.key) if pod.owner == self.owner.uid]

    def update(self, body: Mapping[str, Any]) -> None:
        """Take in a newer object."""
        self.body = body
        self.job = from_object(body)

    def source(self, image: str, *, newest: bool = False) -> PodSource:
        """What its pods are made from; `newest`: with the templates that the spec has now."""
        spec = self.job.spec if newest else self.spec
        return PodSource(owner=self.owner, spec=spec, body=self.job.body, image=image)

    def planned(self, endpoint: str, *, cut_off: bool = False) -> Job:
        """The job as a planner sees it; `cut_off`: this side may reach no master at all."""
        metadata = self.body["metadata"]
        return Job(
            name=self.owner.name,
            uid=self.owner.uid,
            generation=self.generation,
            spec=self.spec,
            status=self._planned_status(),
            history=self.history,
            refused=self.refused,
            stopping=self.deleted,
            held=self.held,
            deleted_at=_unix(metadata.get("deletionTimestamp")),
            first_seen_at=self.first_seen_at,
            cut_off=cut_off,
            unreachable=self.reach.unreachable,
            master_endpoint=endpoint,
        )

    def refusal(self, fence: Fence | None) -> str:
        """Why a message of a master is not acted on; empty: it is, and its sender is known now."""
        refusal = self.master.refusal(fence)
        if not refusal:
            self.master = self.master.heard(fence)
        return refusal

    def _planned_status(self) -> Mapping[str, Any]:
        if self.conditions is None or "completionTime" in self.status:
            return self.status
        return {**self.status, "conditions": self.conditions}

    def hear(self, said: Said | None, now: float) -> None:
        """Take in what the master said; None: the stream to it has ended."""
        if said is None:
            self.view = self.view.disconnected(now)
            if self.met_at is None:  # it was started again, and shows that before the stream does
                self.view = self.view.met("")
            return
        begins = not self.view.connected
        self.view = self.view.hear(said, now=now, generation=self.spec_sent)
        if begins:
            self.view = self.view.met(self._newest_master())

    def _newest_master(self) -> str:
        """Uid of the pod behind the master's address; empty: it was not seen yet."""
        masters = [pod for pod in self.pods() if pod.slot.role is Role.MASTER and not pod.deleting]
        newest = max(masters, key=lambda pod: pod.incarnation, default=None)
        return "" if newest is None else newest.uid

    def master_address(self) -> str:
        """host:port of its newest master, of one that stays if there is any; empty: none has one.

        One that is being deleted may still have a state to save.
        """
        masters = [pod for pod in self.pods() if pod.slot.role is Role.MASTER]
        newest = max(masters, key=lambda pod: (not pod.deleting, pod.incarnation), default=None)
        if newest is None or not newest.address:
            return ""
        host = f"[{newest.address}]" if ":" in newest.address else newest.address
        return f"{host}:{self.spec.master_port}"

    @property
    def met_at(self) -> str | None:
        """The node of a master that was reached once and should be there; None: there is none."""
        if not self.view.speaker:
            return None
        spoke = (pod for pod in self.pods() if pod.uid == self.view.speaker and pod.serving)
        return next((pod.node for pod in spoke), None)

    def in_doubt(self) -> Iterable[str]:
        """Nodes that may be gone: that of a master that was reached once and is not any more."""
        node = None if self.view.connected else self.met_at
        return () if node is None else (node,)

    def finds(self, reach: Reach) -> None:
        """Take in which nodes answer nothing, and tell the master of the workers there."""
        changed = reach.unreachable ^ self.reach.unreachable
        self.reach = reach
        for pod in self.pods():
            if pod.node in changed and pod.slot.role is Role.WORKER and self.link is not None:
                self.link.send(self.observation(pod))

    def observation(self, pod: PodRecord, *, gone: bool = False) -> PodObservation:
        """A worker's pod as the master hears of it; `gone`: it does not exist any more.

        One that never answered is not called unreachable: it may be new on a node that is back.
        """
        silent = pod.node in self.reach.unreachable and pod.uid in self.reach.answered
        return pod.observation(
            wanted=pod.uid in self.deletions,
            unreachable=silent,
            phase=PodPhase.GONE if gone else None,
        )

    def first_messages(self) -> Iterable[Upward]:
        """What a new stream to the master begins with."""
        self.spec_sent = self.generation
        yield master_spec(self.spec, self.generation)
        # A list has them by name, 10 before 9: of one place the older is to be heard first, or its
        # end would be taken for its successor's.
        for pod in sorted(self.pods(), key=lambda pod: (pod.slot, pod.incarnation)):
            if pod.slot.role is Role.WORKER:
                yield self.observation(pod)
        yield PodListDone()
        if self.stop is not None:
            yield self.stop

    def ask_to_stop(self, wish: StopWish) -> None:
        """Ask the master to end the job; a master that comes later is asked too."""
        if self.stop is None:
            self.stop = wish
            if self.link is not None:
                self.link.send(wish)

    def send_news(self) -> None:
        """Tell the master of a spec that it does not know yet."""
        if self.link is not None and self.spec_sent and self.spec_sent != self.generation:
            self.spec_sent = self.generation
            self.link.send(master_spec(self.spec, self.generation))


def by_force(uid: str) -> str:
    """What is expected of a deletion without a grace, which may follow one that had one."""
    return f"{uid} by force"


def _unix(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
