"""The operator's stream: what it brings, what it gets, and which of two counts."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_master.inputs import Moment, OperatorConnected, OperatorDisconnected, OperatorMessage
from holdfast_master.instructions import Instruction, SendToOperator
from holdfast_master.server import operator_service
from holdfast_wire import messages as wire
from masters.scripted_core import React, ScriptedCore, on
from masters.served import eventually, refusal_of, serve

SPEC = wire.MasterSpec(generation=1, replicas=2, min_replicas=1, max_replicas=2, node_unit=1)


def telling(kind: type, *messages: Any) -> React:
    """A script that tells the operator these when it says something of `kind`."""
    told = [SendToOperator(wire.SyncResponse(message=message)) for message in messages]
    return on(kind, lambda _: [*told])


async def test_everything_that_the_operator_says_reaches_the_core_in_order(tmp_path: Path) -> None:
    """A spec first, then pods, answers and wishes."""
    sent: list[Any] = [
        SPEC,
        wire.PodObservation(node_rank=1, pod_uid="p"),
        wire.PodListDone(),
        wire.ScaleResult(decision_id=3, ok=True),
        wire.StopRequest(reason="deleted"),
    ]
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.sync_stream()
        for message in sent:
            await stream.send(message)
        await served.told(wire.StopRequest)
        assert served.core.inputs == [OperatorConnected(), *map(OperatorMessage, sent)]
        await stream.call.done_writing()
        assert await stream.read() is grpc.aio.EOF
        await served.told(OperatorDisconnected)


async def test_a_later_stream_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    """The old one is told; the core hears of no disconnection, and nothing more of the old one."""
    async with serve(tmp_path, ScriptedCore()) as served:
        first, second = served.sync_stream(), served.sync_stream()
        await first.send(SPEC)
        await served.told(OperatorConnected)
        await second.send(SPEC)
        refusal = await refusal_of(first.read())
        assert (refusal.code.name, refusal.reason) == ("ABORTED", "REPLACED")
        await served.told(wire.MasterSpec, 2)
        assert not [item for item in served.core.inputs if isinstance(item, OperatorDisconnected)]
        await second.channel.close()
        await served.told(OperatorDisconnected)


def _spec(*intervals: wire.TierInterval, **changes: Any) -> wire.MasterSpec:
    policy = wire.CheckpointPolicy(intervals=intervals)
    fields: dict[str, Any] = {
        "min_replicas": 1,
        "max_replicas": 2,
        "node_unit": 1,
        "checkpoint": policy,
    }
    return wire.MasterSpec(**fields | changes)


NO_TIER = wire.TierInterval(every=3)
OFTEN = wire.TierInterval(tier=wire.Tier.MEMORY, every=3)
RARE = wire.TierInterval(tier=wire.Tier.STORAGE, every=2**31)
WRONG = {
    "a wish": (wire.StopRequest(), "must carry a spec"),
    "nothing": (None, "must carry a spec"),
    "min above max": (_spec(min_replicas=3), "min_replicas is 3"),
    "no unit": (_spec(node_unit=0), "node_unit is 0"),
    "unit": (_spec(min_replicas=2, max_replicas=5, node_unit=2), "must be multiples of it"),
    "replicas": (_spec(replicas=3), "replicas is 3"),
    "nan": (_spec(join_window_seconds=float("nan")), "join_window_seconds is nan"),
    "no tier": (
        _spec(NO_TIER),
        "checkpoint.intervals[0] has no tier; it must be memory or storage",
    ),
    "tier twice": (_spec(OFTEN, OFTEN), "checkpoint.intervals[1] names memory again"),
    "rare": (
        _spec(OFTEN, RARE),
        "checkpoint.intervals[1], storage, is every 2147483648; it must be 0 (computed) to",
    ),
}


@pytest.mark.parametrize(("first", "text"), WRONG.values(), ids=WRONG)
async def test_a_stream_that_begins_wrong_is_refused(tmp_path: Path, first: Any, text: str) -> None:
    """Field, value and remedy come back; the core hears nothing."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.sync_stream()
        await stream.send(first)
        refusal = await refusal_of(stream.read())
        reason = "WRONG_SPEC" if isinstance(first, wire.MasterSpec) else "MALFORMED_MESSAGE"
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
        assert text in refusal.text
        assert served.core.inputs == []


async def test_a_wrong_message_later_ends_the_stream(tmp_path: Path) -> None:
    """The core is told that the operator is gone."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.sync_stream()
        await stream.send(SPEC)
        await stream.write(b"\xff\xff")
        assert (await refusal_of(stream.read())).reason == "MALFORMED_MESSAGE"
        await served.told(OperatorDisconnected)


@pytest.mark.parametrize(
    "data", [b"\xba\x06\x00", b"\x12\x02\x20\x63"], ids=["another message", "another phase"]
)
async def test_what_only_a_newer_operator_says_is_passed_over(tmp_path: Path, data: bytes) -> None:
    """Its stream would only come back and say the same again."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.sync_stream()
        await stream.send(SPEC)
        await stream.write(data)
        await stream.send(wire.PodListDone())
        await served.told(wire.PodListDone)
        said = [one.message for one in served.core.inputs if isinstance(one, OperatorMessage)]
        assert said == [SPEC, wire.PodListDone()]
        assert served.master.counters.newer == 1


