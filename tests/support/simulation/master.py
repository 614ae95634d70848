"""One master process: the real core, its loop's order of things, its journal and its clock.

Belongs here: what the shell does around the core (`holdfast_master.loop.loop`): inputs, records,
effects, deadlines, in this order, and standing still. Does not belong here: decisions.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_master.core import Core
from holdfast_master.inputs import Input, JournalNoted, Moment, OperatorConnected, Stalled, Ticked
from holdfast_master.instructions import (
    CloseSession,
    Finished,
    Instruction,
    Record,
    Refuse,
    Reply,
    Send,
    SendToOperator,
    StepDown,
)
from holdfast_master.settings import CoreIdentity
from holdfast_wire.messages import JournalRecord
from holdfast_wire.reasons import EventReason
from simulation.network import Stream

if TYPE_CHECKING:
    from simulation.job import Job

JOB_UID = "uid-1"
UNIX_START = 1_700_000_000.0


class Master:
    """A process that holds one epoch."""

    def __init__(
        self,
        job: Job,
        epoch: int,
        incarnation: str,
        records: Sequence[JournalRecord],
        *,
        own_disk: bool = True,
    ) -> None:
        """`records`: what it reads when it starts. `own_disk`: False: it can write nothing."""
        self.job = job
        self.up = True
        self.frozen = False
        self.busy = False
        """It waits for its disk."""
        self.frozen_at = 0.0
        self.mono = job.luck.uniform(10.0, 90_000.0) - job.time.now
        """Its monotonic clock at time 0, s."""
        self.wall = job.wall
        self.streams: dict[int, Stream] = {}
        self.inbox: collections.deque[Input] = collections.deque()
        self.finished: Finished | None = None
        self.stepped_down = False
        self.tick_at: float | None = None
        self.segment = job.disk.open(epoch) if own_disk else None
        self.settings = job.core_settings()
        self.identity = CoreIdentity(
            job_name="job", job_uid=JOB_UID, epoch=epoch, incarnation=incarnation, version="0.1.0"
        )
        self.base = tuple(records)
        self.core = job.wrap(Core(self.identity, self.settings, records))
        self.written: list[Record] = []
        """Every record of this process, whether the disk took it or not."""
        self.watch = job.checks.new_master(self)
        batch = self.core.open(self.moment())
        self.watch.presence.begin()
        self._carry_out(None, batch)

    @property
    def wall_micros(self) -> int:
        """Unix time by its clock, us."""
        return round((self.wall + self.job.time.now) * 1e6)

    def moment(self) -> Moment:
        """Now, on both of its clocks."""
        now = self.job.time.now
        return Moment(self.mono + now, self.wall + now)

    @property
    def acting(self) -> bool:
        """It runs and believes that it is the master."""
        return self.up and not self.stepped_down and self.finished is None

    @property
    def all_written(self) -> bool:
        """Its disk has taken every record."""
        return self.segment is not None and not (self.busy or self.segment.pending)

    # -------------------------------------------------------------------------------------- loop

    def push(self, event: Input) -> None:
        """Something arrived."""
        if not self.up:
            return
        if self.frozen or self.busy:
            self.inbox.append(event)
        else:
            self.take(event)

    def take(self, event: Input) -> list[Instruction]:
        """Hand the core an input and do what it wants."""
        before = self.core.job.state.phase
        self.job.note_input(before, event)
        batch = self.job.decide(self.core, event, self.moment())
        self._carry_out(event, batch)
        return batch

    def _drain(self) -> None:
        while self.inbox and self.up and not (self.frozen or self.busy):
            self.take(self.inbox.popleft())
        self._plan_tick()

    def _carry_out(self, event: Input | None, batch: list[Instruction]) -> None:
        """As `Loop._carry_out`: the records first; the rest once they are written."""
        if not batch:
            self.watch.quiet_event(event)
            self._plan_tick()
            return
        records = [item for item in batch if isinstance(item, Record)]
        durable = any(record.durable for record in records)
        self.written += records
        self.watch.after_event(event, batch)
        disk = self.job.disk
        if durable and disk.latency and not disk.full and self.segment is not None:
            self.busy = True
            self.job.time.after(disk.latency, self._on_disk, records, batch)
            return
        self._write(records, durable=durable)
        self._perform(batch)
        self._plan_tick()

    def _on_disk(self, records: list[Record], batch: list[Instruction]) -> None:
        if not self.up:
            return
        self.busy = False
        self._write(records, durable=True)
        self._perform(batch)
        self._drain()

    def try_disk(self) -> None:
        """As `Loop` does while the journal is in trouble: write what is pending."""
        if self.up and not self.frozen:
            self._write([], durable=True)

    def _write(self, records: list[Record], *, durable: bool) -> None:
        if self.segment is None or not (records or self.segment.pending):
            return
        troubled = bool(self.segment.pending)
        taken = self.job.disk.append(self.segment, records, durable=durable)
        self.watch.written(records, synced=durable and taken)
        if troubled is taken:
            reason = EventReason.JOURNAL_MENDED if taken else EventReason.JOURNAL_TROUBLED
            self.job.time.after(0.0, self.push, JournalNoted(reason, "the disk"))

    def _perform(self, batch: list[Instruction]) -> None:
        for item in batch:
            if isinstance(item, Send):
                self._send(item)
            elif isinstance(item, SendToOperator):
                self.watch.said(item.response.message)
                self.job.operator.told(self, item.response)
            elif isinstance(item, CloseSession):
                self._close(item.session)
            elif isinstance(item, Reply | Refuse):
                self.watch.answered(item)
            elif isinstance(item, Finished):
                self.finished = item
                self.job.on_finished(self, item)
            elif isinstance(item, StepDown):
                self.stepped_down = True
                self.die(quickly=True)
                self.job.on_stepped_down(self)
                return

    def _send(self, item: Send) -> None:
        self.watch.said(item.response.message)
        stream = self.streams.get(item.session)
        if stream is not None:
            stream.send_down(item.response)

    def _close(self, session: int) -> None:
        stream = self.streams.pop(session, None)
        if stream is not None:
            stream.host_open = False
            self.job.time.at(
                max(stream.down_at, self.job.time.now + 0.001), stream.end_at_agent, 0.0
            )

    def _plan_tick(self) -> None:
        if not self.up or self.frozen or self.busy:
            return
        due = self.core.next_deadline()
        when = None if due is None else max(due - self.mono + 1e-6, self.job.time.now)
        if when is not None and (self.tick_at is None or when < self.tick_at):
            self.tick_at = when
            self.job.time.at(when, self._tick, when)

    def _tick(self, when: float) -> None:
        if self.tick_at != when:
            return
        self.tick_at = None
        if not self.up or self.frozen or self.busy:
            return
        due = None if self.inbox else self.core.next_deadline()
        if due is not None and due <= self.mono + self.job.time.now:
            self.take(Ticked())
        self._plan_tick()

    # ------------------------------------------------------------------------------------- faults

    def freeze(self) -> None:
        """SIGSTOP: nothing is read, sent or noticed."""
        if self.up and not self.frozen:
            self.frozen, self.frozen_at = True, self.job.time.now
            for stream in self.streams.values():
                limit = stream.agent.luck.uniform(2.0, 4.0)
                self.job.time.after(limit, self._unanswered, stream, self.frozen_at)

    def _unanswered(self, stream: Stream, since: float) -> None:
        if self.frozen and self.frozen_at == since:
            stream.end_at_agent(0.0)
            stream.end_at_host(0.0)

    def thaw(self) -> None:
        """SIGCONT: the stall is noticed, then what has come is read, then deadlines are heard."""
        if not self.up or not self.frozen:
            return
        self.frozen = False
        stood = self.job.time.now - self.frozen_at
        if stood > 0.2:
            self.inbox.appendleft(Stalled(stood))
        self.tick_at = None
        self._drain()

    def die(self, *, quickly: bool) -> None:
        """The process ends. `quickly`: its kernel lives and resets the streams at once."""
        self.up = False
        self.watch.ended()
        if self is self.job.master:
            self.job.checks.left = self.watch.presence.leave() if quickly else None
        for stream in list(self.streams.values()):
            stream.host_open = False
            luck = stream.agent.luck
            cut = stream.agent.cut_up or stream.agent.cut_down
            slow = luck.uniform(2.0, 4.0)
            stream.end_at_agent(slow if cut or not quickly else luck.uniform(0.0, 0.02))
        self.streams.clear()

    def greet_operator(self) -> None:
        """The operator opens its stream."""
        self.push(OperatorConnected())
