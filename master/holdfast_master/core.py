"""The pure core of the job master: dispatches inputs and deadlines, and serves views of the job.

Decisions stand in `policies` and `job`. No clock, I/O, logging or randomness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from holdfast_master import inputs
from holdfast_master.instructions import JOURNAL_FORMAT, Instruction, StepDown
from holdfast_master.job import reconcile
from holdfast_master.job.checkpoints import interval, on_demand
from holdfast_master.job.data import shards
from holdfast_master.job.health import hangs, health_view, preflight, samples
from holdfast_master.job.incidents import goodput_marks, incidents, strikes
from holdfast_master.job.nodes import liveness, pods
from holdfast_master.job.requests import (
    agent_messages,
    figures,
    job_end,
    operator_messages,
    replica_views,
    user_requests,
    views,
)
from holdfast_master.job.requests.figures import JobFigures
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.timers import Subject, Timer
from holdfast_master.job.takeover import adoption, from_journal, hello
from holdfast_master.job.worlds import rounds, start
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason


class Core:
    """The job master's decisions. Deterministic: the same inputs give the same instructions.

    The shell's order: `Core(...)`, with the records of a journal that exists; then once
    `open(now)`; then `handle` for each input and a `Ticked` when `next_deadline` has come. After
    each call it carries out the returned batch as `instructions` says. After a stall it hands in
    `Stalled` first, then everything that has arrived meanwhile, and only then `Ticked`.
    """

    def __init__(
        self,
        identity: CoreIdentity,
        settings: CoreSettings,
        records: Iterable[wire.JournalRecord] = (),
    ) -> None:
        """Its state is the fold of the records of all earlier segments."""
        state = JobState(event_limit=settings.event_limit, incident_limit=settings.incident_limit)
        for record in records:
            apply(state, record)
        self.job = JobContext(identity, settings, state)
        """For reading: it lives on with each input."""

    def open(self, now: inputs.Moment) -> list[Instruction]:
        """The first batch: opens the journal's segment of this epoch, starts the clocks."""
        job = self.job
        restored = job.state.sequence > 0
        job.clock.open(now, job.state.job_seconds)
        identity = job.identity
        head = wire.SegmentOpened(format=JOURNAL_FORMAT, **dataclasses.asdict(identity))
        job.out.record(head, durable=True)
        if restored:
            text = f"epoch {identity.epoch} goes on from round {job.state.round}"
            job.out.event(EventReason.MASTER_RESTORED, text)
            from_journal.take_up(job)
        else:
            job.out.event(EventReason.MASTER_STARTED, f"epoch {identity.epoch} begins")
        if identity.epoch > 1 and not job.state.round and job.state.phase is wire.JobPhase.WAITING:
            # A journal without a world may be of one that had lost another, and was still asking.
            adoption.expect(job)
        job.timers.set(Timer.MARK, job.now + job.settings.goodput_mark_seconds)
        reconcile.steer(job)
        return job.out.finish()

    def handle(self, event: inputs.Input, now: inputs.Moment) -> list[Instruction]:
        """Take one input; `now.mono` never goes back. The returned batch is carried out whole."""
        job = self.job
        job.clock.moment = now
        job.changes.begin()
        if not job.stepped_down:
            _INPUTS[type(event)](job, event)
            reconcile.steer(job)
        return job.out.finish()

    def next_deadline(self) -> float | None:
        """Monotonic time at which a Ticked is due; None: nothing is waited for."""
        if self.job.stepped_down:
            return None
        due = self.job.timers.next()
        return None if due is None else due + self.job.clock.stalled

    def reasons(self) -> tuple[str, ...]:
        """Return why the newest call looked at the decisions again; empty: it did not."""
        return tuple(self.job.changes.batch)

    def status(self, now: inputs.Moment) -> wire.JobStatus:
        """The whole small truth, for JobService and the operator."""
        self.job.clock.moment = now
        return views.status(self.job)

    def replicas(self, now: inputs.Moment) -> tuple[wire.ReplicaInfo, ...]:
        """Every replica of the world whose processes run, by number."""
        self.job.clock.moment = now
        return replica_views.listed(self.job)

    def nodes(self, now: inputs.Moment) -> tuple[wire.NodeInfo, ...]:
        """Every known or expected node, in node rank order."""
        self.job.clock.moment = now
        return views.nodes(self.job)

    def history(self, now: inputs.Moment) -> tuple[wire.HostHistory, ...]:
        """Hosts that something spoke against, the worst first."""
        self.job.clock.moment = now
        return strikes.history(self.job)

    def events_after(self, sequence: int, limit: int) -> tuple[wire.JobEvent, ...]:
        """Events after this sequence, oldest first, at most `limit`."""
        return views.events_after(self.job.state, sequence, limit)

    def newest_event(self) -> int:
        """Sequence of the newest event; 0: none yet."""
        return self.job.state.event_sequence

    def goodput(self, now: inputs.Moment) -> wire.GetGoodputResponse:
        """Node-seconds by class, whole and by node, and every incident with its cost."""
        self.job.clock.moment = now
        return views.goodput(self.job)

    def incidents(self, now: inputs.Moment) -> tuple[wire.Incident, ...]:
        """Every incident that is remembered, oldest first."""
        self.job.clock.moment = now
        return views.listed_incidents(self.job)

    def health(self, now: inputs.Moment) -> wire.GetHealthResponse:
        """The ranks of the running world, who is slow, and the hang that holds."""
        self.job.clock.moment = now
        return health_view.health(self.job)

    def figures(self, now: inputs.Moment) -> JobFigures:
        """The job's figures for its metrics."""
        self.job.clock.moment = now
        return figures.figures(self.job)

    def spec(self) -> wire.MasterSpec | None:
        """The spec in force; None: none has come yet."""
        return self.job.state.spec


