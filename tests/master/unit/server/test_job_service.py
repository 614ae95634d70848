"""JobService's questions: answered from views, or by the core, always in time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_master.inputs import UserCall
from holdfast_master.instructions import Instruction, RefusalCode, Refuse, Reply
from holdfast_master.server import pending_requests
from holdfast_wire import codec
from holdfast_wire import messages as wire
from masters.scripted_core import ScriptedCore, on
from masters.served import OPERATOR, USER, Served, refusal_of, serve


def answer(event: UserCall) -> Reply:
    """Answer a request with something that tells which request it was."""
    request: Any = event.request
    response: Any = {
        wire.ScaleRequest: lambda: wire.ScaleResponse(generation=request.replicas),
        wire.RestartWorkerRequest: lambda: wire.RestartWorkerResponse(round=5),
        wire.DumpStacksRequest: wire.DumpStacksResponse,
        wire.DrainNodeRequest: lambda: wire.DrainNodeResponse(text=f"node {request.node_rank}"),
        wire.StopJobRequest: wire.StopJobResponse,
    }[type(request)]()
    return Reply(event.request_id, response)


ANSWER_ALL = on(UserCall, lambda event: [answer(event)])


async def test_questions_and_watches_wait_for_the_disk(tmp_path: Path) -> None:
    """Answers and a watch's first message wait until their facts are on disk."""
    core = ScriptedCore()
    async with serve(tmp_path, core) as served:
        written = served.master._loop._on_disk
        written.clear()
        asked = asyncio.create_task(served.ask("GetJob", wire.GetJobRequest()))
        open_watch: Any = served.channel(USER).unary_stream("/holdfast.v1.JobService/WatchJob")
        watch = open_watch(codec.encode(wire.WatchJobRequest()), timeout=10.0)
        first = asyncio.create_task(watch.read())
        await asyncio.sleep(0.2)
        assert not asked.done()
        assert not first.done()
        written.set()
        assert (await asked).status.phase is wire.JobPhase.TRAINING
        response = codec.decode(wire.WatchJobResponse, await first)
        assert isinstance(response.message, wire.JobSnapshot)
        watch.cancel()


async def test_views_are_served(tmp_path: Path) -> None:
    """GetJob, ListNodes, ListEvents and GetGoodput show what the core shows."""
    core = ScriptedCore()
    for text in "abcdef":
        core.event(text)
    async with serve(tmp_path, core) as served:
        job = await served.ask("GetJob", wire.GetJobRequest())
        assert (job.status.phase, job.spec.generation) == (wire.JobPhase.TRAINING, 7)
        nodes = await served.ask("ListNodes", wire.ListNodesRequest())
        assert [node.node_rank for node in nodes.nodes] == [0, 1]
        events = await served.ask("ListEvents", wire.ListEventsRequest(after_sequence=2, limit=3))
        assert [event.text for event in events.events] == ["c", "d", "e"]
        assert events.newest_sequence == 6
        everything = await served.ask("ListEvents", wire.ListEventsRequest())
        assert len(everything.events) == 6
        assert (await served.ask("GetGoodput", wire.GetGoodputRequest())).goodput == 0.5


