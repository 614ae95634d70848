"""Scenarios of a loaded master, and the measurements during each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import grpc

from bench.load import figures
from bench.load.herd import Herd, LoadError
from bench.load.master import LoadedMaster, Probe, ask, heartbeat_effects
from bench.load.results import FAILURE, HERD, OURS, STEADY, WORLD, LoadResult
from bench.load.usage import Usage
from holdfast_wire.messages import GetJobRequest, JobPhase
from holdfast_wire.reasons import EventReason

SETTLE_SECONDS = 3.0
PARTS = 3
"""Windows of a steady state: their spread is shown."""
BACK_SECONDS = 600.0
"""A herd that is not back by then never comes."""
AFTER_HERD_SECONDS = 15.0
"""Longer than a restored master waits for those who are missing: it shall have had its chance."""
_LOST = frozenset({"NodeLost", "NodeDisconnected"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One size of the benchmark."""

    agents: int
    ranks: int = 1
    interval_s: float = 0.0
    """Time between heartbeats; 0: what the master gives to so many."""
    steady_s: float = 30.0
    failures: int = 10
    herd: bool = True
    watchers: int = 0

    @property
    def variant(self) -> str:
        """Return the difference from the ordinary plan of its size."""
        words = [f"{self.ranks} ranks each"] if self.ranks != 1 else []
        words += [f"a heartbeat per {self.interval_s:g} s"] if self.interval_s else []
        return ", ".join(words)

    def core(self) -> dict[str, float]:
        """Return the settings of the master's core."""
        if not self.interval_s:
            return {}
        # As many messages per second as make the interval this long.
        return {"crowd_nodes": 1, "crowd_messages_per_second": self.agents / self.interval_s}


def start_world(master: LoadedMaster, herd: Herd, agents: int, **special: Any) -> float:
    """Connect everybody and form the first world; seconds from the last Warmed to the last told."""
    last = agents - 1
    herd.connect(held=last, **special)
    time.sleep(SETTLE_SECONDS)
    began = herd.tell(last, "warm")["at"]
    state = told_all(herd, 1, agents)
    trains(master)
    return float(state["rounds"][1][1] - began)


def trains(master: LoadedMaster, seconds: float = 60.0) -> float:
    """Connect and wait until the job trains; the monotonic time then.

    A master that has just told a crowd may not take a new connection for a while.

    Raises:
        LoadError: it does not.
    """
    end = time.monotonic() + seconds
    with master.link() as link:
        while (phase := _phase(link)) != JobPhase.TRAINING.name:
            if time.monotonic() > end:
                raise LoadError(
                    f"the job does not train: {phase}; the master's log is {master.log}"
                )
            time.sleep(0.1)
    return time.monotonic()


def _phase(link: grpc.Channel) -> str:
    try:
        return str(ask(link, "GetJob", GetJobRequest()).status.phase.name)
    except grpc.RpcError as error:
        return str(error)


def steady(plan: Plan, master: LoadedMaster, herd: Herd) -> LoadResult:
    """Measure without any event: first the use alone, in three parts, then the answers' delays."""
    load = os.getloadavg()[0]
    time.sleep(SETTLE_SECONDS)
    with master.link() as link:
        _, newest = master.events(link, 1 << 40)
        parts = [_part(master, herd, plan.steady_s / PARTS) for _ in range(PARTS)]
        found = {name: figures.percentile([part[name] for part in parts], 50) for name in parts[0]}
        found |= latencies(plan, master, herd)
        events, _ = master.events(link, newest)
    found["lost"] = sum(event.reason in _LOST for event in events)
    samples = {"message_us": [part["message_us"] for part in parts]}
    return _result(plan, STEADY, found, load, samples=samples)


def _part(master: LoadedMaster, herd: Herd, seconds: float) -> dict[str, float]:
    herd.forget()
    window = Window(master)
    time.sleep(seconds)
    state = herd.state()
    found = window.close(state["sent"])
    found["generator_late_max_ms"] = 1000 * state["late_max"]
    return found


def latencies(plan: Plan, master: LoadedMaster, herd: Herd) -> dict[str, float]:
    """Probe for half as long as the steady state was watched."""
    began = master.look().cpu_s
    with Probe(master) as probe:
        since = time.monotonic()
        effects = heartbeat_effects(
            master, lambda loss: herd.tell(0, "tell_loss", loss=loss)["at"], 20
        )
        time.sleep(max(1.0, plan.steady_s / 2 - (time.monotonic() - since)))
        passed = time.monotonic() - since
    found = figures.spread(probe.delays, "probe_ms", 1000)
    found |= figures.spread(effects, "heartbeat_seen_ms", 1000)
    found["probed_cores"] = (master.look().cpu_s - began) / passed
    return found