# ---------------------------------------------------------------------------------------- inputs


def _superseded(job: JobContext, fence: wire.Fence | None) -> bool:
    """Whether the sender has heard of a newer master: then this one steps down."""
    identity = job.identity
    if fence is None or fence.epoch < identity.epoch:
        return False
    if fence.epoch == identity.epoch and fence.incarnation in {"", identity.incarnation}:
        return False
    text = f"a master of epoch {fence.epoch} exists, this one has epoch {identity.epoch}"
    job.out.warn(EventReason.MASTER_SUPERSEDED, text)
    job.out.put(StepDown(text))
    job.stepped_down = True
    return True


def _connected(job: JobContext, event: inputs.Connected) -> None:
    if not _superseded(job, event.fence):
        hello.connected(job, event)


def _received(job: JobContext, event: inputs.Received) -> None:
    if _superseded(job, event.fence):
        return
    node = job.membership.by_session(event.session)
    if node is not None:
        agent_messages.received(job, node, event.fence, event.message)


def _note_operator(job: JobContext, event: inputs.OperatorMessage) -> None:
    match event.message:
        case wire.MasterSpec() as spec:
            is_first = job.state.spec is None
            operator_messages.spec_arrived(job, spec)
            if is_first:
                hello.welcome_again(job)
            else:
                hello.set_policies(job)
        case wire.PodObservation() as pod:
            pods.pod_seen(job, pod)
        case wire.PodListDone():
            pods.pods_listed(job)
        case wire.ScaleResult() as result:
            user_requests.scale_answered(job, result)
        case wire.ClusterStrikes() as strikes:
            job.operator.cluster = strikes
        case wire.StopRequest() as wish:
            operator_messages.stop_requested(job, wish)


def _stalled(job: JobContext, event: inputs.Stalled) -> None:
    job.clock.stalled += max(0.0, event.seconds)
    text = f"this master stood still for {event.seconds:.1f} s; every deadline is put off"
    job.out.warn(EventReason.MASTER_STALLED, text)


def _ticked(job: JobContext, _: inputs.Ticked) -> None:
    for timer, subject in job.timers.pop_due(job.now):
        _DEADLINES[timer](job, subject)
        # What a deadline leads to may change what the next one means.
        reconcile.steer(job)


