"""WatchJob: snapshot, deltas, tokens that continue without a gap, watchers that are slow."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_master.inputs import Connected
from holdfast_master.journal.reader import History
from holdfast_master.server import watch_service
from holdfast_wire import codec
from holdfast_wire import messages as wire
from masters.scripted_core import ScriptedCore, on
from masters.served import DEADLINE, USER, Served, refusal_of, serve


class Watcher:
    """One WatchJob call."""

    def __init__(self, served: Served, token: str = "", interval: float = 60.0) -> None:
        request = wire.WatchJobRequest(resume_token=token, min_interval_seconds=interval)
        stub: Any = served.channel(USER).unary_stream("/holdfast.v1.JobService/WatchJob")
        self.call = stub(codec.encode(request))
        self.token = token

    async def next(self) -> Any:
        """Return the next message's content."""
        data = await asyncio.wait_for(self.call.read(), DEADLINE)
        if data is grpc.aio.EOF:
            return data
        response = codec.decode(wire.WatchJobResponse, data)
        self.token = response.resume_token
        return response.message

    async def texts(self, count: int) -> list[str]:
        """Return the texts of the next events."""
        return [(await self.next()).text for _ in range(count)]


def say(served: Served, *texts: str) -> None:
    """Let these events happen, each in a batch of its own."""
    for text in texts:
        served.master.after_batch([served.core.event(text)])


async def test_a_snapshot_comes_first_then_every_event(tmp_path: Path) -> None:
    """An event in the snapshot does not come again."""
    core = ScriptedCore()
    core.event("before")
    async with serve(tmp_path, core) as served:
        watcher = Watcher(served)
        snapshot = await watcher.next()
        assert isinstance(snapshot, wire.JobSnapshot)
        assert [event.text for event in snapshot.events] == ["before"]
        assert len(snapshot.nodes) == 2
        say(served, "one", "two")
        assert await watcher.texts(2) == ["one", "two"]


async def test_events_of_a_batch_come_once_they_are_written(tmp_path: Path) -> None:
    """The loop publishes what the core recorded."""
    core = ScriptedCore(on(Connected, lambda _: [core.event("hello")]))
    async with serve(tmp_path, core) as served:
        watcher = Watcher(served)
        await watcher.next()
        await served.agent_stream(0).hello()
        assert await watcher.texts(1) == ["hello"]


async def test_a_token_continues_without_a_gap_and_without_repetition(tmp_path: Path) -> None:
    """Whatever happened between two calls comes in the second."""
    async with serve(tmp_path, ScriptedCore()) as served:
        first = Watcher(served)
        await first.next()
        say(served, "a", "b", "c")
        assert await first.texts(2) == ["a", "b"]
        first.call.cancel()
        say(served, "d")
        second = Watcher(served, first.token)
        assert await second.texts(2) == ["c", "d"]
        third = Watcher(served, second.token)
        say(served, "e")
        assert await third.texts(1) == ["e"]


async def test_incidents_are_deltas_too(tmp_path: Path) -> None:
    """An incident comes each time that it is recorded."""
    async with serve(tmp_path, ScriptedCore()) as served:
        watcher = Watcher(served)
        await watcher.next()
        incident = wire.Incident(id="i1", open=True)
        served.master.after_batch([served.core.event("x"), served.core.record(incident)])
        assert await watcher.texts(1) == ["x"]
        assert await watcher.next() == incident
        again = Watcher(served, watcher.token)
        assert await again.next() == incident, "it may come twice, it is never missed"


async def test_a_status_comes_when_it_changed_and_not_more_often_than_asked(tmp_path: Path) -> None:
    """A hundred changes make few messages; the last one is among them; the job's clock is none."""
    core = ScriptedCore()
    async with serve(tmp_path, core) as served:
        watcher = Watcher(served, interval=0.1)
        await watcher.next()
        begin = asyncio.get_running_loop().time()
        seen: list[wire.JobStatus] = []
        while not seen or seen[-1].step < 100:
            core.step = min(100, core.step + 10)
            status = await watcher.next()
            assert isinstance(status, wire.JobStatus)
            seen.append(status)
        assert asyncio.get_running_loop().time() - begin >= 0.1 * (len(seen) - 1) - 0.05
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watcher.next(), 0.3)


async def test_events_are_not_held_back_by_the_interval(tmp_path: Path) -> None:
    """A watcher with a long interval still sees events at once."""
    async with serve(tmp_path, ScriptedCore()) as served:
        watcher = Watcher(served, interval=60)
        await watcher.next()
        say(served, "now")
        async with asyncio.timeout(1):
            assert await watcher.texts(1) == ["now"]