async def test_an_operator_that_brings_no_spec_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current stream stays current until another has proved itself."""
    monkeypatch.setattr(operator_service, "FIRST_SECONDS", 0.05)
    async with serve(tmp_path, ScriptedCore()) as served:
        good = served.sync_stream()
        await good.send(SPEC)
        await served.told(OperatorConnected)
        silent = served.sync_stream()
        assert (await refusal_of(silent.read())).reason == "NO_SPEC"
        await good.send(wire.PodListDone())
        await served.told(wire.PodListDone)


async def test_decisions_come_in_order_and_only_the_newest_status(tmp_path: Path) -> None:
    """A status that waits is replaced; a decision never is."""
    first, second = (wire.ReplaceDecision(decision_id=number) for number in (1, 2))
    script = telling(
        wire.PodListDone, wire.JobStatus(step=1), first, wire.JobStatus(step=2), second
    )
    async with serve(tmp_path, ScriptedCore(script)) as served:
        stream = served.sync_stream()
        await stream.send(SPEC)
        await stream.send(wire.PodListDone())
        got = [(await stream.receive()).message for _ in range(3)]
        assert got == [first, wire.JobStatus(step=2), second]


async def test_the_operator_is_told_the_status_while_the_core_says_nothing(tmp_path: Path) -> None:
    """Once at the beginning, then at every change; never again while it stays the same."""
    core = ScriptedCore()
    async with serve(tmp_path, core) as served:
        stream = served.sync_stream()
        await stream.send(SPEC)
        for step in (core.step, core.step + 1):
            core.step = step
            response = await stream.receive()
            said = response.message
            assert isinstance(said, wire.JobStatus)
            assert response.fence == wire.Fence(epoch=1, incarnation="m1")
            assert said.step == step


@pytest.mark.parametrize("when", ["in the first spec", "in a later one"])
async def test_an_operator_of_many_jobs_is_told_progress_less_often(
    tmp_path: Path, when: str
) -> None:
    """A new step alone waits as long as the operator wants; a new phase takes the step along."""
    core = ScriptedCore()
    slow = dataclasses.replace(SPEC, progress_seconds=3_600.0)
    async with serve(tmp_path, core) as served:
        stream = served.sync_stream()
        await stream.send(slow if when == "in the first spec" else SPEC)
        assert (await stream.receive()).message == core.status(Moment(0.0, 0.0))
        if when == "in a later one":
            await stream.send(slow)
            await served.told(wire.MasterSpec, 2)
        core.step = 1
        reading = asyncio.create_task(stream.receive())
        await asyncio.wait({reading}, timeout=3 * operator_service.STATUS_SECONDS)
        core.step, core.phase = 2, wire.JobPhase.SAVING
        told = (await reading).message
        assert isinstance(told, wire.JobStatus)
        assert (told.step, told.phase) == (2, wire.JobPhase.SAVING)


async def test_without_an_operator_what_it_is_told_is_dropped(tmp_path: Path) -> None:
    """The core repeats what is still wanted; nothing piles up here."""

    def tell(*_: object) -> list[Instruction]:
        return [SendToOperator(wire.SyncResponse(message=wire.JobStatus(step=len(core.inputs))))]

    core = ScriptedCore(tell)
    async with serve(tmp_path, core) as served:
        agent = served.agent_stream(0)
        await agent.hello()
        stream = served.sync_stream()
        await stream.send(SPEC)
        first = (await stream.receive()).message
        assert isinstance(first, wire.JobStatus)
        assert first.step >= 2


async def test_an_operator_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions are bounded too; the core repeats what is still wanted to the next stream."""
    monkeypatch.setattr(operator_service, "OUTBOX_LIMIT", 5)
    many = (wire.ReplaceDecision(decision_id=at) for at in range(6))
    async with serve(tmp_path, ScriptedCore(telling(wire.PodListDone, *many))) as served:
        stream = served.sync_stream()
        await stream.send(SPEC)
        await stream.send(wire.PodListDone())
        refusal = await refusal_of(stream.drain())
        assert (refusal.code.name, refusal.reason) == ("RESOURCE_EXHAUSTED", "SLOW_READER")
        await served.told(OperatorDisconnected)


async def test_the_operator_reads_the_finish_before_the_master_goes(tmp_path: Path) -> None:
    """The operator reads all messages queued at a stop. Then the stream ends in order."""
    finish = wire.FinishDecision(decision_id=200, reason="Stopped")
    many = (wire.ReplaceDecision(decision_id=at) for at in range(200))
    async with serve(tmp_path, ScriptedCore(telling(wire.StopRequest, *many, finish))) as served:
        stream = served.sync_stream()
        await stream.send(SPEC)
        await stream.send(wire.StopRequest())
        await served.told(wire.StopRequest)
        served.master.stop()
        got = [(await stream.receive()).message for _ in range(202)]
        assert isinstance(got[-2], wire.JobStatus)
        assert got[-1] == finish
        assert await stream.read() is grpc.aio.EOF
        await eventually(stream.call.done)
