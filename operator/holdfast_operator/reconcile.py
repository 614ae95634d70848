"""One look at one job: gather, plan, apply, write the status. Level-triggered."""

from __future__ import annotations

import datetime as dt
import http
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.apply import INVALID_TEMPLATE, Applier, without_notes
from holdfast_operator.belongings import Belongings
from holdfast_operator.build.names import Owner
from holdfast_operator.crd import load_crd
from holdfast_operator.credentials import JobCredentials
from holdfast_operator.job_keeper import JobKeeper, Key
from holdfast_operator.known_jobs import KnownJobs
from holdfast_operator.kube import paths
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.failures import RefusedError, TakenError
from holdfast_operator.kube.pods import PodRecord
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.master_link import MasterLink
from holdfast_operator.news.happenings import from_master, notice, transitions
from holdfast_operator.news.report import Reporter
from holdfast_operator.plan.actions import Action, CreatePod, Hold, Plan, in_steps
from holdfast_operator.plan.decide import plan
from holdfast_operator.plan.history import SETTLED_S
from holdfast_operator.plan.masters import KnownMaster
from holdfast_operator.plan.pods import MASTER_SLOT, ObservedPod, Role
from holdfast_operator.plan.reach import Reach
from holdfast_operator.plan.refusals import FIRST_WAIT_S
from holdfast_operator.plan.silence import cut_off
from holdfast_operator.plan.view import Said
from holdfast_operator.revisions import Revisions
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.sounding import Sounding
from holdfast_operator.spec import from_object, not_supported
from holdfast_wire.messages import FinishDecision, JobEvent

_log = logging.getLogger(__name__)
MANAGED_BY: Final = "holdfast.dev/controller"
NOT_SUPPORTED: Final = "NotSupported"
"""Reason of a job that asks for a feature that this version does not have."""


