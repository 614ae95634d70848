"""The one task that owns the core: inputs, records, effects, deadlines, in this order.

It notices that this process itself stood still. Sources of inputs, carrying out instructions and
decisions do not belong here.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from holdfast_master.inputs import Input, JournalNoted, Moment, Stalled, Ticked, UserCall
from holdfast_master.instructions import Instruction, Record, RefusalCode, Refuse, StepDown
from holdfast_wire import codec
from holdfast_wire.reasons import EventReason

log = logging.getLogger(__name__)

INPUT_LIMIT = 10_000
"""Inputs that wait; beyond this the streams are not read on, so that their senders wait."""
BATCH_LIMIT = 1_000
"""Inputs of one batch: bounds what one sync and one round of effects carry."""
SETTLE_SECONDS = 0.05
"""After a stall, input counts as drained when none has come for this long."""
SETTLE_LIMIT_SECONDS = 1.0
"""After a stall, timers wait at most this long for input that still arrives."""
LINGER_SECONDS = 0.1
"""A `DeferredInput` waits this long for more of its kind: a turn costs more than the change of one
heartbeat, and an agent's come half a second apart at the least. Anything else is taken at
once, and they with it. With 100 agents they cost 13 % less CPU than at 25 ms.
"""
EFFECTS_AT_ONCE = 200
"""After so many effects the streams have a turn: ten thousand agents are told of a world in one
batch, and meanwhile heartbeats are to be heard and questions answered."""
IDLE_SECONDS = 0.5
"""Longest sleep of the loop: pending journal writes are tried again this often."""
WRITTEN_SECONDS = 0.5
"""A reader waits this long for the disk: one that hangs must not hide the job."""


Effect = Callable[[Any], None]


@dataclasses.dataclass(frozen=True, slots=True)
class DeferredInput:
    """An input that may wait and is only made when its turn comes.

    Many of them made in a row, with warm caches, take half the time of as many one by one.
    """

    make: Callable[[], Input | None]
    """Returns the input; None: there is none after all."""


@dataclasses.dataclass(slots=True)
class LoopCounters:
    """Counts of the loop's work."""

    inputs: int = 0
    batches: int = 0
    records: int = 0
    core_errors: int = 0
    effect_errors: int = 0
    stalls: int = 0


class Decider(Protocol):
    """The core, as the loop needs it."""

    def open(self, now: Moment) -> list[Instruction]:
        """The first batch."""

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """The batch that one input leads to."""

    def next_deadline(self) -> float | None:
        """Return when a Ticked is due."""

    def reasons(self) -> tuple[str, ...]:
        """Return why the newest call looked at the decisions again; empty: it did not."""


class SuccessorWatch(Protocol):
    """The watch for newer masters, as the loop needs it."""

    @property
    def newer(self) -> str:
        """The newer master; empty: there is none."""

    async def run(self) -> None:
        """Look again and again."""

    async def look(self) -> None:
        """Look now."""


class Recorder(Protocol):
    """The journal, as the loop needs it."""

    @property
    def trouble(self) -> str:
        """Return why records are not on disk."""

    def commit(self, records: Sequence[bytes], *, durable: bool) -> None:
        """Append records; blocks."""


PERIOD_SECONDS = 0.25
"""Between two looks at the clock: an eighth of a second of a stall goes unseen on average."""
LATE_SECONDS = 1.0
"""A look this much too late is a stall. Default: above what a busy machine does to an idle
process, and a fifth of the silence limit."""