def _touch(why: Change) -> Callable[[JobContext, Subject], None]:
    """Return the effect of a deadline that only has decisions looked at again."""
    return lambda job, _: job.touch(why)


_INPUTS: dict[type, Callable[[JobContext, Any], None]] = {
    inputs.Connected: _connected,
    inputs.Disconnected: lambda job, event: liveness.disconnected(job, event.session),
    inputs.Received: _received,
    inputs.OperatorConnected: lambda job, _: operator_messages.connected(job),
    inputs.OperatorDisconnected: lambda job, _: operator_messages.disconnected(job),
    inputs.OperatorMessage: _note_operator,
    inputs.UserCall: user_requests.asked,
    inputs.JournalNoted: lambda job, event: job.out.warn(event.reason, event.text),
    inputs.PeerRefused: lambda job, event: job.out.warn(EventReason.PEER_REFUSED, event.text),
    inputs.Ticked: _ticked,
    inputs.Stalled: _stalled,
}

_DEADLINES: dict[Timer, Callable[[JobContext, Any], None]] = {
    Timer.SILENCE: liveness.silence_due,
    Timer.MISSING: agent_messages.missing_due,
    Timer.REJOIN: pods.rejoin_due,
    Timer.UNREACHABLE: pods.unreachable_due,
    Timer.STORE: lambda job, _: rounds.store_due(job),
    Timer.STORE_RETRY: _touch(Change.STORE_RETRY_DUE),
    Timer.BACKOFF: _touch(Change.BACKOFF_DUE),
    Timer.JOIN_WINDOW: _touch(Change.JOIN_WINDOW_DUE),
    Timer.BELOW_MIN: lambda job, _: job_end.below_min_due(job),
    Timer.ADOPT: lambda job, _: adoption.give_up(job),
    Timer.START: lambda job, _: start.start_due(job),
    Timer.GROW: _touch(Change.GROWTH_DUE),
    Timer.ACK: lambda job, _: barrier.ack_due(job),
    Timer.SAVE_ACK: lambda job, _: on_demand.ack_due(job),
    Timer.SAVE_SIGN: lambda job, _: on_demand.sign_due(job),
    Timer.SCHEDULE: lambda job, _: interval.due(job),
    Timer.SCHEDULE_SEEN: lambda job, _: interval.seen_due(job),
    Timer.BARRIER: lambda job, _: barrier.barrier_due(job),
    Timer.ROSTER: _touch(Change.ROSTER_DUE),
    Timer.PARTING: _touch(Change.ROSTER_DUE),
    Timer.LEASES: lambda job, _: shards.deal(job),
    Timer.SHARDS: lambda job, _: shards.flush(job),
    Timer.READERS_LEAVE: shards.leave_due,
    Timer.READERS_LOST: shards.lost_due,
    Timer.TERMINAL: incidents.end_terminal,
    Timer.EVIDENCE: incidents.end_evidence,
    Timer.STRAGGLER_SLICE: lambda job, _: samples.slice_due(job),
    Timer.HANG: lambda job, _: hangs.due(job),
    Timer.PREFLIGHT_GATHER: _touch(Change.PREFLIGHT_GATHERED),
    Timer.PREFLIGHT_ROUND: lambda job, _: preflight.round_due(job),
    Timer.HANG_EVIDENCE: lambda job, _: hangs.evidence_due(job),
    Timer.REQUEST: user_requests.request_due,
    Timer.COMMIT: _touch(Change.COMMIT_DUE),
    Timer.RESCUE: _touch(Change.FLUSH_DUE),
    Timer.RELEASE: lambda job, _: operator_messages.release_due(job),
    Timer.END: lambda job, _: job_end.conclude(job),
    Timer.ACTIVE_DEADLINE: lambda job, _: job_end.deadline_due(job),
    Timer.MARK: lambda job, _: goodput_marks.due(job),
}
