"""The measurements: each takes a stage, or makes its own, and returns figures."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any, Final

from bench.scale import stored
from bench.scale.process import Moment, quantile, quiet
from bench.scale.stage import JOBS, PODS, ScaleStage, job, until_ready
from holdfast_operator.plan.pods import WORKER
from holdfast_wire import keys

Figures = dict[str, Any]
_CALM_CORES: Final = 0.5
_TOUCHES_AT_ONCE: Final = 16
_SPREAD: Final = 7
"""Seed of the choice of pods."""
_QUIET_SECONDS: Final = 300.0
_REPORT_SECONDS: Final = 0.5
"""A master's own period."""
_WARM_SECONDS: Final = 5.0
_MORE_CORES: Final = 0.1
"""Than in the steady state: an operator that uses no more has nothing left to do."""


async def created(stage: ScaleStage, jobs: int, workers: int, limit_s: float) -> Figures:
    """Apply all jobs at once; until all pods exist, then until all run and all masters are heard.

    Pods exist when the watch of the kubelets' stub has shown them.
    """
    masters = jobs if stage.masters.serves else 0
    pods = jobs * workers + jobs * stage.masters.serves
    kubelets = stage.kubelets
    before, began = await stage.operator.moment(), time.monotonic()
    stage.operator.jobs += jobs
    await stage.apply(jobs, workers)
    await stage.until("all pods", lambda: len(kubelets.made) >= pods, limit_s)
    made_s = max(kubelets.made.values()) - began
    await stage.until("all run", lambda: len(kubelets.running) >= pods, limit_s)
    await stage.until("all masters", lambda: stage.masters.streams >= masters, limit_s)
    running_s = time.monotonic() - began
    settled_s = await quiet(stage.operator, _CALM_CORES, limit_s)
    after = await stage.operator.moment()
    use = after.since(before)
    return {
        "pods": pods,
        "created_s": round(made_s, 1),
        "running_s": round(running_s, 1),
        "settled_s": round(running_s + settled_s, 1),
        "cpu_s": round(use.cpu_s, 1),
        "cpu_ms_per_pod": round(use.cpu_s / pods * 1e3, 2),
        "events": kubelets.events,
        "requests_per_pod": round(use.requests / pods, 2),
        "looks": use.looks,
        "look_p99_s": round(use.look_p99_s, 3),
        **_memory(after),
    }


async def taken_over(stage: ScaleStage, jobs: int, workers: int, limit_s: float) -> Figures:
    """Store all jobs with pods that run, start an operator; until it hears all masters."""
    pods = jobs * (workers + 1)
    await stage.client.call("POST", JOBS, job(stored.SAMPLE, workers))
    await stage.until("the sample", lambda: len(stage.kubelets.running) > workers, limit_s)
    await stage.until("its master", lambda: stage.masters.streams == 1, limit_s)
    await quiet(stage.operator, 0.1, limit_s)
    await stage.operator.stop()
    await stored.store(stage, jobs)
    running = stage.kubelets.running
    await stage.until("all stored", lambda: len(running) > pods + workers, limit_s, ended=True)
    stage.operator, began = stage.begin(), time.monotonic()
    stage.operator.jobs = jobs + 1
    await until_ready(stage)
    ready_s = time.monotonic() - began
    await stage.until("all masters", lambda: stage.masters.streams > jobs, limit_s)
    heard_s = time.monotonic() - began
    settled_s = await quiet(stage.operator, _CALM_CORES, limit_s)
    after = await stage.operator.moment()
    return {
        "pods": pods + workers + 1,
        "ready_s": round(ready_s, 1),
        "heard_s": round(heard_s, 1),
        "settled_s": round(heard_s + settled_s, 1),
        "cpu_s": round(after.usage.cpu_s, 1),
        "cpu_ms_per_pod": round(after.usage.cpu_s / pods * 1e3, 2),
        "requests": after.requests,
        "requests_per_job": round(after.requests / jobs, 2),
        "look_p99_s": round(quantile(after.looks, 0.99), 3),
        **_memory(after),
    }