class Reconciler:
    """Looks after all jobs of this operator."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: KubeClient,
        pods: PodReflector,
        reporter: Reporter,
        root_key: bytes,
        wake: Callable[[Key], None],
    ) -> None:
        self._settings = settings
        self._client = client
        self._crd = load_crd()
        lifetime_s = settings.certificate_days * 86_400
        self._belongings = Belongings(client, min(settings.resync_s, lifetime_s / 10))
        self._revisions = Revisions(client, settings.image)
        self._applier = Applier(client, self._belongings, settings.image)
        self._pods = pods
        self._reporter = reporter
        self._root_key = root_key
        self._wake = wake
        self._jobs = KnownJobs()
        self._keepers: dict[Key, JobKeeper] = {}

    def seen(self, key: Key, body: Mapping[str, Any], gone: bool) -> None:  # noqa: FBT001 - as below
        """Take note of a job's newest object, or that this one is gone."""
        if gone:
            self._jobs.drop(key, body["metadata"]["uid"])
        else:
            self._jobs.take(key, body)
        self._wake(key)

    def pod_changed(self, pod: PodRecord, gone: bool) -> None:  # noqa: FBT001 - the reflector's way
        """Tell the job's master of a pod at once, and look at the job."""
        self._wake(pod.key)
        keeper = self._keepers.get(pod.key)
        if keeper is None or pod.owner != keeper.owner.uid:
            return  # an earlier job's, or a copy with its labels: no word about this job's worker
        if keeper.link is not None and pod.slot.role is Role.WORKER:
            keeper.link.send(keeper.observation(pod, gone=gone))
        keeper.shows(pod, gone=gone)
        if keeper.sounding is not None:
            keeper.sounding.look()

    async def look(self, key: Key) -> float | None:
        """Look at one job; return after how many seconds to look again, None: no need.

        Raises:
            KubeError: something could not be done now.
        """
        if len(self._jobs.uids(key)) > 1:
            await self._ask(key)
        body = self._jobs.newest(key)
        keeper = self._keepers.get(key)
        if keeper is not None and (body is None or body["metadata"]["uid"] != keeper.owner.uid):
            await self._forget(keeper)
            keeper = None
        if body is None or body["spec"]["managedBy"] != MANAGED_BY:
            return None
        if keeper is None:
            keeper = self._keepers[key] = self._keep(body)
        keeper.update(body)
        keeper.give_up_expecting(time.monotonic())
        if self._is_silent(keeper) and await self._ask(key) != keeper.owner.uid:
            return None
        try:
            return await self._carry_out(keeper)
        except RefusedError as error:
            if error.is_gone and await self._ask(key) != keeper.owner.uid:
                return None
            raise

    def _is_silent(self, keeper: JobKeeper) -> bool:
        """Whether no request would show for long that a job is gone: a suspended one has no pods.

        Of the others the pods go too, and those that follow ask for the job.
        """
        now = time.monotonic()
        if keeper.link is None or keeper.pods() or now < keeper.sure_at + self._settings.resync_s:
            return False
        keeper.sure_at = now
        return True

    async def _ask(self, key: Key) -> str:
        """Forget what has gone without a word from the watch.

        Returns:
            Uid of the object that has the name; empty: there is none.
        """
        known = self._jobs.uids(key)  # before the request: what comes meanwhile is newer
        try:
            found = await self._client.call(
                "GET", paths.job(Owner(name=key[1], namespace=key[0], uid=""))
            )
        except RefusedError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            uid = ""
        else:
            uid = str(found["metadata"]["uid"])
        for gone in known - {uid}:
            _log.info("job %s: its object %s is gone", key, gone)
            self._jobs.drop(key, gone)
            self._wake(key)
        return uid

    def round(self, key: Key) -> int | None:
        """The newest round that the master of a job has told of; None: none yet."""
        keeper = self._keepers.get(key)
        said = None if keeper is None else keeper.view.status
        return None if said is None else said.round

    async def close(self) -> None:
        """End every stream; nothing in the cluster changes."""
        for keeper in list(self._keepers.values()):
            await self._forget(keeper)

    async def _carry_out(self, keeper: JobKeeper) -> float | None:
        ended = "completionTime" in keeper.status
        waits: list[float | None] = [self._settings.resync_s]
        goes_on = not ended and not keeper.deleted
        if goes_on and keeper.may_begin(time.time()):
            await self._prepare(keeper)
        if ended or keeper.prepared or keeper.deleted:
            await self._connect(keeper, ended=ended)
        if goes_on and keeper.prepared:
            await self._belongings.keep_budget(keeper)
            waits.append(await self._belongings.look_after(keeper, time.time()))
        made = self._plan(keeper)
        waits += await self._act(keeper, made.actions)
        waits += [made.requeue_after, await self._write_status(keeper, dict(made.status))]
        keeper.send_news()
        return min(one for one in waits if one is not None)

    async def _act(self, keeper: JobKeeper, actions: Sequence[Action]) -> list[float]:
        """Carry out what is not under way yet; return how long to wait for the rest, s."""
        outcome = keeper.view.outcome
        waits: list[float] = []
        due: list[Action] = []
        for action in actions:
            if isinstance(action, CreatePod) and not keeper.prepared:
                continue  # what its pods need is not there yet
            now = time.monotonic()
            wait = keeper.expects(action, now)
            if not wait and keeper.needs_note(action):
                wait = keeper.may_write_in(self._settings.status_period_s, now)
            if wait:
                waits.append(wait)
            else:
                due.append(action)
        refused: set[str] = set()
        for step in in_steps(due):
            if isinstance(step, tuple):
                pods = [one for one in step if one.slot.name not in refused]
                refused |= await self._applier.create(keeper, pods)
            elif isinstance(step, Hold):
                before = keeper.body
                await self._applier.do(keeper, step)
                self._jobs.renew(keeper.key, keeper.body, before)
            else:
                await self._applier.do(keeper, step)
            if keeper.view.outcome is not outcome:  # the API server does not take its pods
                self._wake(keeper.key)
                break
        # Those that were not tried: what was refused waits longer, and does not stand in their way.
        return [*waits, FIRST_WAIT_S] if refused else waits

    async def _prepare(self, keeper: JobKeeper) -> None:
        """Check what the CRD's schema cannot see; then make what the job has all its life.

        What the cluster does not let be made stands in the status, as for a pod.
        """
        if keeper.wanted[0] != keeper.generation and self._refuses(keeper):
            return
        try:
            fault = await self._revisions.settle(keeper)
            if fault:
                said = FinishDecision(succeeded=False, reason=INVALID_TEMPLATE, text=fault)
                keeper.hear(said, time.time())
                return
            if not keeper.prepared:
                await self._belongings.prepare(keeper)
        except TakenError as error:
            if keeper.prepared:
                raise
            keeper.refuse(MASTER_SLOT, str(error), time.time())
        except RefusedError as error:
            if keeper.prepared or not error.is_admission:
                raise
            keeper.refuse(MASTER_SLOT, error.message, time.time())
        else:
            if not keeper.prepared:
                keeper.refused.pop(MASTER_SLOT, None)
                keeper.prepared = True

    def _refuses(self, keeper: JobKeeper) -> bool:
        """Whether a job ends because it asks for what is not there; one with pods is only told."""
        found = not_supported(keeper.body, self._crd)
        if not found:
            return False
        text = "; ".join(map(str, found))
        now = time.time()
        if "templateRevision" in keeper.status:
            self._reporter.tell(keeper.owner, [notice(NOT_SUPPORTED, f"ignored: {text}", now)])
            return False
        keeper.hear(FinishDecision(succeeded=False, reason=NOT_SUPPORTED, text=text), now)
        return True

    def _plan(self, keeper: JobKeeper) -> Plan:
        now = time.time()
        pods = [_observed(pod, keeper, now) for pod in keeper.pods()]
        endpoint = keeper.source(self._settings.image).master
        alone = keeper.view.silent_since is not None and self._reaches_nobody()
        made = plan(keeper.planned(endpoint, cut_off=alone), pods, keeper.view, now)
        keeper.history, keeper.conditions = made.history, made.status.get("conditions")
        return made

    def _reaches_nobody(self) -> bool:
        keepers = self._keepers.values()
        nodes = (keeper.met_at for keeper in keepers)
        return cut_off(
            (keeper.view.connected for keeper in keepers), (one for one in nodes if one is not None)
        )

    async def _write_status(self, keeper: JobKeeper, status: dict[str, Any]) -> float | None:
        status = without_notes(status)  # an ended job's is made from the last one
        period_s, now = self._settings.status_period_s, time.monotonic()
        wait = max(keeper.may_write_in(period_s, now), keeper.holds_back(period_s, now))
        if status == without_notes(keeper.status):
            return None
        if wait:
            return wait
        news = transitions(keeper.status, status, time.time())
        await self._applier.write_status(keeper, status)
        self._reporter.tell(keeper.owner, news)
        return None

    def _keep(self, body: Mapping[str, Any]) -> JobKeeper:
        metadata = body["metadata"]
        owner = Owner(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
        lifetime = dt.timedelta(days=self._settings.certificate_days)
        return JobKeeper(
            owner=owner,
            job=from_object(body),
            body=body,
            status=body.get("status") or {},
            credentials=JobCredentials(self._root_key, owner, lifetime),
            pods_now=self._pods.of,
            master=_master_before(body.get("status") or {}),
            sure_at=time.monotonic(),
            first_seen_at=time.time(),
        )

    async def _connect(self, keeper: JobKeeper, *, ended: bool) -> None:
        if ended:
            await self._disconnect(keeper)
        if ended or keeper.link is not None:
            return

        def heard(said: Said | None) -> None:
            keeper.hear(said, time.time())
            if said is None:
                sounding.look()
            elif keeper.view.speaker:
                sounding.met(keeper.view.speaker)
            self._wake(keeper.key)

        def found(reach: Reach) -> None:
            keeper.finds(reach)
            self._wake(keeper.key)

        def told(events: Sequence[JobEvent]) -> None:
            self._reporter.tell(keeper.owner, [from_master(event) for event in events])

        sounding = keeper.sounding = Sounding(
            name="/".join(keeper.key),
            port=keeper.spec.master_port,
            own_node=self._settings.node_name,
            places=lambda: [pod.place for pod in keeper.pods()],
            suspects=keeper.in_doubt,
            found=found,
        )
        sounding.begin()
        keeper.link = MasterLink(
            where=keeper.master_address,
            job_uid=keeper.owner.uid,
            tls=keeper.credentials.operator_folder,
            first=keeper.first_messages,
            heard=heard,
            told=told,
            refusal=keeper.refusal,
        )

    async def _forget(self, keeper: JobKeeper) -> None:
        self._keepers.pop(keeper.key, None)
        self._reporter.forget(keeper.owner)
        await self._disconnect(keeper)
        keeper.credentials.close()

    async def _disconnect(self, keeper: JobKeeper) -> None:
        if keeper.link is not None:
            await keeper.link.close()
        if keeper.sounding is not None:
            await keeper.sounding.close()
        keeper.link = keeper.sounding = None


def _master_before(status: Mapping[str, Any]) -> KnownMaster:
    """The newest master that an operator before this one heard."""
    return KnownMaster(epoch=int((status.get("world") or {}).get("epoch", 0)))


def _observed(pod: PodRecord, keeper: JobKeeper, now: float) -> ObservedPod:
    """A pod as a planner sees it: a master proves itself by its stream, others by staying."""
    if pod.slot.role is Role.MASTER:
        return pod.observed(ready=keeper.view.connected and pod.ready, proven=True)
    return pod.observed(ready=pod.ready, proven=now - pod.created_at >= SETTLED_S)