class Watchdog:
    """Adds up the time in which nothing ran here."""

    def __init__(self, mono: float) -> None:
        self._due = mono + PERIOD_SECONDS
        self._stalled = 0.0

    def look(self, mono: float) -> None:
        """Count what is late at `mono`, and begin a new period."""
        late = mono - self._due
        if late > LATE_SECONDS:
            self._stalled += late
        self._due = mono + PERIOD_SECONDS

    def take(self, mono: float) -> float:
        """The seconds that were lost since the last call.

        Looks at the clock itself: after a stall the caller may run before the periodic look does.
        """
        if mono - self._due > LATE_SECONDS:
            self.look(mono)
        stalled, self._stalled = self._stalled, 0.0
        return stalled

    async def run(self) -> None:
        """Look at the clock each period, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self.look(time.monotonic())


class MasterLoop:
    """Feeds the core and carries out what it wants."""

    def __init__(
        self,
        core: Decider,
        journal: Recorder | None,
        after_batch: Callable[[Sequence[Record]], None],
    ) -> None:
        """Prepare a loop; `after_batch` gets a batch's records once they are written."""
        self._core = core
        self._journal = journal
        self.effects: Mapping[type, Effect] = {}
        """Carries out each kind of instruction but Record; never blocks. Set before `run`."""
        self._after_batch = after_batch
        self._inputs: collections.deque[Input | DeferredInput] = collections.deque()
        self._arrived = asyncio.Event()
        self._lingering: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._watchdog = Watchdog(time.monotonic())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self.lookout: SuccessorWatch | None = None
        """Looks for newer masters; None: nobody does. Set before `run`."""
        self._on_disk = asyncio.Event()
        """Set unless something durable is decided and not on disk yet."""
        self._on_disk.set()
        # Asked once: the level is set before, and heartbeats are many.
        self._debugs = log.isEnabledFor(logging.DEBUG)
        self._stepped_down = False
        self._pushed = 0
        self._taken = 0
        self._tick_after: int | None = None
        self.opened = asyncio.Event()
        """Set once the core's first batch has been carried out."""
        self.counters = LoopCounters()

    def push(self, event: Input | DeferredInput) -> None:
        """Take an input now, also where others wait: for what must not be lost."""
        self._inputs.append(event)
        self._pushed += 1
        if not isinstance(event, DeferredInput):
            self._arrived.set()
        elif self._lingering is None:
            running = asyncio.get_running_loop()
            self._lingering = running.call_later(LINGER_SECONDS, self._arrived.set)

    async def put(self, event: Input | DeferredInput) -> None:
        """Take an input; waits while too many wait already."""
        while len(self._inputs) >= INPUT_LIMIT:
            self._room.clear()
            await self._room.wait()
        self.push(event)

    async def run(self) -> None:
        """Run until cancelled, or until the core steps down."""
        tasks = [asyncio.create_task(self._watchdog.run(), name="watchdog")]
        if self.lookout is not None:
            tasks.append(asyncio.create_task(self.lookout.run(), name="lookout"))
        try:
            await self._carry_out(self._core.open(now()))
            self.opened.set()
            while not self._stepped_down:
                await self._turn()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writer.shutdown()

    async def _turn(self) -> None:
        await self._wait()
        stalled = self._watchdog.take(time.monotonic())
        if await self._is_zombie(look=bool(stalled)):
            return
        instructions: list[Instruction] = []
        if stalled:
            self.counters.stalls += 1
            log.warning("this process stood still", extra={"seconds": round(stalled, 3)})
            await self._settle()
            instructions += self._decide(Stalled(stalled))
        for taken in self._drain(len(self._inputs) if stalled else BATCH_LIMIT):
            event = self._made(taken) if isinstance(taken, DeferredInput) else taken
            if event is not None:
                instructions += self._decide(event)
        if self._tick_due():
            instructions += self._decide(Ticked())
        await self._carry_out(instructions)

    async def _is_zombie(self, *, look: bool) -> bool:
        """Step down where a newer master has begun; who stood still looks before it acts."""
        lookout = self.lookout
        if lookout is None:
            return False
        if look:
            await lookout.look()
        if lookout.newer:
            self._stepped_down = True
            self._perform(StepDown(lookout.newer))
        return self._stepped_down

    def _tick_due(self) -> bool:
        """Whether a deadline has come and every input that arrived before it was taken."""
        deadline = self._core.next_deadline()
        if deadline is None or deadline > time.monotonic():
            self._tick_after = None
            return False
        if self._tick_after is None:
            self._tick_after = self._pushed
        if self._taken < self._tick_after:
            return False
        self._tick_after = None
        return True

    async def _wait(self) -> None:
        """Wait for input that should not wait, for the core's deadline, or `IDLE_SECONDS`."""
        if self._arrived.is_set():
            return
        seconds, deadline = IDLE_SECONDS, self._core.next_deadline()
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()

    async def _settle(self) -> None:
        # What was sent while this process stood still lies in sockets and must be heard first.
        end = time.monotonic() + SETTLE_LIMIT_SECONDS
        seen = -1
        while seen != len(self._inputs) and time.monotonic() < end:
            seen = len(self._inputs)
            await asyncio.sleep(SETTLE_SECONDS)

    def _drain(self, limit: int) -> list[Input | DeferredInput]:
        taken = [self._inputs.popleft() for _ in range(min(limit, len(self._inputs)))]
        self._taken += len(taken)
        if not self._inputs:
            self._arrived.clear()
            if self._lingering is not None:
                self._lingering.cancel()
                self._lingering = None
        self._room.set()
        return taken

    def _made(self, later: DeferredInput) -> Input | None:
        try:
            return later.make()
        except Exception:
            self.counters.core_errors += 1
            log.exception("an input could not be made")
            return None

    def _decide(self, event: Input) -> list[Instruction]:
        self.counters.inputs += 1
        name = type(event).__name__
        try:
            batch = self._core.handle(event, now())
        except Exception:
            # One input that the core cannot take must not end the job.
            self.counters.core_errors += 1
            reasons = self._core.reasons()
            log.exception("the core failed", extra={"input": name, "reasons": reasons})
            return _apology(event)
        if self._debugs and (reasons := self._core.reasons()):
            log.debug("decisions were looked at again", extra={"input": name, "reasons": reasons})
        return batch

    async def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        records = [item for item in instructions if isinstance(item, Record)]
        await self._record(records)
        if not instructions:
            return
        self.counters.batches += 1
        done = 0
        for item in instructions:
            if isinstance(item, StepDown):
                self._stepped_down = True
            if not isinstance(item, Record):
                self._perform(item)
                done += 1
                if done % EFFECTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if self._stepped_down:
                return
        self._after_batch(records)

    async def _record(self, records: Sequence[Record]) -> None:
        journal = self._journal
        if journal is None or not (records or journal.trouble):
            return
        self.counters.records += len(records)
        encoded = [codec.encode(record.journal()) for record in records]
        durable = any(record.durable for record in records)
        before = journal.trouble
        if durable:
            self._on_disk.clear()
        write = asyncio.get_running_loop().run_in_executor(
            self._writer, lambda: journal.commit(encoded, durable=durable)
        )
        try:
            # Shielded: a cancelled write that has not begun would lose what is decided.
            await asyncio.shield(write)
        finally:
            self._on_disk.set()
        if journal.trouble != before:
            self._note_journal(journal.trouble)

    async def on_disk(self) -> None:
        """Wait until what is shown is on disk: the next master must not take an answer back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_SECONDS):
                while not self._on_disk.is_set():
                    await self._on_disk.wait()

    def _note_journal(self, trouble: str) -> None:
        if trouble:
            log.error("%s; training goes on", trouble)
            self.push(JournalNoted(EventReason.JOURNAL_TROUBLED, trouble))
        else:
            text = "the journal is written again and nothing is missing"
            log.warning(text)
            self.push(JournalNoted(EventReason.JOURNAL_MENDED, text))

    def _perform(self, instruction: Instruction) -> None:
        try:
            self.effects[type(instruction)](instruction)
        except Exception:
            self.counters.effect_errors += 1
            log.exception("an effect failed", extra={"effect": type(instruction).__name__})


def _apology(event: Input) -> list[Instruction]:
    # A user who waits is told at once; agents and the operator say what matters again.
    if not isinstance(event, UserCall):
        return []
    text = f"{type(event.request).__name__} met a fault of the master; its log has the traceback"
    return [Refuse(event.request_id, RefusalCode.INTERNAL, "CORE_FAILED", text)]


def now() -> Moment:
    """The time on both clocks."""
    return Moment(time.monotonic(), time.time())