@pytest.mark.parametrize("token", ["x", "1:2", "1::3", "-1:a:1", "1:a:" + "9" * 30])
async def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    """It is INVALID_ARGUMENT, and names the token."""
    async with serve(tmp_path, ScriptedCore()) as served:
        refusal = await refusal_of(Watcher(served, token).next())
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert token in refusal.text


async def test_a_token_of_an_unknown_master_gets_a_reset_and_a_snapshot(tmp_path: Path) -> None:
    """Without that master's journal nobody knows what is missing."""
    async with serve(tmp_path, ScriptedCore()) as served:
        say(served, "a")
        watcher = Watcher(served, "1:other:1")
        reset = await watcher.next()
        assert isinstance(reset, wire.WatchReset)
        assert "whose journal this one does not have" in reset.reason
        assert isinstance(await watcher.next(), wire.JobSnapshot)
        say(served, "b")
        assert await watcher.texts(1) == ["b"]


async def test_a_token_of_a_predecessor_continues_where_its_journal_ends(tmp_path: Path) -> None:
    """Events that the journal kept need no reset; events that were lost do."""
    core = ScriptedCore()
    for text in "abc":
        core.event(text)
    history = History(masters=(wire.PastMaster(epoch=1, incarnation="old", newest_event=3),))
    async with serve(tmp_path, core, history=history, epoch=2, incarnation="new") as served:
        say(served, "d")
        watcher = Watcher(served, "1:old:2")
        assert await watcher.texts(2) == ["c", "d"]
        assert watcher.token == "2:new:4"
        lost = await Watcher(served, "1:old:4").next()
        assert isinstance(lost, wire.WatchReset)
        assert "events after 3 were lost with the master of epoch 1" in lost.reason


async def test_a_token_from_before_what_is_kept_gets_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring is bounded; the newest events are in the snapshot."""
    monkeypatch.setattr(watch_service, "RING_ITEMS", 3)
    async with serve(tmp_path, ScriptedCore()) as served:
        say(served, *"abcdef")
        ended = Watcher(served, "1:m1:2")
        assert isinstance(await ended.next(), wire.WatchReset)
        assert isinstance(await ended.next(), wire.JobSnapshot)
        kept = Watcher(served, "1:m1:3")
        assert await kept.texts(3) == ["d", "e", "f"]


async def test_a_watcher_that_falls_behind_gets_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps to the newest state instead of holding memory for itself."""
    monkeypatch.setattr(watch_service, "RING_ITEMS", 5)
    async with serve(tmp_path, ScriptedCore()) as served:
        watcher = Watcher(served)
        await watcher.next()
        # No await between them: the watcher's task cannot run meanwhile.
        say(served, *(str(at) for at in range(20)))
        assert isinstance(await watcher.next(), wire.WatchReset)
        snapshot = await watcher.next()
        assert isinstance(snapshot, wire.JobSnapshot)
        assert snapshot.events[-1].text == "19"


async def test_a_watcher_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream ends; one that reads is not held up by it."""
    monkeypatch.setattr(watch_service, "WRITE_SECONDS", 0.2)
    async with serve(tmp_path, ScriptedCore()) as served:
        slow, good = Watcher(served), Watcher(served)
        await slow.next()
        await good.next()
        at = 0
        while len(served.master.watch.watchers) == 2:
            say(served, f"{at} " + "x" * 50_000)
            assert (await good.next()).text.startswith(str(at))
            at += 1
        with pytest.raises(grpc.RpcError):
            await slow.texts(at)
        say(served, "after")
        assert await good.texts(1) == ["after"]


async def test_a_master_that_goes_ends_its_watchers_in_order(tmp_path: Path) -> None:
    """They get everything that happened, the last status, and a clean end."""
    core = ScriptedCore()
    async with serve(tmp_path, core) as served:
        watcher = Watcher(served)
        await watcher.next()
        core.step = 42
        say(served, "last")
        served.master.stop()
        assert await watcher.texts(1) == ["last"]
        status = await watcher.next()
        assert isinstance(status, wire.JobStatus)
        assert status.step == 42
        assert await watcher.next() is grpc.aio.EOF


async def test_many_watchers_share_one_ring(tmp_path: Path) -> None:
    """Fifty watchers all see the same fifty events."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stub: Any = served.channel(USER).unary_stream("/holdfast.v1.JobService/WatchJob")
        request = codec.encode(wire.WatchJobRequest(min_interval_seconds=60))
        calls = [stub(request) for _ in range(50)]
        for call in calls:
            await call.read()
        say(served, *(str(at) for at in range(50)))
        for call in calls:
            got = [
                codec.decode(wire.WatchJobResponse, await call.read()).message for _ in range(50)
            ]
            assert [item.text for item in got if isinstance(item, wire.JobEvent)] == [
                str(at) for at in range(50)
            ]