class Window:
    """Some time of a master's life."""

    def __init__(self, master: LoadedMaster) -> None:
        self._master = master
        self._before: Usage = master.look()
        self._since = time.monotonic()

    def close(self, messages: int) -> dict[str, float]:
        """Return the use, whole and for each of ``messages``."""
        after = self._master.look()
        passed = time.monotonic() - self._since
        cpu = after.cpu_s - self._before.cpu_s
        return {
            "cores": cpu / passed,
            "messages_per_s": messages / passed,
            "message_us": 1e6 * cpu / max(1, messages),
            "rss_mb": after.rss_mb,
            "peak_mb": after.peak_mb,
            "files": after.files,
        }


def world(plan: Plan, master: LoadedMaster, herd: Herd) -> LoadResult:
    """Connect everybody and measure how soon the first world is there."""
    load, began = os.getloadavg()[0], time.monotonic()
    seconds = start_world(master, herd, plan.agents)
    found = {"told_s": seconds, "connected_s": time.monotonic() - began - seconds - SETTLE_SECONDS}
    own = master.own_part(EventReason.NODE_WARM)
    found |= {} if own is None else {"own_s": own}
    return _result(plan, WORLD, found, load)


def failures(plan: Plan, master: LoadedMaster, herd: Herd) -> LoadResult:
    """Have workers fail, one after another, and measure how soon everybody is told."""
    load = os.getloadavg()[0]
    delays, training, cpu, own = [], [], [], []
    for number in range(plan.failures):
        newest = max(herd.state()["rounds"])
        before = master.look().cpu_s
        began = herd.tell(number * 7919 % plan.agents, "fail")["at"]
        following = newest + 1
        state = told_all(herd, following, plan.agents)
        cpu.append(master.look().cpu_s - before)
        delays.append(state["rounds"][following][1] - began)
        training.append(trains(master) - began)
        part = master.own_part(EventReason.WORKER_FAILED)
        own += [] if part is None else [part]
        time.sleep(1.0)
    found = figures.spread(delays, "told_s") | {"cpu_s_p50": figures.percentile(cpu, 50)}
    found |= {"training_s_p50": figures.percentile(training, 50)}
    found |= {"own_s_p50": figures.percentile(own, 50)} if own else {}
    return _result(plan, FAILURE, found, load, samples={"told_s": delays, "own_s": own})


def thunder(plan: Plan, master: LoadedMaster, herd: Herd) -> LoadResult:
    """Kill the master, start its successor, and measure how soon everybody is back."""
    load = os.getloadavg()[0]
    rounds = len(herd.state()["rounds"])
    master.kill()
    herd.forget()
    began = time.monotonic()
    master.start()
    serving = time.monotonic()
    state = herd.wait("all are back", lambda s: s["up"] == plan.agents, BACK_SECONDS)
    trains(master, 120)
    time.sleep(AFTER_HERD_SECONDS)
    after, used = herd.state(), master.look()
    found = {
        "serving_s": serving - began,
        "welcomed_s": state["welcomed_at"] - serving,
        "peak_mb": used.peak_mb,
        "rss_mb": used.rss_mb,
        "cpu_s": used.cpu_s,
        "rounds_made": float(len(after["rounds"]) - rounds),
        "workers_killed": float(after["killed"]),
        "attempts": float(sum(after["ended"].values())),
        "sent_away": float(sum(after["left"].values())),
    }
    return _result(plan, HERD, found, load, limits=str(after["left"] or ""))


def told_all(herd: Herd, round_number: int, agents: int) -> dict[str, Any]:
    """Wait until every agent has its place in a round; the counts then."""
    what = f"everybody is told of round {round_number}"
    return herd.wait(what, lambda state: told(state, round_number) == agents, 60)


def told(state: dict[str, Any], round_number: int) -> int:
    """Return how many agents have got their place in a round."""
    count: int = state["rounds"].get(round_number, (0, 0.0))[0]
    return count


def _result(
    plan: Plan,
    scenario: str,
    found: dict[str, float],
    load: float,
    *,
    samples: dict[str, list[float]] | None = None,
    limits: str = "",
) -> LoadResult:
    return LoadResult(
        system=OURS,
        scenario=scenario,
        clients=plan.agents,
        variant=plan.variant,
        figures=found,
        samples=samples or {},
        load=load,
        limits=limits,
    )
