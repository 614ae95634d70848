"""The faults. Each waits for a settled world, does one thing to it and says what was measured."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.recovery import measure, processes
from bench.recovery.results import NEVER, NOT_STARTED, RECOVERED, UNNOTICED, Case, Result
from bench.recovery.steplog import Event, Follower
from bench.recovery.systems import NODES, System

START_LIMIT_SECONDS = 180.0
"""The longest that a system may take until both ranks train: slow disks, cold caches."""
SETTLED_STEPS = 25
"""Steps of one round before a fault: at least two checkpoints at one every 10 steps."""
_RECENT_EVENTS = 4 * NODES * SETTLED_STEPS
"""Enough to hold so many steps of all ranks, with the checkpoints between them."""


@dataclass(slots=True)
class Trial:
    """One job under one system, and what has been seen of it."""

    case: Case
    system: System
    follower: Follower
    draw: random.Random

    def settled(self, world: int) -> bool:
        """Wait for a world of ``world`` ranks that has trained a while; False if it never does.

        Then wait a moment of random length, so that faults fall on all phases of a checkpoint
        period.
        """
        begun = time.monotonic()

        def look(events: list[Event]) -> bool | None:
            done = measure.completed_steps(events[-_RECENT_EVENTS:])[-SETTLED_STEPS:]
            recent = bool(done) and time.monotonic() - done[-1].t < 1.0
            same = len({(step.round, step.world) for step in done}) == 1
            if recent and same and len(done) == SETTLED_STEPS and done[-1].world == world:
                return True
            return False if self.system.ended() else None

        if not self.follower.wait(look, begun + START_LIMIT_SECONDS):
            return False
        time.sleep(self.draw.uniform(0.0, 0.3))
        return True

    def worker(self, rank: int) -> int:
        """Return the pid of the process that trains ``rank`` now."""
        steps = (e for e in reversed(self.follower.events()) if e.event == "step")
        return next(event.pid for event in steps if event.rank == rank)

    def agent(self, rank: int) -> int:
        """Return the pid of the agent of the node on which ``rank`` trains."""
        return self.system.agent_of(self.worker(rank))

    def result(self, measured: str, target: int, outcome: str, **more: Any) -> Result:
        """Return a result of this trial."""
        return Result(case=self.case, measured=measured, target=target, outcome=outcome, **more)

    def not_started(self, measured: str, target: int) -> Result:
        """Return the result of a fault that could not be done."""
        reason = self.system.ended() or f"no settled world within {START_LIMIT_SECONDS:.0f} s"
        return self.result(measured, target, NOT_STARTED, reason=reason)

    def watch(
        self,
        measured: str,
        target: int,
        moment: float,
        *,
        world: int | None = None,
        quiet_from: float = 0.0,
    ) -> Result:
        """Wait for the recovery from the fault at ``moment``, to the case's limit."""
        load = os.getloadavg()[0]
        old = measure.rounds_before(self.follower.events(), moment)

        def look(events: list[Event]) -> Result | None:
            found = None
            if _stepped_in_another_round(events, moment, old):  # cheap; the next line is not
                found = measure.recovery(events, moment, world=world, quiet_from=quiet_from)
            if found is not None:
                return answer(RECOVERED, recovery=found)
            ended = self.system.ended()
            return answer(NEVER, reason=f"{ended}, {self._since(moment)}") if ended else None

        def answer(outcome: str, **more: Any) -> Result:
            return self.result(measured, target, outcome, load=load, **more)

        seen = self.follower.wait(look, moment + self.case.limit_s)
        if seen is not None:
            return seen
        steps = measure.went_on(self.follower.events(), moment, moment + self.case.limit_s)
        if steps > SETTLED_STEPS:
            return answer(UNNOTICED, reason=f"{steps} more steps in the old round")
        return answer(NEVER, reason=f"no step of a new round within {self.case.limit_s:.0f} s")

    def _since(self, moment: float) -> str:
        return f"{time.monotonic() - moment:.1f} s later"


def _stepped_in_another_round(events: Sequence[Event], moment: float, old: set[int]) -> bool:
    since = itertools.takewhile(lambda event: event.t > moment, reversed(events))
    return any(event.event == "step" and event.round not in old for event in since)


def crash(trial: Trial) -> Iterator[Result]:
    """SIGKILL one worker; once the job has recovered, the other."""
    for rank in (trial.case.target, 1 - trial.case.target):
        if not trial.settled(NODES):
            yield trial.not_started("crash", rank)
            return
        moment = processes.send([trial.worker(rank)], signal.SIGKILL)
        result = trial.watch("crash", rank, moment, world=NODES)
        compared = [e.seconds for e in trial.follower.events() if e.event == "compared"]
        if compared:
            result.notes["compared"] = median(seconds or 0.0 for seconds in compared)
        yield result
        if result.outcome != RECOVERED:
            return


def node_lost(trial: Trial) -> Iterator[Result]:
    """SIGKILL an agent and all below it; then wait for the node's return."""
    target = trial.case.target
    if not trial.settled(NODES):
        yield trial.not_started("node-lost", target)
        return
    agent = trial.agent(target)
    moment = processes.send(processes.tree(agent), signal.SIGKILL)
    lost = trial.watch("node-lost", target, moment)
    yield lost
    if lost.recovery is None:
        return
    back = trial.system.bring_back(agent, moment)
    quiet_from = moment + lost.recovery.total_s
    yield trial.watch("rejoin", target, back, world=NODES, quiet_from=quiet_from)


def agent_frozen(trial: Trial) -> Iterator[Result]:
    """SIGSTOP of an agent alone: its worker is free to go on."""
    yield from _frozen(trial, "agent-frozen", lambda agent: [agent])


def node_frozen(trial: Trial) -> Iterator[Result]:
    """SIGSTOP of an agent and all below it, as of a machine that hangs."""
    yield from _frozen(trial, "node-frozen", processes.tree)


def _frozen(trial: Trial, name: str, pids: Callable[[int], list[int]]) -> Iterator[Result]:
    target = trial.case.target
    if not trial.settled(NODES):
        yield trial.not_started(name, target)
        return
    agent = trial.agent(target)
    death = processes.DeathWatch(trial.worker(target))
    moment = processes.send(pids(agent), signal.SIGSTOP)
    result = trial.watch(name, target, moment)
    if result.recovery is not None:
        result.notes["new round started"] = result.recovery.stages["started"]
    if death.died_at is not None:
        result.notes["old worker dead"] = death.died_at - moment
    yield result


SCENARIOS: dict[str, Callable[[Trial], Iterator[Result]]] = {
    "crash": crash,
    "node-lost": node_lost,
    "agent-frozen": agent_frozen,
    "node-frozen": node_frozen,
}
