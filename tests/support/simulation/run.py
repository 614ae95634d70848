"""The course of a run: begin, let the schedule happen, see that the job recovers, end it.

Belongs here: what is demanded of a job once nothing goes wrong any more. Does not belong here: the
invariants that hold all the time.
"""

from __future__ import annotations

import dataclasses
import gc
import zlib
from collections import Counter

from holdfast_master.job.state.phases import InvalidPhaseTransitionError
from holdfast_wire.messages import JobPhase
from holdfast_wire.reasons import EndReason
from simulation import faults
from simulation.job import Job
from simulation.oracle import invariants
from simulation.oracle.invariants import Broken, require
from simulation.scenario import Scenario

HEAL_SECONDS = 4.0
"""Between the end of the last fault and the last missing pods being made."""
RECOVERY_SECONDS = 60.0
"""Within this long after that the job trains at its full size."""
END_SECONDS = 75.0
"""Within this long after the script's end the job has ended."""
LAST_STEPS = 30
_STOPS = {"stop_job": EndReason.STOPPED_BY_USER, "stop_request": EndReason.STOPPED_BY_OPERATOR}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    scenario: Scenario
    invariant: str
    """The first that was broken; empty: none."""
    text: str
    """Why, for people."""
    tale: str
    """Newest events of the newest master."""
    inputs: int
    seconds: float
    """Virtual."""
    seen: Counter[tuple[JobPhase, str]]
    fingerprint: tuple[object, ...]
    """Equal for equal runs."""
    named: Counter[str] = dataclasses.field(default_factory=Counter)
    """Stragglers and hangs that had to be named and were, by kind."""

    @property
    def ok(self) -> bool:
        """Return whether every invariant held."""
        return not self.invariant


def run(scenario: Scenario) -> Outcome:
    """Run a scenario to its end, or to the first invariant that does not hold."""
    invariant, text = "", ""
    collects = gc.isenabled()
    gc.disable()  # a run makes much and no garbage that matters; one collection after it is enough
    job = Job(scenario)
    try:
        _course(job)
    except Broken as error:
        invariant, text = error.invariant, str(error)
    except InvalidPhaseTransitionError as error:
        invariant, text = "core", str(error)
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding
        invariant, text = f"crash:{type(error).__name__}", _where(error)
    finally:
        if collects:
            gc.enable()
    return Outcome(
        scenario,
        invariant,
        text,
        job.tale() if invariant else "",
        job.inputs,
        job.time.now,
        job.seen,
        _fingerprint(job),
        job.checks.health.named,
    )


def _where(error: Exception) -> str:
    """The error with the last place of each file that it came through."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}; at {' < '.join(reversed(places[-6:]))}"


def _fingerprint(job: Job) -> tuple[object, ...]:
    state = job.master.core.job.state
    told = "\n".join(f"{e.sequence} {e.unix_time!r} {e.text}" for e in state.events)
    digest = zlib.crc32(told.encode())
    return (job.inputs, job.time.events, job.time.now, state.sequence, state.round, digest)


def _course(job: Job) -> None:
    scenario = job.scenario
    job.make_pods(scenario.replicas + scenario.standbys)
    for fault in scenario.faults:
        job.time.at(fault.at, faults.apply, job, fault)
    quiet_at = max([fault.at + fault.span for fault in scenario.faults], default=0.0)
    job.time.run(quiet_at + HEAL_SECONDS, lambda: job.over)
    if not job.over:
        _recovers(job)
    if not job.over:
        _succeeds(job)
    if job.master.up:
        job.master.watch.ended()
    _ended_rightly(job)


def _recovers(job: Job) -> None:
    """Missing pods are made; within a bound the job trains with all of its nodes."""
    job.operator.lateness = 0.0
    job.stores_work()
    job.operator.leave()
    job.operator.come_back()
    promises = job.checks.promises
    whole, until = False, job.time.now + RECOVERY_SECONDS
    while not whole and job.time.now < until:
        job.operator.make_missing()
        pause = min(until, job.time.now + HEAL_SECONDS)
        whole = job.time.run(pause, lambda: job.over or (is_whole(job) and promises.kept()))
    newest = job.master.core.job.worlds.newest
    members = len(newest.places) if newest else 0
    text = (
        f"{RECOVERY_SECONDS:.0f} s after the last fault the job is {job.phase.name} with "
        f"{members} nodes, wanted are {largest(job)}"
    )
    if not whole and is_whole(job):
        promises.check()
    require(whole, "progress", text)


def largest(job: Job) -> int:
    """The size that the job is to have."""
    spec = job.operator.spec
    unit = max(1, spec.node_unit)
    return min(spec.replicas, spec.max_replicas) // unit * unit


def _pays(job: Job, missing: int) -> bool:
    """Return whether more nodes gain more than the pause costs. Among thousands one does not."""
    context = job.master.core.job
    gain = context.settings.grow_horizon_seconds * missing / max(1, largest(job))
    return missing > 0 and gain > context.worlds.rescale_cost


def is_whole(job: Job) -> bool:
    """Return whether the job trains with all of its nodes."""
    world = job.master.core.job.worlds.running()
    return (
        job.phase is JobPhase.TRAINING
        and job.master.acting
        and world is not None
        and len(world.places) <= largest(job)
        and not _pays(job, largest(job) - len(world.places))
        and all(job.agents[rank].reaches(job.master) for rank in world.places)
        and _are_together(job)
    )


def _are_together(job: Job) -> bool:
    """Return whether the newest roster has all replicas, if there are some, and all know it."""
    context = job.master.core.job
    world, roster = context.worlds.running(), context.state.roster
    if world is None or not world.replicas:
        return True
    told = [job.agents[rank].rosters for rank in world.places]
    known = roster is not None and all(one and one[-1].roster == roster for one in told)
    numbers = tuple(one.number for one in world.replicas)
    return known and roster is not None and roster.replicas == numbers


def _succeeds(job: Job) -> None:
    """The script comes to its end, and so does the job."""
    job.training.retarget(job.training.best + LAST_STEPS)
    job.time.run(job.time.now + END_SECONDS, lambda: job.over)
    text = f"{END_SECONDS:.0f} s after the script's end the job is {job.phase.name}"
    require(job.over, "ends", text)


def _ended_rightly(job: Job) -> None:
    finished, state = job.master.finished, job.master.core.job.state
    if finished is None:
        raise Broken("ends", "the job did not end")
    if finished.succeeded:
        text = f"the job succeeded although the script did not end: {state.text}"
        require(job.training.best >= job.training.target, "ends_rightly", text)
        return
    stops = {fault.what for fault in job.scenario.faults}
    if finished.reason in {reason for what, reason in _STOPS.items() if what in stops}:
        return
    spent = Counter(charge.kind for charge in state.charges)
    text = f"the job failed with {finished.reason} after {dict(spent)}: {state.text}"
    require(max(spent.values(), default=0) > job.scenario.budget, "ends_rightly", text)
    invariants.require(finished.reason, "ends_rightly", "the job failed without a reason")
