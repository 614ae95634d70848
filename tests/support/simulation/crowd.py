"""A crowd of nodes: what a failure that everybody hears of, and judging stragglers, cost."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

from holdfast_master.job.health import samples, stragglers
from holdfast_master.process.os_process import COLLECT_AFTER
from holdfast_wire.messages import JobPhase
from simulation.job import Job
from simulation.scenario import Scenario


def told_seconds(nodes: int) -> float:
    """Return the CPU time from the death of a worker to the last agent with its assignment, s.

    Master and agents together: on the simulated network all of them are this process.
    """
    job = Job(
        Scenario(seed=1, replicas=nodes, minimum=nodes, maximum=nodes, heartbeat=5.0, raises=0.0)
    )
    job.make_pods(nodes)
    job.time.run(20.0, lambda: job.phase is JobPhase.TRAINING)
    assert job.phase is JobPhase.TRAINING
    number = job.master.core.job.state.round
    job.time.run(job.time.now + 1.0)
    gc.collect()
    gc.freeze()  # a pass over the simulation's own millions of objects is no cost of a master
    begin = time.process_time()
    job.agents[nodes // 2].workers.exit(0, -9)
    told = job.time.run(job.time.now + 1.0, lambda: job.checks.starts.get(number + 1, 0) == nodes)
    spent = time.process_time() - begin
    gc.unfreeze()
    assert told, f"{job.checks.starts.get(number + 1, 0)} agents of {nodes} were told"
    return spent


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """What the judgement of stragglers costs a master; CPU seconds, bytes."""

    taking: float
    """Taking one rank's sample, in the mean."""
    slices: tuple[float, ...]
    """Each slice of the looks at all ranks: meanwhile the master takes no input."""
    named_after: float
    """From the first slow step of a node to the event, virtual seconds; infinite: none."""
    kept: int
    """Samples that are kept after the last look."""


def judged(nodes: int, learn: float, most: float) -> Judged:
    """Return the cost for a world of so many nodes with one rank each.

    learn: before a node becomes half as slow again, virtual seconds. most: after that.
    """
    scenario = Scenario(
        seed=1, replicas=nodes, minimum=nodes, maximum=nodes, heartbeat=5.0, samples=True
    )
    job = Job(scenario)
    job.make_pods(nodes)
    job.time.run(20.0, lambda: job.phase is JobPhase.TRAINING)
    gc.collect()
    gc.freeze()  # as in `told_seconds`
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)  # as a master has it
    with _timed(samples, "_take") as taken, _timed(stragglers, "go_on") as slices:
        job.time.run(job.time.now + learn)
        core, begun = job.master.core, job.time.now
        job.agents[nodes // 2].workers.slow_down(0.5)
        named = job.time.run(begun + most, lambda: bool(core.job.health.slow))
    gc.set_threshold(*usual)
    gc.unfreeze()
    return Judged(
        taking=sum(taken) / len(taken),
        slices=tuple(slices),
        named_after=job.time.now - begun if named else math.inf,
        kept=sum(
            sys.getsizeof(run.signatures) + sys.getsizeof(run.at)
            for group in core.job.health.groups.values()
            for runs in group.samples.values()
            for run in runs
        ),
    )


@contextlib.contextmanager
def _timed(module: Any, name: str) -> Iterator[list[float]]:
    """Let each call of a function add its CPU time to a list."""
    right, spent = vars(module)[name], list[float]()

    def timed(*args: Any) -> None:
        begin = time.process_time()
        right(*args)
        spent.append(time.process_time() - begin)

    setattr(module, name, timed)
    try:
        yield spent
    finally:
        setattr(module, name, right)