@pytest.mark.parametrize(
    ("method", "request_", "response"),
    [
        ("Scale", wire.ScaleRequest(replicas=3), wire.ScaleResponse(generation=3)),
        (
            "RestartWorker",
            wire.RestartWorkerRequest(node_rank=0),
            wire.RestartWorkerResponse(round=5),
        ),
        ("RestartWorker", wire.RestartWorkerRequest(), wire.RestartWorkerResponse(round=5)),
        ("DumpStacks", wire.DumpStacksRequest(), wire.DumpStacksResponse()),
        ("DrainNode", wire.DrainNodeRequest(node_rank=1), wire.DrainNodeResponse(text="node 1")),
        ("StopJob", wire.StopJobRequest(now=True), wire.StopJobResponse()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("who", [USER, OPERATOR], ids=["user", "operator"])
async def test_a_wish_is_put_to_the_core_under_the_callers_name(
    tmp_path: Path, method: str, request_: Any, response: Any, who: Any
) -> None:
    """The core hears the request as it was sent, and who sent it."""
    async with serve(tmp_path, ScriptedCore(ANSWER_ALL)) as served:
        assert await served.ask(method, request_, who) == response
        (asked,) = await served.told(UserCall)
        assert isinstance(asked, UserCall)
        assert (asked.request, asked.who) == (request_, who.role)


async def test_answers_find_their_callers(tmp_path: Path) -> None:
    """Fifty requests at once, answered in the wrong order."""
    waiting: list[UserCall] = []

    def react(event: UserCall) -> list[Instruction]:
        waiting.append(event)
        return [answer(asked) for asked in reversed(waiting)] if len(waiting) == 50 else []

    async with serve(tmp_path, ScriptedCore(on(UserCall, react))) as served:
        stub: Any = served.channel(USER).unary_unary("/holdfast.v1.JobService/Scale")
        calls = [
            stub(codec.encode(wire.ScaleRequest(replicas=at)), timeout=10) for at in range(1, 51)
        ]
        answers = [codec.decode(wire.ScaleResponse, await call) for call in calls]
        assert [answer.generation for answer in answers] == list(range(1, 51))


@pytest.mark.parametrize("code", RefusalCode)
async def test_a_refusal_carries_its_reason(tmp_path: Path, code: RefusalCode) -> None:
    """Status, ErrorInfo and text are the core's."""
    text = "nobody can scale"
    script = on(UserCall, lambda event: [Refuse(event.request_id, code, "NO_OPERATOR", text)])
    async with serve(tmp_path, ScriptedCore(script)) as served:
        refusal = await refusal_of(served.ask("Scale", wire.ScaleRequest()))
        assert refusal.code.name == code.value
        assert (refusal.reason, refusal.text) == ("NO_OPERATOR", text)


async def _unanswered(served: Served, timeout: float | None) -> Any:
    call: Any = served.channel(USER).unary_unary("/holdfast.v1.JobService/Scale")
    return await refusal_of(call(codec.encode(wire.ScaleRequest()), timeout=timeout))


async def test_a_caller_never_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a deadline of its own or without one: DEADLINE_EXCEEDED, and nothing is kept."""
    monkeypatch.setattr("holdfast_master.server.job_service.ANSWER_SECONDS", 0.05)
    async with serve(tmp_path, ScriptedCore()) as served:
        without = await _unanswered(served, None)
        assert (without.code, without.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "NO_ANSWER")
        assert (await _unanswered(served, 0.05)).code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_answer_that_comes_too_late_hurts_nobody(tmp_path: Path) -> None:
    """The caller has gone; the next one gets its own answer."""

    def react(*_: object) -> list[Instruction]:
        late = [item for item in core.inputs if isinstance(item, UserCall)]
        return [answer(asked) for asked in late] if len(late) > 1 else []

    core = ScriptedCore(react)
    async with serve(tmp_path, core) as served:
        await _unanswered(served, 0.1)
        assert await served.ask("Scale", wire.ScaleRequest(replicas=9)) == wire.ScaleResponse(
            generation=9
        )


async def test_requests_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound a request is refused at once."""
    monkeypatch.setattr(pending_requests, "WAITING_LIMIT", 2)
    async with serve(tmp_path, ScriptedCore()) as served:
        stub: Any = served.channel(USER).unary_unary("/holdfast.v1.JobService/Scale")
        waiting = [stub(codec.encode(wire.ScaleRequest()), timeout=5) for _ in range(2)]
        await served.told(UserCall, 2)
        assert (await refusal_of(served.ask("Scale", wire.ScaleRequest()))).reason == "BUSY"
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_request_that_is_no_protobuf_is_refused(tmp_path: Path) -> None:
    """Unary methods say the same about wrong bytes as streams do."""
    async with serve(tmp_path, ScriptedCore()) as served:
        call: Any = served.channel(USER).unary_unary("/holdfast.v1.JobService/Scale")
        refusal = await refusal_of(call(b"\xff\xff", timeout=5))
        assert (refusal.code.name, refusal.reason) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE")


async def test_health_names_every_service(tmp_path: Path) -> None:
    """SERVING while the master serves; a service that does not exist is NOT_FOUND."""
    async with serve(tmp_path, ScriptedCore()) as served:
        check: Any = served.channel(USER).unary_unary("/grpc.health.v1.Health/Check")
        for name in ("", "holdfast.v1.AgentService", "holdfast.v1.JobService"):
            request = b"\x0a" + bytes([len(name)]) + name.encode() if name else b""
            assert await check(request, timeout=5) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            await check(b"\x0a\x04none", timeout=5)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
