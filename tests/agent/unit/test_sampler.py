"""The sampler goes on whatever it meets."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast_agent.health import sampler
from holdfast_agent.health.sampler import Sampler
from holdfast_agent.policies import schedules
from holdfast_agent.policies.round_phases import Orders
from holdfast_wire.messages import ClockProbe, ClockReply, CollectiveSamples, HealthPolicy


async def test_a_defect_in_a_sample_is_logged_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody foresaw must not end the agent, and with it the training."""
    monkeypatch.setattr(schedules, "until_multiple", lambda *_: 0.01)
    current = SimpleNamespace(number=1, dead=False, orders=Orders.NONE, pids={0: 1}, exits={})
    runner = SimpleNamespace(current=current)  # without log files: asking its rank fails
    probes: list[object] = []
    third = asyncio.Event()

    def report(message: object, _: int) -> None:
        probes.append(message)
        if len(probes) > 2 * sampler.PROBES:
            third.set()

    made = Sampler(cast("Any", runner), report)
    made.policy = HealthPolicy()
    task = asyncio.create_task(made.run())
    async with asyncio.timeout(20):
        await third.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.text.count("a sample failed") == 2


def _answer(number: int, at_ns: int) -> bytes:
    """Return a flight recorder's answer with one collective."""
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [],
        "input_dtypes": [],
        "time_created_ns": at_ns,
        "is_p2p": False,
    }
    return json.dumps({"entries": [entry]}).encode()


class _Node:
    """A sampler of one rank, a Unix clock that a test sets, a master that answers at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unix = 1e9
        self.issued = 0
        self.sent: list[CollectiveSamples] = []
        self.round = SimpleNamespace(number=1, pids={0: 1}, exits={})
        self.sampler = Sampler(cast("Any", SimpleNamespace(current=self.round)), self._report)
        clocks = SimpleNamespace(
            time=lambda: self.unix, monotonic=lambda: 5.0, thread_time=lambda: 0.0
        )
        monkeypatch.setattr(sampler, "time", clocks)
        monkeypatch.setattr(self.sampler, "_ask", self._asked)

    def _report(self, message: Any, _: int) -> None:
        if isinstance(message, CollectiveSamples):
            self.sent.append(message)
        else:
            assert isinstance(message, ClockProbe)
            reply = ClockReply(probe_id=message.probe_id, master_unix=1e9)
            self.sampler.on_clock(reply)

    async def _asked(self, _: object, rank: int) -> bytes:
        self.sampler.ranks.setdefault(rank, sampler.RankSamples())
        self.issued += 1
        return _answer(self.issued, int(self.unix * 1e9))

    def sample(self) -> int:
        """Sample once; return how many samples have been sent so far."""
        asyncio.run(self.sampler._sample(cast("Any", self.round)))
        return len(self.sent)


def test_after_a_clock_was_set_one_sample_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has collectives by the old clock and by the new one; the next has the new offset."""
    node = _Node(monkeypatch)
    assert [node.sample(), node.sample()] == [1, 2]
    node.unix += 0.05
    assert [node.sample(), node.sample()] == [2, 3]
    assert node.sent[-1].clock_offset_seconds == pytest.approx(-0.05)


def test_another_master_is_asked_for_the_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock may be another one: no answer of the one before is used."""
    node = _Node(monkeypatch)
    node.sample()
    monkeypatch.setattr(node.sampler, "_probe", lambda: None)
    assert node.sample() == 2
    node.sampler.welcomed(HealthPolicy())
    assert node.sample() == 2


def test_the_cost_of_a_sample_is_the_slowest_answer_and_the_agent_s_own_time() -> None:
    """Ranks answer at the same time, then wait for each other; answers that waited do not count."""
    made = Sampler(cast("Any", SimpleNamespace(current=None)), lambda *_: None)
    assert made._cost() == 0.0
    for rank, seconds in ((0, (0.002, 0.5)), (1, (0.003, 0.004)), (2, ())):
        made.ranks[rank] = sampler.RankSamples()
        made.ranks[rank].seconds.extend(seconds)
    made._own_seconds.extend((0.0, 0.001, 0.2))
    assert made._cost() == pytest.approx(0.004)


def test_a_rank_whose_answer_cannot_be_read_costs_the_others_nothing() -> None:
    """Its neighbour's collectives are taken."""
    seen, seconds = sampler._read({0: b"torn", 1: _answer(3, 10**18)})
    assert [(rank, window.last) for rank, (window,) in seen.items()] == [(1, 3)]
    assert seconds > 0
