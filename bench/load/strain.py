"""Watchers beside the agents, and peers that stop reading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.load import figures
from bench.load.herd import Herd, LoadError, Setup
from bench.load.master import JOB, LoadedMaster, Probe
from bench.load.results import OURS, SLOW_AGENT, SLOW_WATCHER, WATCHERS, LoadResult
from bench.load.scenarios import Plan, Window, latencies, start_world, told, trains
from holdfast_wire import codec
from holdfast_wire.messages import DumpStacksRequest

WATCH_INTERVAL_SECONDS = 1.0
SLOW_INTERVAL_SECONDS = 0.05
CUT_LIMIT_SECONDS = 60.0
FLOOD_PER_SECOND = 200
"""Messages for the agent that does not read: a round needs ten, this is a fault of the master."""
_CALM_SECONDS = 10.0


def watched(plan: Plan, master: LoadedMaster, herd: Herd, watchers: int) -> LoadResult:
    """Measure the steady state with watchers beside the agents, then how soon they hear news."""
    load = os.getloadavg()[0]
    herd.watch(watchers, WATCH_INTERVAL_SECONDS)
    herd.wait("watchers have their snapshot", lambda s: s["watching"] == watchers, 60)
    time.sleep(3.0)
    herd.forget()
    window = Window(master)
    time.sleep(plan.steady_s)
    state = herd.state()
    found = window.close(state["sent"])
    found["watched_per_s"] = state["watched"] / plan.steady_s
    found |= latencies(plan, master, herd)
    following = max(herd.state()["rounds"]) + 1
    began = herd.tell(1, "fail")["at"]
    state = herd.wait(
        "all are told",
        lambda s: told(s, following) == plan.agents and s["told"] == watchers,
        60,
    )
    found["told_s"] = state["rounds"][following][1] - began
    found["watchers_told_s"] = state["told_at"] - began
    trains(master)
    return LoadResult(
        system=OURS,
        scenario=WATCHERS,
        clients=plan.agents,
        variant=f"{watchers} watchers",
        figures=found,
        load=load,
    )


def slow_readers(agents: int, directory: Path) -> Iterator[LoadResult]:
    """Have an agent, then a watcher, stop reading while messages for it go on."""
    master = LoadedMaster(directory, agents, {})
    master.start()
    setup = Setup(master.target, JOB, master.key.hex(), 1)
    slow = agents // 2
    try:
        with Herd(setup, agents, directory / "generators.log") as herd:
            start_world(master, herd, agents, slow=slow)
            calm = _delays(master, _CALM_SECONDS)
            herd.tell(slow, "deafen")
            yield _agent(master, agents, calm, slow)
            herd.watch(1, SLOW_INTERVAL_SECONDS, slow=True)
            yield _watcher(master, herd, agents, calm)
    finally:
        master.kill()


def _delays(master: LoadedMaster, seconds: float) -> list[float]:
    with Probe(master) as probe:
        time.sleep(seconds)
    return probe.delays


def _agent(master: LoadedMaster, agents: int, calm: list[float], rank: int) -> LoadResult:
    load, before = os.getloadavg()[0], master.look()
    request = codec.encode(DumpStacksRequest(node_rank=rank))
    sent, began = 0, time.monotonic()
    with Probe(master) as probe, master.link() as link:
        call: Any = link.unary_unary("/holdfast.v1.JobService/DumpStacks")
        answers = []
        while not master.said("agent does not read"):
            _check(began, "the agent that does not read is not cut off")
            answers.append(call.future(request, timeout=5))
            sent += 1
            time.sleep(max(0.0, began + sent / FLOOD_PER_SECOND - time.monotonic()))
        passed = time.monotonic() - began
        for answer in answers:
            answer.cancel()
    found = _compared(calm, probe.delays)
    found |= {"cut_off_s": passed, "messages": float(sent)}
    found["grown_mb"] = master.look().peak_mb - before.rss_mb
    return LoadResult(system=OURS, scenario=SLOW_AGENT, clients=agents, figures=found, load=load)


def _watcher(master: LoadedMaster, herd: Herd, agents: int, calm: list[float]) -> LoadResult:
    load, before = os.getloadavg()[0], master.look()
    began = time.monotonic()
    with Probe(master) as probe:
        while not herd.state()["watch_ends"]:
            _check(began, "the watcher that does not read is not cut off")
            # News for every watcher: a failure is several events and an incident.
            herd.tell(0, "tell_loss", loss=time.monotonic())
            time.sleep(SLOW_INTERVAL_SECONDS)
        passed = time.monotonic() - began
    found = _compared(calm, probe.delays)
    found |= {"cut_off_s": passed, "grown_mb": master.look().peak_mb - before.peak_mb}
    return LoadResult(system=OURS, scenario=SLOW_WATCHER, clients=agents, figures=found, load=load)


def _compared(calm: list[float], now: list[float]) -> dict[str, float]:
    before = figures.spread(calm, "calm_probe_ms", 1000)
    return before | figures.spread(now, "probe_ms", 1000)


def _check(began: float, what: str) -> None:
    if time.monotonic() - began > CUT_LIMIT_SECONDS:
        raise LoadError(f"{what} within {CUT_LIMIT_SECONDS:.0f} s")
