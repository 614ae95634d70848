"""The loop: records before effects, inputs before deadlines, errors that stay where they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast_master.inputs import (
    Input,
    JournalNoted,
    PeerRefused,
    Received,
    Stalled,
    Ticked,
    UserCall,
)
from holdfast_master.instructions import (
    Finished,
    Instruction,
    RefusalCode,
    Refuse,
    SendToOperator,
    StepDown,
)
from holdfast_master.loop import loop as loop_module
from holdfast_master.loop.loop import (
    LATE_SECONDS,
    PERIOD_SECONDS,
    DeferredInput,
    MasterLoop,
    Watchdog,
)
from holdfast_wire.messages import Heartbeat, NodeJoined, StopJobRequest, SyncResponse
from masters.scripted_core import ScriptedCore, on
from masters.served import eventually

TELL = SendToOperator(SyncResponse())


class Disk:
    """A journal that writes down when it was told to write, and can be slow."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.trouble = ""
        self.gate = threading.Event()
        self.gate.set()
        self.attempts = 0

    def commit(self, records: Sequence[bytes], *, durable: bool) -> None:
        """Write after the gate has opened."""
        self.attempts += 1
        self.gate.wait(10)
        if records:
            self.story.append(f"{len(records)} records, durable {durable}")


@contextlib.asynccontextmanager
async def running(
    core: ScriptedCore, journal: Disk | None, story: list[str]
) -> AsyncIterator[MasterLoop]:
    """Run a loop whose only effect writes into `story`."""
    loop = MasterLoop(core, journal, lambda records: story.append(f"shown {len(records)}"))

    def fail(_finished: Finished) -> None:
        raise ZeroDivisionError

    loop.effects = {
        SendToOperator: lambda _tell: story.append("effect"),
        Finished: fail,
        StepDown: lambda _down: story.append("stepping down"),
    }
    task = asyncio.create_task(loop.run())
    await loop.opened.wait()
    try:
        yield loop
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def refused(text: str) -> PeerRefused:
    """Return some input."""
    return PeerRefused(text)


async def test_effects_wait_for_the_records_of_their_batch() -> None:
    """Nothing is sent while the disk is still writing what it depends on."""
    story: list[str] = []
    core = ScriptedCore(on(PeerRefused, lambda _: [TELL, core.event("x")]))
    disk = Disk(story)
    async with running(core, disk, story) as loop:
        disk.gate.clear()
        loop.push(refused("a"))
        await eventually(lambda: disk.attempts)
        await asyncio.sleep(0.05)
        assert story == []
        disk.gate.set()
        await eventually(lambda: "shown 1" in story)
        assert story == ["1 records, durable False", "effect", "shown 1"]


@pytest.mark.parametrize("durable", [True, False])
async def test_who_asks_waits_for_what_is_durable(*, durable: bool) -> None:
    """An answer waits until durable facts are on disk. A hung disk delays it for a bounded time."""
    story: list[str] = []
    fact = NodeJoined()
    core = ScriptedCore(on(PeerRefused, lambda _: [core.record(fact, durable=durable)]))
    disk = Disk(story)
    async with running(core, disk, story) as loop:
        await loop.on_disk()
        disk.gate.clear()
        loop.push(refused("a"))
        await eventually(lambda: disk.attempts)
        asked = asyncio.create_task(loop.on_disk())
        await asyncio.sleep(0.05)
        assert asked.done() is not durable
        disk.gate.set()
        await asked
        assert story[:1] == [f"1 records, durable {durable}"] or not durable
        disk.gate.clear()
        loop.push(refused("b"))
        begin = time.monotonic()
        await loop.on_disk()
        assert time.monotonic() - begin < 2 * loop_module.WRITTEN_SECONDS
        disk.gate.set()


async def test_what_is_decided_is_written_though_the_loop_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is cancelled before the thread has begun the write; nothing acts on it any more."""
    story: list[str] = []
    gate = threading.Event()

    class Busy(ThreadPoolExecutor):
        """A thread that has something else to do first."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if story:
                super().submit(gate.wait, 10)
            return super().submit(fn, *args, **kwargs)

    def decide(_: PeerRefused) -> list[Instruction]:
        story.append("decided")
        return [TELL, core.event("x")]

    monkeypatch.setattr(loop_module, "ThreadPoolExecutor", Busy)
    core = ScriptedCore(on(PeerRefused, decide))
    async with running(core, Disk(story), story) as loop:
        loop.push(refused("a"))
        await eventually(lambda: story)
        threading.Timer(0.1, gate.set).start()
    assert story == ["decided", "1 records, durable False"]


async def test_what_arrives_during_a_write_shares_the_next_one() -> None:
    """A hundred inputs, two commits: the group commit."""
    story: list[str] = []

    def note(event: PeerRefused) -> list[Instruction]:
        return [core.record(core.event(event.text).fact, durable=event.text == "50")]

    core, disk = ScriptedCore(on(PeerRefused, note)), Disk(story)
    async with running(core, disk, story) as loop:
        disk.gate.clear()
        loop.push(refused("first"))
        await eventually(lambda: disk.attempts)
        for at in range(100):
            loop.push(refused(str(at)))
        disk.gate.set()
        await eventually(lambda: "shown 100" in story)
        assert story == [
            "1 records, durable False",
            "shown 1",
            "100 records, durable True",
            "shown 100",
        ]


