"""The pure core of the job master: inputs in, instructions out.

Belongs here: the one entry that dispatches inputs and deadlines, and the views that the shell
serves. Does not belong here: decisions (see `decide`), clocks, I/O, logging, randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast_master.inputs import (
    Asked,
    Connected,
    Disconnected,
    Input,
    JournalNoted,
    Moment,
    OperatorConnected,
    OperatorDisconnected,
    PeerRefused,
    PodListDone,
    PodSeen,
    Received,
    ScaleAnswered,
    SpecArrived,
    Stalled,
    StopWished,
    Ticked,
)
from holdfast_master.instructions import Instruction, StepDown
from holdfast_master.job import (
    adoption,
    charges,
    digests,
    ending,
    folding,
    goodput_marks,
    hellos,
    invariants,
    losses,
    operators,
    papers,
    reports,
    restoring,
    rounds,
    saving,
    schedules,
    sightings,
    starting,
    steering,
    stopping,
    users,
    views,
)
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.state import JobState
from holdfast_master.job.timers import Subject, Timer
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire.messages import (
    Fence,
    GetGoodputResponse,
    JobEvent,
    JobPhase,
    JobStatus,
    JournalRecord,
    MasterSpec,
    NodeInfo,
    SegmentOpened,
    StateDigest,
)
from holdfast_wire.reasons import EventReason

JOURNAL_FORMAT = 2
"""Format of the facts in the journal; 2: a base may stand for the oldest of them."""


class Core:
    """The job master's decisions. Deterministic: the same inputs give the same instructions.

    The shell's order: `Core(...)`, or `Core.restore(...)` where a journal exists; then once
    `open(now)`; then `handle` for each input and a `Ticked` when `next_deadline` has come. After
    each call it carries out the returned batch as `instructions` says. After a stall it hands in
    `Stalled` first, then everything that has arrived meanwhile, and only then `Ticked`.
    """

    def __init__(self, identity: CoreIdentity, settings: CoreSettings) -> None:
        self._desk = Desk(identity, settings, _blank(settings))

    @classmethod
    def restore(
        cls,
        records: Iterable[JournalRecord],
        identity: CoreIdentity,
        settings: CoreSettings,
    ) -> Core:
        """A core whose state is the fold of the records of all earlier segments."""
        state = _blank(settings)
        for record in records:
            state.apply(record)
        core = cls(identity, settings)
        core._desk = Desk(identity, settings, state)
        return core

    def open(self, now: Moment) -> list[Instruction]:
        """The first batch: opens the journal's segment of this epoch, starts the clocks."""
        desk = self._desk
        restored = desk.state.sequence > 0
        desk.clock.open(now, desk.state.job_seconds)
        identity = desk.identity
        desk.record(
            SegmentOpened(
                format=JOURNAL_FORMAT,
                epoch=identity.epoch,
                incarnation=identity.incarnation,
                job_name=identity.job_name,
                job_uid=identity.job_uid,
                version=identity.version,
            ),
            durable=True,
        )
        if restored:
            text = f"epoch {identity.epoch} goes on from round {desk.state.round}"
            desk.event(EventReason.MASTER_RESTORED, text)
            restoring.take_up(desk)
        else:
            desk.event(EventReason.MASTER_STARTED, f"epoch {identity.epoch} begins")
        if identity.epoch > 1 and not desk.state.round and desk.state.phase is JobPhase.WAITING:
            # A journal without a world may be of one that had lost another, and was still asking.
            adoption.expect(desk)
        desk.timers.set(Timer.MARK, desk.now + desk.settings.goodput_mark_seconds)
        steering.steer(desk)
        return desk.finish()

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """Take one input; `now.mono` never goes back. The returned batch is carried out whole."""
        desk = self._desk
        desk.clock.moment = now
        if not desk.stepped_down:
            _INPUTS[type(event)](desk, event)
            steering.steer(desk)
        return desk.finish()

    def next_deadline(self) -> float | None:
        """Monotonic time at which a Ticked is due; None: nothing is waited for."""
        if self._desk.stepped_down:
            return None
        due = self._desk.timers.next()
        return None if due is None else due + self._desk.clock.stalled

    def durable_state(self) -> JobState:
        """A copy of what the journal's records so far come to; later inputs do not change it."""
        return folding.copied(self._desk.state)

    def newest_record(self) -> int:
        """Sequence of the newest record; 0: there is none."""
        return self._desk.state.sequence

    def papers(self, most_nodes: int) -> dict[str, Any] | None:
        """What this core knows beside the journal, for `resume`; None: too many nodes to copy."""
        return papers.take(self._desk) if len(self._desk.roster.nodes) <= most_nodes else None

    def resume(self, kept: dict[str, Any]) -> None:
        """Go on with papers, in place of `open`: to decide again what was decided once.

        Raises:
            PapersError: another release wrote them.
        """
        papers.put_back(self._desk, kept)

    def status(self, now: Moment) -> JobStatus:
        """The whole small truth, for JobService and the operator."""
        self._desk.clock.moment = now
        return views.status(self._desk)

    def nodes(self, now: Moment) -> tuple[NodeInfo, ...]:
        """Every known or expected node, in node rank order."""
        self._desk.clock.moment = now
        return views.nodes(self._desk)

    def events_after(self, sequence: int, limit: int) -> tuple[JobEvent, ...]:
        """Events after this sequence, oldest first, at most `limit`."""
        return views.events_after(self._desk, sequence, limit)

    def newest_event(self) -> int:
        """Sequence of the newest event; 0: none yet."""
        return self._desk.state.event_sequence

    def oldest_event(self) -> int:
        """Sequence of the oldest event that is still kept; 0: none yet."""
        events = self._desk.state.events
        return events[0].sequence if events else 0

    def goodput(self, now: Moment) -> GetGoodputResponse:
        """Node-seconds by class, whole and by node, and every incident with its cost."""
        self._desk.clock.moment = now
        return views.goodput(self._desk)

    def digest(self, now: Moment) -> StateDigest:
        """What a master without a journal would need."""
        self._desk.clock.moment = now
        return digests.build(self._desk)

    def spec(self) -> MasterSpec | None:
        """The spec in force; None: none has come yet."""
        return self._desk.state.spec

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            BrokenInvariantError: one does not hold.
        """
        invariants.check(self._desk)


def _blank(settings: CoreSettings) -> JobState:
    return JobState(event_limit=settings.event_limit, incident_limit=settings.incident_limit)


# ---------------------------------------------------------------------------------------- inputs


def _superseded(desk: Desk, fence: Fence | None) -> bool:
    """Whether a newer master has spoken to whoever sends this: then this one is a zombie."""
    identity = desk.identity
    if fence is None or fence.epoch < identity.epoch:
        return False
    if fence.epoch == identity.epoch and fence.incarnation in {"", identity.incarnation}:
        return False
    text = f"a master of epoch {fence.epoch} exists, this one has epoch {identity.epoch}"
    desk.event(EventReason.MASTER_SUPERSEDED, text, Warn)
    desk.put(StepDown(text))
    desk.stepped_down = True
    return True


def _connected(desk: Desk, event: Connected) -> None:
    if not _superseded(desk, event.fence):
        hellos.connected(desk, event)


def _received(desk: Desk, event: Received) -> None:
    if _superseded(desk, event.fence):
        return
    node = desk.roster.by_session(event.session)
    if node is not None:
        reports.received(desk, node, event.fence, event.message)


def _stalled(desk: Desk, event: Stalled) -> None:
    desk.clock.stalled += max(0.0, event.seconds)
    text = f"this master stood still for {event.seconds:.1f} s; every deadline is put off"
    desk.event(EventReason.MASTER_STALLED, text, Warn)


def _ticked(desk: Desk, _: Ticked) -> None:
    for timer, subject in desk.timers.pop_due(desk.now):
        _DEADLINES[timer](desk, subject)
        # What a deadline leads to may change what the next one means.
        steering.steer(desk)


def _reconsider(desk: Desk, _: Subject) -> None:
    desk.dirty = True


_INPUTS: dict[type, Callable[[Desk, Any], None]] = {
    Connected: _connected,
    Disconnected: lambda desk, event: losses.disconnected(desk, event.session),
    Received: _received,
    SpecArrived: lambda desk, event: operators.spec_arrived(desk, event.spec),
    OperatorConnected: lambda desk, _: operators.connected(desk),
    OperatorDisconnected: lambda desk, _: operators.disconnected(desk),
    PodSeen: lambda desk, event: sightings.pod_seen(desk, event.observation),
    PodListDone: lambda desk, _: sightings.pods_listed(desk),
    ScaleAnswered: lambda desk, event: users.scale_answered(desk, event.result),
    StopWished: lambda desk, event: operators.stop_wished(desk, event.wish),
    Asked: users.asked,
    JournalNoted: lambda desk, event: desk.event(event.reason, event.text, Warn),
    PeerRefused: lambda desk, event: desk.event(EventReason.PEER_REFUSED, event.text, Warn),
    Ticked: _ticked,
    Stalled: _stalled,
}

_DEADLINES: dict[Timer, Callable[[Desk, Any], None]] = {
    Timer.SILENCE: losses.silence_due,
    Timer.MISSING: reports.missing_due,
    Timer.REJOIN: sightings.rejoin_due,
    Timer.UNREACHABLE: sightings.unreachable_due,
    Timer.STORE: lambda desk, _: rounds.store_due(desk),
    Timer.STORE_RETRY: _reconsider,
    Timer.JOIN_WINDOW: _reconsider,
    Timer.BELOW_MIN: lambda desk, _: ending.below_min_due(desk),
    Timer.ADOPT: lambda desk, _: adoption.give_up(desk),
    Timer.START: lambda desk, _: starting.start_due(desk),
    Timer.GROW: _reconsider,
    Timer.ECHO: lambda desk, _: stopping.echo_due(desk),
    Timer.SAVE_ECHO: lambda desk, _: saving.echo_due(desk),
    Timer.SCHEDULE: lambda desk, _: schedules.due(desk),
    Timer.SCHEDULE_SEEN: lambda desk, _: schedules.seen_due(desk),
    Timer.BOUNDARY: lambda desk, _: stopping.boundary_due(desk),
    Timer.TERMINAL: charges.end_terminal,
    Timer.EVIDENCE: charges.end_evidence,
    Timer.REQUEST: users.request_due,
    Timer.COMMIT: _reconsider,
    Timer.RESCUE: _reconsider,
    Timer.RELEASE: lambda desk, _: operators.release_due(desk),
    Timer.END: lambda desk, _: ending.conclude(desk),
    Timer.ACTIVE_DEADLINE: lambda desk, _: ending.deadline_due(desk),
    Timer.MARK: lambda desk, _: goodput_marks.due(desk),
}