async def steady(stage: ScaleStage, seconds: float) -> Figures:
    """Do nothing to the cluster for a while."""
    before = await stage.operator.moment()
    await asyncio.sleep(seconds)
    after = await stage.operator.moment()
    use = after.since(before)
    return {
        "seconds": round(use.seconds, 1),
        "cores": round(use.cpu_s / use.seconds, 3),
        "requests_per_s": round(use.requests / use.seconds, 2),
        "looks_per_s": round(use.looks / use.seconds, 2),
        **_memory(after),
    }


async def training(stage: ScaleStage, seconds: float) -> Figures:
    """Have all jobs train: their masters report steps, as often as the operator lets them."""
    stage.masters.step_seconds = _REPORT_SECONDS
    try:
        await asyncio.sleep(_WARM_SECONDS)
        return await steady(stage, seconds)
    finally:
        stage.masters.step_seconds = 0.0


async def events(stage: ScaleStage, count: int, idle_cores: float) -> Figures:
    """Write the statuses of pods of all jobs, in drawn order: each loses Ready, then gets it."""
    return await _events(stage, count, idle_cores, (False, True))


async def same_events(stage: ScaleStage, count: int, idle_cores: float) -> Figures:
    """Write them twice with another text only, which no decision depends on."""
    return await _events(stage, count, idle_cores, (True, True))


async def _events(
    stage: ScaleStage, count: int, idle_cores: float, flags: tuple[bool, bool]
) -> Figures:
    """Measure writes of statuses; what the operator does anyway meanwhile is left out."""
    chance = random.Random(_SPREAD)
    pods = [uid for uid, one in stage.kubelets.running.items() if _is_worker(one)]
    chosen = chance.sample(pods, min(len(pods), count))
    slots = asyncio.Semaphore(_TOUCHES_AT_ONCE)

    async def touch(uid: str, ready: bool, text: str) -> None:  # noqa: FBT001 - one of two
        async with slots:
            await stage.kubelets.touch(stage.kubelets.running[uid], ready=ready, text=text)

    before, seen = await stage.operator.moment(), stage.kubelets.events
    for number, ready in enumerate(flags):
        await asyncio.gather(*(touch(uid, ready, f"{number} {before.at}") for uid in chosen))
    await quiet(stage.operator, idle_cores + _MORE_CORES, _QUIET_SECONDS)
    use = (await stage.operator.moment()).since(before)
    written = stage.kubelets.events - seen
    return {
        "events": written,
        "seconds": round(use.seconds, 1),
        "cpu_ms_per_event": round((use.cpu_s - idle_cores * use.seconds) / written * 1e3, 3),
        "looks": use.looks,
        "look_p99_s": round(use.look_p99_s, 4),
        "requests": use.requests,
    }


async def torn(stage: ScaleStage, idle_cores: float) -> Figures:
    """Cut every connection to the API server; all is listed again.

    Measured until a worker's pod that is deleted right after has a successor, and until the
    operator is calm.
    """
    stage.operator.forget_peak()
    before, began = await stage.operator.moment(), time.monotonic()
    cut = stage.gate.cut()
    victim = next(filter(_is_worker, stage.kubelets.running.values()))
    known = set(stage.kubelets.made)
    await stage.client.call("DELETE", f"{PODS}/{victim['metadata']['name']}")
    await stage.until("a successor", lambda: len(stage.kubelets.made) > len(known), 300.0)
    acted_s = time.monotonic() - began
    calm_s = await quiet(stage.operator, idle_cores + _MORE_CORES, _QUIET_SECONDS)
    after = await stage.operator.moment()
    use = after.since(before)
    return {
        "connections": cut,
        "acts_again_s": round(acted_s, 1),
        "calm_s": round(acted_s + calm_s, 1),
        "cpu_s": round(use.cpu_s, 2),
        "requests": use.requests,
        **_memory(after),
    }


def _is_worker(pod: Any) -> bool:
    return bool(pod["metadata"]["labels"][keys.LABEL_ROLE] == WORKER)


def _memory(moment: Moment) -> Figures:
    return {"rss_mb": round(moment.usage.rss_mb, 1), "peak_mb": round(moment.usage.peak_mb, 1)}


def load() -> float:
    """Return the load of the machine, 1 minute."""
    return round(os.getloadavg()[0], 1)