async def test_many_effects_let_the_streams_have_a_turn() -> None:
    """Whoever else runs on the event loop sees them come in parts, in their order."""
    many = 5 * loop_module.EFFECTS_AT_ONCE
    core = ScriptedCore(lambda _event, _now: [TELL] * many)
    story: list[str] = []
    seen: set[int] = set()
    async with running(core, None, story) as loop:
        loop.push(refused("go"))
        async with asyncio.timeout(10):
            while len(story) < many:
                seen.add(len(story))
                await asyncio.sleep(0)
        await eventually(lambda: story[-1] == "shown 0")
    assert story == ["effect"] * many + ["shown 0"]
    assert seen >= {at * loop_module.EFFECTS_AT_ONCE for at in range(1, 5)}


async def test_a_deadline_waits_for_what_had_arrived_before_it() -> None:
    """Input that lies in the queue when the deadline comes is heard first."""
    core = ScriptedCore()
    story: list[str] = []
    disk = Disk(story)
    core_events = core.inputs
    async with running(core, disk, story) as loop:
        core.deadline = time.monotonic() - 1.0
        for at in range(3 * loop_module.BATCH_LIMIT):
            loop.push(refused(str(at)))
        await eventually(lambda: any(isinstance(item, Ticked) for item in core_events))
        core.deadline = None
        first = next(at for at, item in enumerate(core_events) if isinstance(item, Ticked))
        assert first == 3 * loop_module.BATCH_LIMIT


async def test_a_deadline_comes_also_under_a_load_that_never_ends() -> None:
    """Every input begets another one; the timer still fires."""

    def again(event: PeerRefused) -> list[Instruction]:
        loop.push(event)
        return []

    core = ScriptedCore(on(PeerRefused, again))
    core.deadline = time.monotonic() + 0.05
    async with running(core, None, []) as loop:
        loop.push(refused("again"))
        await eventually(lambda: any(isinstance(item, Ticked) for item in core.inputs))
        core.deadline = None


async def test_a_deadline_wakes_the_loop_in_time() -> None:
    """Within 50 ms, without any input."""
    core = ScriptedCore()
    async with running(core, None, []) as loop:
        core.deadline = time.monotonic() + 0.2
        loop.push(refused("look at the deadline"))
        await eventually(lambda: any(isinstance(item, Ticked) for item in core.inputs))
        assert core.deadline <= time.monotonic() < core.deadline + 0.3
        core.deadline = None


async def test_a_stall_is_told_before_what_arrived_and_before_deadlines() -> None:
    """Stalled, then the inputs that had come meanwhile, then Ticked."""
    core = ScriptedCore()
    async with running(core, None, []) as loop:
        await asyncio.sleep(2 * PERIOD_SECONDS)
        core.deadline = time.monotonic() + 1.0
        asyncio.get_running_loop().call_later(0.02, loop.push, refused("late"))
        time.sleep(LATE_SECONDS + PERIOD_SECONDS + 0.3)  # noqa: ASYNC251 - the stall itself
        await eventually(lambda: any(isinstance(item, Ticked) for item in core.inputs))
        core.deadline = None
        kinds = [type(item) for item in core.inputs]
        assert kinds[:3] == [Stalled, PeerRefused, Ticked]
        stalled = core.inputs[0]
        assert isinstance(stalled, Stalled)
        assert 1.0 < stalled.seconds < 2.5


async def test_an_input_that_the_core_cannot_take_costs_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged and counted; the next one is heard."""

    def react(event: Input, _now: Any) -> list[Instruction]:
        if isinstance(event, PeerRefused) and event.text == "bad":
            raise ZeroDivisionError
        return [TELL]

    story: list[str] = []
    core = ScriptedCore(react)
    async with running(core, None, story) as loop:
        loop.push(refused("bad"))
        loop.push(refused("good"))
        await eventually(lambda: story)
        assert loop.counters.core_errors == 1
        assert "the core failed" in caplog.text


async def test_the_debug_log_says_why_decisions_were_looked_at_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line for an input that led to a look, with its reasons; none for any other."""
    core = ScriptedCore()

    def react(event: Input, _now: Any) -> list[Instruction]:
        assert isinstance(event, PeerRefused)
        core.why = ("a node joined",) if event.text == "look" else ()
        return [TELL]

    core._react = react
    caplog.set_level(logging.DEBUG, "holdfast_master.loop.loop")
    story: list[str] = []
    async with running(core, None, story) as loop:
        loop.push(refused("look"))
        loop.push(refused("quiet"))
        await eventually(lambda: story.count("effect") == 2)
    found = [one for one in caplog.records if one.message == "decisions were looked at again"]
    assert [(vars(one)["input"], vars(one)["reasons"]) for one in found] == [
        ("PeerRefused", ("a node joined",))
    ]


