"""What the operator knows of one job between two looks at it: its object, memory, master's word.

Touches nothing outside; `reconcile` reads the cluster and writes to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast_operator.build.names import Owner
from holdfast_operator.build.pod import PodSource
from holdfast_operator.credentials import JobCredentials
from holdfast_operator.kube.pods import PodRecord
from holdfast_operator.master_link import MasterLink, Upward
from holdfast_operator.master_spec import master_spec
from holdfast_operator.plan.history import History
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.situation import Job
from holdfast_operator.plan.view import MasterView, Said
from holdfast_operator.spec import ElasticJob, from_object
from holdfast_wire.messages import PodListDone

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
    pods_now: Callable[[Key], Iterable[PodRecord]]
    view: MasterView = dataclasses.field(default_factory=MasterView)
    history: History = dataclasses.field(default_factory=dict)
    link: MasterLink | None = None
    prepared: bool = False
    """Its Secrets and Services were made or found by this process."""
    certified: set[int] = dataclasses.field(default_factory=set)
    """Ranks that have a key pair in their Secret."""
    spec_sent: int = 0
    """Generation that the master was told last."""
    deletions: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods that this side has deleted."""
    written_at: float = 0.0
    """Monotonic time of the last write of the status."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.owner.namespace, self.owner.name

    @property
    def generation(self) -> int:
        """Of the spec."""
        return int(self.body["metadata"]["generation"])

    def pods(self) -> list[PodRecord]:
        """Its own pods; those of an earlier job of the name are not."""
        return [pod for pod in self.pods_now(self.key) if pod.owner == self.owner.uid]

    def update(self, body: Mapping[str, Any]) -> None:
        """Take in a newer object."""
        self.body = body
        self.job = from_object(body)

    def source(self, image: str) -> PodSource:
        """What its pods are made from."""
        return PodSource(owner=self.owner, spec=self.job.spec, body=self.job.body, image=image)

    def planned(self, endpoint: str) -> Job:
        """The job as a planner sees it."""
        return Job(
            name=self.owner.name,
            uid=self.owner.uid,
            generation=self.generation,
            spec=self.job.spec,
            status=self.status,
            history=self.history,
            stopping="deletionTimestamp" in self.body["metadata"],
            master_endpoint=endpoint,
        )

    def hear(self, said: Said | None, now: float) -> None:
        """Take in what the master said; None: the stream to it has ended."""
        if said is None:
            self.view = self.view.disconnected()
        else:
            self.view = self.view.hear(said, now=now, generation=self.spec_sent)

    def first_messages(self) -> Iterable[Upward]:
        """What a new stream to the master begins with."""
        self.spec_sent = self.generation
        yield master_spec(self.job.spec, self.generation)
        for pod in self.pods():
            if pod.slot.role is Role.WORKER:
                yield pod.observation(wanted=pod.uid in self.deletions)
        yield PodListDone()

    def send_news(self) -> None:
        """Tell the master of a spec that it does not know yet."""
        if self.link is not None and self.spec_sent and self.spec_sent != self.generation:
            self.spec_sent = self.generation
            self.link.send(master_spec(self.job.spec, self.generation))
