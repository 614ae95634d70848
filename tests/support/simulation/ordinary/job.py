"""An ordinary job under Report or under Act, from its first pod to its end, and what it cost.

Belongs here: the job, its fault, and the node-seconds. Does not belong here: what its script does
(`habits`), which rules it is judged by (the master's own).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

from holdfast_master.policies.hang_response import HangKind
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import HangPolicy, HealthMode, HealthPolicy, Incident, StragglerPolicy
from holdfast_wire.reasons import Cause, EventReason
from simulation.ordinary.agent import OrdinaryAgent
from simulation.ordinary.habits import Habits, Trouble
from simulation.ordinary.training import OrdinaryTraining
from simulation.steered.job import SteeredJob, job_spec
from simulation.training import Round

TIMEOUT_SECONDS = 1800.0
"""Of a collective: gloo's own. Then all ranks raise, and the job begins anew."""
HORIZON = 4.0
"""Times the work of a job after which nobody waits for it any more."""
SETTINGS = CoreSettings(heartbeat_seconds=10.0, lease_seconds=30.0, silence_seconds=50.0)
"""Few messages: hours pass in seconds."""
_COUNT_SECONDS = 5.0
_REPLACE_SECONDS = 20.0
"""Until another pod runs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """What one job came to."""

    node_seconds: float
    """Of all pods, standbys included, until its end."""
    ended: bool
    """False: it was given up at the horizon."""
    actions: Counter[str]
    """What its master did about stragglers and hangs, by kind."""
    said: tuple[str, ...]
    """Those events."""


def health(mode: HealthMode) -> HealthPolicy:
    """Return the defaults of `spec.health` in one mode, with shorter windows."""
    return HealthPolicy(
        hang=HangPolicy(
            mode=mode, step_time_factor=10.0, min_seconds=45.0, first_step_seconds=1800.0
        ),
        straggler=StragglerPolicy(
            mode=mode, slowdown_percent=20.0, window_steps=20, votes=3, votes_out_of=5
        ),
    )


class OrdinaryJob(SteeredJob):
    """A job of one script."""

    agent_type = OrdinaryAgent
    training_type = OrdinaryTraining
    training: OrdinaryTraining
    validates = False

    def __init__(self, habits: Habits, mode: HealthMode) -> None:
        self.habits = habits
        OrdinaryTraining.habits = habits
        spec = job_spec(
            replicas=habits.nodes,
            min_replicas=habits.least,
            max_replicas=habits.nodes,
            standbys=habits.standbys,
            health=health(mode),
        )
        super().__init__(spec, seed=habits.seed, target=habits.steps, settings=SETTINGS, raises=1.0)
        self.scenario = dataclasses.replace(
            self.scenario, samples=True, local=habits.local, replace_delay=_REPLACE_SECONDS
        )
        self.node_seconds = 0.0
        self.hangs: dict[Round, float] = {}

    def course(self) -> Bill:
        """Run it to its end."""
        habits = self.habits
        self.add_agents(habits.nodes + habits.standbys)
        if habits.trouble is not Trouble.NONE:
            self.time.at(habits.trouble_at, _TROUBLES[habits.trouble], self)
        self._count()
        until = HORIZON * habits.steps * habits.step + 3600.0
        ended = self.time.run(until, lambda: self.over)
        return Bill(self.node_seconds, ended, *self._actions())

    def _count(self) -> None:
        """Add the pods up, and raise where a collective has waited for too long."""
        if self.over:
            return
        self.node_seconds += _COUNT_SECONDS * sum(one.alive for one in self.agents.values())
        for found in list(self.training.live.values()):
            self._infect(found)
            since = self.hangs.setdefault(found, self.time.now) if found.stuck else None
            if since is None:
                self.hangs.pop(found, None)
            elif self.time.now - since >= TIMEOUT_SECONDS:
                for member in list(found.members.values()):
                    member.exit(0, 1, "RuntimeError")  # type: ignore[attr-defined]
        self.time.after(_COUNT_SECONDS, self._count)

    def _infect(self, found: Round) -> None:
        """Ranks on a node with a dead storage read, and wait for ever."""
        for agent in self.agents.values():
            current = agent.workers.current
            if agent.dead_storage and current is not None and current.physics is found:  # type: ignore[attr-defined]
                agent.sampling.hang(HangKind.STORAGE, 0)

    def _actions(self) -> tuple[Counter[str], tuple[str, ...]]:
        texts, actions = [], Counter[str]()
        wanted = (EventReason.STRAGGLER_EXCLUDED, EventReason.HANG_FOUND)
        for event in self.core.events_after(0, 100_000):
            if event.reason in wanted:
                texts.append(f"{event.reason}: {event.text}")
            actions["excluded"] += event.reason == EventReason.STRAGGLER_EXCLUDED
        cases: list[Incident] = list(self.core.job.state.incidents.values())
        actions["restarted"] = sum(case.cause == Cause.HUNG for case in cases)
        return +actions, tuple(texts)

    def victim(self) -> OrdinaryAgent:
        """Return the agent that a fault meets."""
        living = list(self.members or sorted(self.agents))
        found: OrdinaryAgent = self.agents[living[self.habits.victim % len(living)]]  # type: ignore[assignment]
        return found


def _hang(job: OrdinaryJob) -> None:
    if job.victim().sampling.hang(job.habits.hang, 0) is None and not job.over:
        job.time.after(10.0, _hang, job)


def _slow(job: OrdinaryJob) -> None:
    job.victim().workers.slow_down(job.habits.slow)


def _dead(job: OrdinaryJob) -> None:
    job.victim().dead_storage = True


_TROUBLES: dict[Trouble, Callable[[OrdinaryJob], None]] = {
    Trouble.HANG: _hang,
    Trouble.SLOW: _slow,
    Trouble.STORAGE: _dead,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One job under both modes."""

    habits: Habits
    report: Bill
    act: Bill

    @property
    def more(self) -> float:
        """Node-seconds that Act cost more than Report."""
        return self.act.node_seconds - self.report.node_seconds


def compare(habits: Habits) -> Comparison:
    """Run a job under Report and under Act; nothing else differs."""
    bills = [OrdinaryJob(habits, mode).course() for mode in (HealthMode.REPORT, HealthMode.ACT)]
    return Comparison(habits, *bills)
