"""One look at one job: gather, plan, apply, write the status. Level-triggered."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.apply import INVALID_TEMPLATE, Applier, without_notes
from holdfast_operator.crd import load_crd
from holdfast_operator.credentials import JobCredentials
from holdfast_operator.events.news import NODE_AVOIDED, NewsItem, from_master, notice, transitions
from holdfast_operator.events.recorder import Reporter
from holdfast_operator.gangs import Gangs
from holdfast_operator.job_cache import JobCache, SeenJob, same_version
from holdfast_operator.job_queues import JobQueues
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, TakenError
from holdfast_operator.kube.namespaces import WatchedNamespaces
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.master_link import Downward, MasterLink
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.nodes.probe import NodeProbe
from holdfast_operator.nodes.reachability import NodeReachability
from holdfast_operator.nodes.strikes import ExcludedNode, of_job
from holdfast_operator.owned_resources import OwnedResources
from holdfast_operator.plan.actions import Action, CreatePod, Plan, in_steps
from holdfast_operator.plan.history import FIRST_REFUSAL_SECONDS, SETTLED_SECONDS
from holdfast_operator.plan.lost import cut_off
from holdfast_operator.plan.pods import MASTER_SLOT, ObservedPod, Role
from holdfast_operator.plan.view import KnownMaster
from holdfast_operator.planner import plan
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.spec import from_object, not_supported
from holdfast_operator.spec.renamed_fields import FIELD_DEPRECATED, deprecations
from holdfast_operator.state.credentials import HeldCredentials
from holdfast_operator.state.job_state import JobState, Key
from holdfast_operator.state.link import Link
from holdfast_operator.state.status import WrittenStatus, decisive
from holdfast_operator.template_revisions import Revisions
from holdfast_wire.channel import operator_channel_options
from holdfast_wire.messages import FinishDecision, StrikesReported
from holdfast_wire.strikes import SUSPECT_FROM

_log = logging.getLogger(__name__)
MANAGED_BY: Final = "holdfast.dev/controller"
NOT_SUPPORTED: Final = "NotSupported"
"""Reason of a job that asks for a feature that this version does not have."""
_PROGRESS_SHARE: Final = 0.5
"""Part of the requests a second that may write the progress of jobs: the others are for news."""
_CHANGED_SECONDS: Final = 0.2
"""Wait after a write that met a newer version of the object, which is known by then."""


def begin_session(
    state: JobState,
    reporter: Reporter,
    wake: Callable[[Key], None],
    own_node: str,
    links: Callable[[], int],
) -> None:
    """Begin to probe a job's nodes and to connect to its master, until its link is closed.

    Args:
        state: The job; its link gets stream and probe.
        reporter: Takes the events of the master.
        wake: Has the job looked at.
        own_node: Node of this process; empty: not known.
        links: Returns the number of jobs that may have a link.
    """

    def found(reach: NodeReachability) -> None:
        state.finds(reach)
        wake(state.key)

    def heard(message: Downward | None) -> None:
        if isinstance(message, StrikesReported):
            strikes = of_job(message.strikes, "/".join(state.key), state.owner.uid)
            state.nodes.history.add(strikes)
            return
        state.receive(message, time.time())
        if message is None:
            probe.probe_now()
        elif state.link.view.speaker:
            probe.met(state.link.view.speaker)
        wake(state.key)

    probe = NodeProbe(
        name="/".join(state.key),
        port=state.spec.master_port,
        own_node=own_node,
        pods=state.pods,
        suspects=state.in_doubt,
        found=found,
    )
    probe.start()
    stream = MasterLink(
        where=state.master_address,
        options=lambda limit: operator_channel_options(state.owner.uid, limit, channels=links()),
        tls=state.credentials.issuer.operator_folder,
        first=state.first_messages,
        heard=heard,
        told=lambda events: reporter.report(state.owner, map(from_master, events)),
        refusal=state.link.refusal,
    )
    state.link.open(stream, probe)


class Reconciler:
    """Reconciles all jobs of this operator."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: KubeClient,
        pods: PodReflector | WatchedNamespaces,
        reporter: Reporter,
        root_key: bytes,
        wake: Callable[[Key], None],
        nodes: ClusterNodes | None = None,
    ) -> None:
        self.queues = JobQueues(client, settings.watch_namespace.scopes, wake)
        """The queues that admit jobs; somebody has to run them."""
        self._settings = settings
        self._client = client
        self._crd = load_crd()
        lifetime_s = settings.certificate_days * 86_400
        check_s = min(settings.resync_s, lifetime_s / 10)
        self._owned = OwnedResources(client, check_s, settings.job_ingress.rules)
        self._gangs = Gangs(client)
        self._revisions = Revisions(client, settings)
        self._applier = Applier(client, self._owned, settings)
        self._pods = pods
        self._reporter = reporter
        self._root_key = root_key
        self._wake = wake
        self._nodes = nodes or ClusterNodes(NodeHistory(client, settings))
        self._jobs = JobCache()
        self._states: dict[Key, JobState] = {}

    def seen(self, key: Key, body: Mapping[str, Any], gone: bool) -> None:  # noqa: FBT001 - as below
        """Note a job's newest object, or that this object is gone."""
        if gone:
            self._jobs.delete(key, body["metadata"]["uid"])
        elif not self._jobs.add(key, body):
            return
        self._wake(key)

    def jobs(self) -> list[SeenJob]:
        """Return each job as its status shows it."""
        return self._jobs.seen()

    def pod_changed(self, pod: PodRecord, gone: bool) -> None:  # noqa: FBT001 - the reflector's way
        """Tell the job's master of a pod at once, and look at the job."""
        self._wake(pod.key)
        state = self._states.get(pod.key)
        if state is None or pod.owner != state.owner.uid:
            return  # an earlier job's, or a copy with its labels: not this job's worker
        if pod.slot.role is Role.WORKER:
            state.link.send(state.observation(pod, gone=gone))
        state.shows(pod, gone=gone)
        state.link.probes(pod, gone=gone)

    def node_noticed(self, node: str) -> None:
        """Tell the masters of a node's workers that its end is announced, or not any more.

        A node may also have fallen silent: pods that wait for it are made anew.
        """
        for key, state in self._states.items():
            state.noticed(node)
            if any(pod.node == node for pod in state.pods()):
                self._wake(key)

    def nodes_struck(self, nodes: Collection[str]) -> None:
        """Look at the jobs on nodes that something new speaks against: their masters are told."""
        for key, state in self._states.items():
            if any(pod.node in nodes for pod in state.pods()):
                self._wake(key)

    def leave(self, namespace: str) -> None:
        """Forget the jobs of a namespace that is not watched any more; the cluster stays."""
        kept = [one for one in self._states if one[0] == namespace]
        for key in {*kept, *self._jobs.clear(namespace)}:
            self._wake(key)

    async def look(self, key: Key) -> float | None:
        """Look at one job; return the seconds until the next look, None: none is needed.

        Raises:
            KubeError: Something could not be done now.
        """
        if len(self._jobs.bodies(key)) > 1:
            await self._ask(key)
        body = self._jobs.newest(key)
        state = self._states.get(key)
        if state is not None and (body is None or body["metadata"]["uid"] != state.owner.uid):
            await self._forget(state)
            state = None
        if body is None or body["spec"]["managedBy"] != MANAGED_BY:
            return None
        if state is None:
            state = self._states[key] = self._keep(body)
        state.update(body)
        state.expectations.expire(time.monotonic())
        if self._is_silent(state) and await self._ask(key) != state.owner.uid:
            return None
        try:
            return await self._carry_out(state)
        except ApiRefusedError as error:
            if error.is_gone and await self._ask(key) != state.owner.uid:
                return None
            newest = self._jobs.newest(key)
            if not error.is_outdated or newest is None or same_version(newest, state.body):
                raise  # another kind of conflict: a webhook's, for example
            _log.info("job %s: %s", key, error)
            return _CHANGED_SECONDS

    def _is_silent(self, state: JobState) -> bool:
        """Return True if a gone job would stay unnoticed for long: a suspended job has no pods.

        Other jobs' pods go too, and making their successors asks for the job.
        """
        now = time.monotonic()
        sure = now < state.sure_at + self._settings.resync_s
        if state.link.stream is None or state.pods() or sure:
            return False
        state.is_there(now)
        return True

    async def _ask(self, key: Key) -> str:
        """Forget jobs that are gone without an event of the watch.

        Returns:
            Uid of the object with the name; empty: there is none.
        """
        known = self._jobs.bodies(key)  # before the request: objects that come meanwhile are newer
        found = await self._client.find(Owner(name=key[1], namespace=key[0], uid="").path)
        uid = "" if found is None else str(found["metadata"]["uid"])
        if found is not None:
            if uid in known:
                self._jobs.update(key, found, known[uid])
            state = self._states.get(key)
            if state is not None and state.owner.uid == uid:
                # A write may have come to the API server whose answer was lost, or was not ours.
                state.status.written(found.get("status") or {})
                if not same_version(found, state.body):
                    self._wake(key)  # the event of this version is no news any more
        for gone in known.keys() - {uid}:
            _log.info("job %s: its object %s is gone", key, gone)
            self._jobs.delete(key, gone)
            self._wake(key)
        return uid

    def round(self, key: Key) -> int | None:
        """Return the newest round that the job's master has reported; None: none yet."""
        state = self._states.get(key)
        status = None if state is None else state.link.view.status
        return None if status is None else status.round

    async def close(self) -> None:
        """End every stream; the cluster does not change."""
        for state in list(self._states.values()):
            await self._forget(state)

    async def _carry_out(self, state: JobState) -> float | None:
        before = state.body
        try:
            return await self._work_on(state)
        finally:
            self._jobs.update(state.key, state.body, before)

    async def _work_on(self, state: JobState) -> float | None:
        ended = state.status.ended
        waits: list[float | None] = [self._settings.resync_s]
        goes_on = not ended and not state.deleted
        if goes_on and state.may_begin(time.time()):
            await self._prepare(state)
        # After that: a queue counts the templates in force.
        waits.append(await self.queues.settle(state, self._settings))
        if ended or state.credentials.prepared or state.deleted:
            if ended:
                await state.link.close()
            elif state.link.stream is None:
                own_node = self._settings.node_name
                begin_session(state, self._reporter, self._wake, own_node, self._going)
        if goes_on and state.credentials.prepared:
            waits.append(await self._gangs.settle(state))
            await self._owned.keep_budget(state)
            waits.append(await self._owned.resync(state, time.time()))
        made = self._plan(state)
        waits += await self._act(state, made.actions)
        waits += [made.requeue_after, await self._write_status(state, dict(made.status))]
        state.send_news()
        return min(one for one in waits if one is not None)

    async def _act(self, state: JobState, actions: Sequence[Action]) -> list[float]:
        """Carry out actions that are not under way; return the seconds to wait for the others."""
        outcome = state.link.view.outcome
        waits: list[float] = []
        due: list[Action] = []
        for action in actions:
            unprepared = state.grouping.blocked or not state.credentials.prepared
            if isinstance(action, CreatePod) and unprepared:
                continue  # objects that its pods need are not there yet
            now = time.monotonic()
            wait = state.expectations.wait(action, now)
            if not wait and state.needs_note(action) and state.status.masters:
                wait = state.status.may_write_in(self._settings.status_period_s, now)
            if wait:
                waits.append(wait)
            else:
                due.append(action)
        refused: set[str] = set()
        for step in in_steps(due):
            if isinstance(step, tuple):
                pods = [one for one in step if one.slot.name not in refused]
                refused |= await self._applier.create(state, pods)
            else:
                await self._applier.do(state, step)
            if state.link.view.outcome is not outcome:  # the API server refuses its pods
                self._wake(state.key)
                break
        # Actions that were not tried: a refused one waits longer, and must not block them.
        return [*waits, FIRST_REFUSAL_SECONDS] if refused else waits

    async def _prepare(self, state: JobState) -> None:
        """Check what the CRD's schema cannot see; then make the objects that the job always has.

        A refusal of the cluster stands in the status, as for a pod.
        """
        if not state.templates.checked(state.generation) and self._refuses(state):
            return
        prepared = state.credentials.prepared
        try:
            fault = await self._revisions.settle(state)
            if fault:
                end = FinishDecision(succeeded=False, reason=INVALID_TEMPLATE, text=fault)
                state.receive(end, time.time())
                return
            if not prepared:
                await self._owned.prepare(state)
        except TakenError as error:
            if prepared:
                raise
            state.refuse(MASTER_SLOT, str(error), time.time())
        except ApiRefusedError as error:
            if prepared or not error.is_admission:
                raise
            state.refuse(MASTER_SLOT, error.message, time.time())
        else:
            if not prepared:
                state.accept(MASTER_SLOT)
                state.credentials.are_prepared()

    def _refuses(self, state: JobState) -> bool:
        """End a job that asks for missing features and return True; with pods it gets a notice.

        Deprecated fields are named in events, once per generation and operator.
        """
        now = time.time()
        old = [notice(FIELD_DEPRECATED, text, now) for text in deprecations(state.body)]
        self._reporter.report(state.owner, old)
        found = not_supported(state.body, self._crd)
        if not found:
            return False
        text = "; ".join(map(str, found))
        if "templateRevision" in state.status.fields:
            self._reporter.report(state.owner, [notice(NOT_SUPPORTED, f"ignored: {text}", now)])
            return False
        state.receive(FinishDecision(succeeded=False, reason=NOT_SUPPORTED, text=text), now)
        return True

    def _plan(self, state: JobState) -> Plan:
        now = time.time()
        state.watch_room(now)
        pods = [_observed(pod, state, now) for pod in state.pods()]
        endpoint = state.source(self._settings).master
        alone = state.link.view.silent_since is not None and self._reaches_nobody()
        made = plan(state.planned(endpoint, cut_off=alone), pods, state.link.view, now)
        state.planned_as(made)
        if any(isinstance(action, CreatePod) for action in made.actions):
            news = [_avoidance(one, now) for one in state.avoids_anew()]
            self._reporter.report(state.owner, news)
        return made

    def _reaches_nobody(self) -> bool:
        states = self._states.values()
        nodes = (state.met_at for state in states)
        return cut_off(
            (state.link.view.connected for state in states),
            (one for one in nodes if one is not None),
        )

    async def _write_status(self, state: JobState, status: dict[str, Any]) -> float | None:
        status = without_notes(status)  # an ended job's status is made from the last one
        period_s, now = self._settings.status_period_s, time.monotonic()
        held_back = state.status.holds_back(state.pods(), period_s, now)
        wait = max(state.status.may_write_in(period_s, now), held_back)
        if status == without_notes(state.status.fields):
            return None
        if wait:
            return wait
        news = transitions(state.status.fields, status, time.time())
        before = decisive(state.status.fields)
        await self._applier.write_status(state, status)
        self._reporter.report(state.owner, news)
        # The event of this write is no news: what follows from it, as a clean-up, is done now.
        return 0.0 if decisive(state.status.fields) != before else None

    def _keep(self, body: Mapping[str, Any]) -> JobState:
        metadata = body["metadata"]
        owner = Owner(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
        lifetime = dt.timedelta(days=self._settings.certificate_days)
        status = body.get("status") or {}
        return JobState(
            owner=owner,
            job=from_object(body),
            body=body,
            pods_now=self._pods.of,
            progress_seconds=self._progress_seconds,
            nodes=self._nodes,
            credentials=HeldCredentials(JobCredentials(self._root_key, owner, lifetime)),
            status=WrittenStatus(status),
            revision=WrittenStatus(status).admission,
            # The newest master that an operator before this one heard.
            link=Link(known=KnownMaster(epoch=int((status.get("world") or {}).get("epoch", 0)))),
            sure_at=time.monotonic(),
            first_seen_at=time.time(),
        )

    def _going(self) -> int:
        return self._jobs.going

    def _progress_seconds(self) -> float:
        """Return the time between two reports of one job's progress; 0: as its master likes.

        Each is written to a status, and all of them may not take more than their share.
        """
        seconds = self._jobs.going / (self._settings.api_rate * _PROGRESS_SHARE)
        return seconds if seconds > self._settings.status_period_s else 0.0

    async def _forget(self, state: JobState) -> None:
        self._states.pop(state.key, None)
        self._reporter.forget(state.owner)
        await state.link.close()
        state.credentials.issuer.close()


def _avoidance(node: ExcludedNode, now: float) -> NewsItem:
    text = f"new pods avoid {node.host} until its points are below {SUSPECT_FROM:g}: {node.reason}"
    return notice(NODE_AVOIDED, text, now)


def _observed(pod: PodRecord, state: JobState, now: float) -> ObservedPod:
    """Return a pod for the planner: a master proves itself by its stream, others by staying."""
    ready, proven = pod.ready, pod.proven
    if pod.slot.role is Role.MASTER:
        ready = state.link.view.connected and ready
    else:
        proven = now - pod.created_at >= SETTLED_SECONDS
    if (ready, proven) == (pod.ready, pod.proven):
        return pod  # almost always, and a copy is a third of a plan's time
    return dataclasses.replace(pod, ready=ready, proven=proven)