async def test_a_request_that_the_core_cannot_take_is_answered() -> None:
    """Its caller learns at once that the fault is the master's."""
    refusals: list[Refuse] = []

    def react(_event: Input, _now: Any) -> list[Instruction]:
        raise ZeroDivisionError

    async with running(ScriptedCore(react), None, []) as loop:
        loop.effects = {Refuse: refusals.append}
        loop.push(UserCall(7, StopJobRequest(), "user"))
        await eventually(lambda: refusals)
        [refusal] = refusals
        assert (refusal.request_id, refusal.code) == (7, RefusalCode.INTERNAL)
        assert "StopJobRequest" in refusal.text


async def test_an_effect_that_fails_costs_only_itself() -> None:
    """The rest of the batch is carried out."""
    story: list[str] = []
    core = ScriptedCore(lambda *_: [Finished(succeeded=True, reason="x"), TELL])
    async with running(core, None, story) as loop:
        loop.push(refused("a"))
        await eventually(lambda: "effect" in story)
        assert loop.counters.effect_errors == 1


async def test_nothing_happens_after_stepping_down() -> None:
    """The loop skips the instructions behind StepDown and hears nothing more."""
    story: list[str] = []
    core = ScriptedCore(lambda *_: [TELL, StepDown("newer"), TELL])
    loop = MasterLoop(core, None, lambda _records: story.append("shown"))
    loop.effects = {SendToOperator: lambda _: story.append("effect"), StepDown: lambda _: None}
    task = asyncio.create_task(loop.run())
    loop.push(refused("a"))
    await asyncio.wait_for(task, 5)
    assert story == ["effect"]


async def test_senders_wait_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure instead of memory; what must not be lost gets in all the same."""
    monkeypatch.setattr(loop_module, "INPUT_LIMIT", 5)
    story: list[str] = []
    core, disk = ScriptedCore(lambda *_: [core.event("x")]), Disk(story)
    async with running(core, disk, story) as loop:
        disk.gate.clear()
        loop.push(refused("0"))
        await eventually(lambda: disk.attempts)
        for at in range(5):
            await loop.put(refused(str(at)))
        waiting = asyncio.create_task(loop.put(refused("too many")))
        loop.push(refused("must not be lost"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        disk.gate.set()
        await asyncio.wait_for(waiting, 5)
        await eventually(lambda: len(core.inputs) == 8)


async def test_trouble_of_the_journal_becomes_an_input_and_is_tried_again() -> None:
    """Said once, tried again without any input, and said when it is over."""
    story: list[str] = []

    class FullDisk(Disk):
        def commit(self, records: Sequence[bytes], *, durable: bool) -> None:
            super().commit(records, durable=durable)
            self.trouble = "" if self.attempts == 3 else "disk full"

    core = ScriptedCore(on(PeerRefused, lambda _: [core.event("x")]))
    disk = FullDisk(story)
    async with running(core, disk, story) as loop:
        loop.push(refused("a"))
        await eventually(lambda: len([x for x in core.inputs if isinstance(x, JournalNoted)]) == 2)
        noted = [item.reason for item in core.inputs if isinstance(item, JournalNoted)]
        assert noted == ["JournalTroubled", "JournalMended"]
        assert disk.attempts == 3


def test_the_watchdog_adds_up_what_was_lost() -> None:
    """Small delays are none; a stall counts once, whoever looks first."""
    watchdog = Watchdog(0.0)
    watchdog.look(PERIOD_SECONDS + 0.5)
    assert watchdog.take(PERIOD_SECONDS + 0.6) == 0.0
    assert watchdog.take(20.0) == pytest.approx(20.0 - 1.0, abs=0.01)
    assert watchdog.take(20.1) == 0.0
    watchdog.look(25.0)
    watchdog.look(30.0)
    assert watchdog.take(30.0) == pytest.approx(10.0 - 2 * PERIOD_SECONDS, abs=0.3)


async def test_what_is_later_waits_and_anything_else_takes_it_along() -> None:
    """It is made when its turn comes, in its order with the rest; nothing may come of it."""
    seen: list[str] = []

    def react(event: Input, _now: Any) -> list[Instruction]:
        seen.append(type(event).__name__)
        return []

    def heartbeat() -> Input:
        seen.append("made")
        return Received(1, None, Heartbeat(sequence=1))

    core = ScriptedCore(react)
    async with running(core, Disk([]), []) as loop:
        before = len(seen)
        loop.push(DeferredInput(heartbeat))
        loop.push(DeferredInput(lambda: None))
        loop.push(DeferredInput(heartbeat))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen[before:] == []
        loop.push(refused("now"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen[before:] == ["made", "Received", "made", "Received", "PeerRefused"]
        loop.push(DeferredInput(heartbeat))
        await eventually(lambda: seen[before + 5 :] == ["made", "Received"])
