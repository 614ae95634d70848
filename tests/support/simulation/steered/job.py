"""A whole job whose course a test writes: a fault at a moment of its choice, a message held back.

Belongs here: what a test does to the job, and what it asks it about. Does not belong here: the
processes and wires themselves (`job`), agents and operator that obey the test (`steered.agent`,
`steered.operator`). Its checks are few: a test may do what no real process would, and says itself
what is right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_master.core import Core
from holdfast_master.inputs import (
    Input,
    Moment,
    OperatorMessage,
    Received,
    Stalled,
    UserCall,
    UserRequest,
)
from holdfast_master.instructions import Finished, Instruction, Refuse, Reply
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import JobState
from holdfast_master.settings import CoreSettings
from holdfast_wire import messages as wire
from simulation.agent import Agent
from simulation.job import Job
from simulation.line import Line
from simulation.master import JOB_UID, Master
from simulation.operator import KINDS
from simulation.oracle import core_state
from simulation.scenario import Scenario
from simulation.steered.agent import SteeredAgent
from simulation.steered.checks import SteeredChecks
from simulation.steered.operator import SteeredOperator
from simulation.steered.training import SteeredTraining
from simulation.training import Round

__all__ = ["JOB_UID", "SteeredJob", "job_spec", "started", "training"]


def job_spec(**changes: object) -> wire.MasterSpec:
    """A spec with generous budgets."""
    spec = wire.MasterSpec(
        generation=1,
        replicas=4,
        min_replicas=2,
        max_replicas=8,
        node_unit=1,
        success_policy=wire.SuccessPolicy.ALL_WORKERS,
        join_window_seconds=5.0,
        scale_down_grace_seconds=30.0,
        below_min_timeout_seconds=600.0,
        budgets=tuple(wire.Budget(kind=kind, limit=1000) for kind in KINDS),
    )
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]


class SteeredJob(Job):
    """Drive it with the agents' and the operator's methods, let time pass with `run`."""

    agent_type = SteeredAgent
    checks_type = SteeredChecks
    operator_type = SteeredOperator
    training_type = SteeredTraining
    agents: dict[int, SteeredAgent]  # type: ignore[assignment]
    operator: SteeredOperator
    training: SteeredTraining
    validates = True
    """The core's invariants are looked at after every input."""

    def __init__(
        self,
        spec: wire.MasterSpec,
        *,
        seed: int = 0,
        target: int = 100_000,
        operator_up: bool = True,
        settings: CoreSettings | None = None,
        raises: float = 0.7,
    ) -> None:
        """`target`: steps after which the script ends."""
        self.spec, self.operator_up = spec, operator_up
        self.settings = settings or CoreSettings()
        self.replaces = True
        """The operator does what it is asked."""
        self.answers: dict[int, Reply | Refuse] = {}
        self.sent: list[tuple[int, object]] = []
        """(node rank, message) of what masters said to agents."""
        self.instructions: list[Instruction] = []
        """All that masters' cores wanted, in order."""
        self.assignments: list[tuple[float, int, int, wire.WorldAssignment]] = []
        """(time, node rank, round, assignment) of what agents accepted."""
        self.outcomes: list[tuple[int, wire.LeaveOutcome | None]] = []
        self.finished: Finished | None = None
        self.stepped_down = False
        self.saves_cut = 0
        """Nodes that were killed while their ranks saved at a barrier."""
        super().__init__(Scenario(seed=seed, raises=raises, replace_delay=1.0))
        self.training.retarget(target)
        if not operator_up:
            self.take(OperatorMessage(spec))

    def core_settings(self) -> CoreSettings:
        """Return the settings that the job's masters are started with."""
        return self.settings

    # ---------------------------------------------------------------------------------- questions

    @property
    def core(self) -> Core:
        """The newest master's."""
        return self.master.core

    @core.setter
    def core(self, core: Core) -> None:
        self.master.core = core

    @property
    def context(self) -> JobContext:
        """Of the newest master's core: it lives on with each input."""
        return self.core.job

    @property
    def state(self) -> JobState:
        """The durable state of the newest master."""
        return self.context.state

    @property
    def status(self) -> wire.JobStatus:
        """The status now."""
        return self.core.status(self.moment())

    @property
    def incidents(self) -> tuple[wire.Incident, ...]:
        """All that are remembered, oldest first."""
        return self.core.goodput(self.moment()).incidents

    @property
    def redone(self) -> list[int]:
        """Steps that were done again, by incident."""
        return [one.steps_redone for one in self.incidents]

    @property
    def epoch(self) -> int:
        """The newest master's."""
        return self.master.identity.epoch

    @property
    def records(self) -> list[wire.JournalRecord]:
        """The journal, as a new master would read it."""
        return list(self.disk.read(JOB_UID))

    @property
    def pods(self) -> dict[int, wire.PodObservation]:
        """Pods as the operator sees them, by node rank."""
        return self.operator.pods

    @property
    def end(self) -> str:
        """Why the job ended; empty: it has not."""
        return "" if self.finished is None else self.finished.reason

    @property
    def members(self) -> list[int]:
        """Node ranks of the running world, in rank order."""
        world = self.context.worlds.running()
        return list(world.places) if world else []

    def is_in(self, *phases: str) -> bool:
        """Return whether the job is in one of these phases."""
        return self.phase.name in phases

    def reasons(self) -> list[str]:
        """Reasons of all events, oldest first."""
        return [event.reason for event in self.core.events_after(0, 100_000)]

    def texts(self, reason: str) -> list[str]:
        """Texts of the events with a reason, oldest first."""
        return [one.text for one in self.core.events_after(0, 100_000) if one.reason == reason]

    def charges(self) -> list[wire.BudgetKind]:
        """Return the kinds of budgets charged so far."""
        return [charge.kind for charge in self.state.charges]

    def refold(self) -> JobState:
        """The state as the journal alone gives it."""
        settings = self.settings
        state = JobState(event_limit=settings.event_limit, incident_limit=settings.incident_limit)
        for record in self.records:
            apply(state, record)
        return state

    def moment(self) -> Moment:
        """Now, on both clocks of the newest master."""
        return self.master.moment()

    def rank_of(self, session: int) -> int:
        """Node rank of an agent with an open stream."""
        return self.master.streams[session].agent.rank

    def step(self, number: int) -> int:
        """Steps that a round has completed; 0: it never began."""
        found = self.training.rounds.get(number)
        return self.training.step(found) if found is not None else 0

    # --------------------------------------------------------------------------------------- time

    def take(self, event: Input) -> list[Instruction]:
        """Hand the core one input, check it, carry out what it wants."""
        return self.master.take(event) if self.master.up else []

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.time.run(self.time.now + seconds)

    def run_until(self, what: str, limit: float = 60.0) -> None:
        """Let time pass until the phase is reached."""
        phase = wire.JobPhase[what]
        self.time.run(self.time.now + limit, lambda: self.phase is phase)
        problem = f"{what} was not reached in {limit} s, the job is {self.phase.name}"
        assert self.phase is phase, f"{problem}\n{self.tale()}"

    # ------------------------------------------------------------------------------------- agents

    def add_agent(self, rank: int, **more: object) -> SteeredAgent:
        """A pod with its agent; `more`: attributes of the agent."""
        agent = self.operator.make(rank)
        for name, value in more.items():
            setattr(agent, name, value)
        return self.agents[rank]

    def add_agents(self, count: int, **more: object) -> list[SteeredAgent]:
        """Agents of node ranks 0 to count - 1."""
        return [self.add_agent(rank, **more) for rank in range(count)]

    def word(
        self, rank: int, message: object, number: int | None = None, epoch: int | None = None
    ) -> Received:
        """A word of an agent about a round, under a master; None: the newest."""
        session, epoch = self.agents[rank].session, epoch or self.epoch
        assert session is not None
        about = self.state.round if number is None else number
        fence = wire.Fence(epoch=epoch, incarnation=f"m{epoch}", round=about)
        return Received(session, fence, message)  # type: ignore[arg-type]

    def say(
        self, rank: int, message: object, number: int | None = None, epoch: int | None = None
    ) -> list[Instruction]:
        """Hand the core a word of an agent at once."""
        return self.take(self.word(rank, message, number, epoch))

    def endpoint(self, agent: Line) -> Master | None:
        """Return the master that the address leads to; None while it is down."""
        return self.master if self.master.up else None

    def ended(self, agent: Agent, code: int) -> None:
        """An agent process ends by itself."""
        if agent.alive:
            self.outcomes.append((agent.rank, agent.ending))
        super().ended(agent, code)

    def container_ends(self, rank: int, exit_code: int = -9, reason: str = "") -> None:
        """A pod's container ends with all that runs in it; its node will start it again."""
        self.agents[rank].crash(told=False)
        pod = self.pods[rank]
        self.pods[rank] = dataclasses.replace(
            pod, ends=pod.ends + 1, exit_code=exit_code, reason=reason
        )

    def start_again(self, rank: int) -> SteeredAgent:
        """The next agent of the same pod."""
        self.new_agent(rank, self.count(), self.pods[rank].pod_uid)
        return self.agents[rank]

    def evict(self, rank: int) -> None:
        """The cluster takes a pod away: SIGTERM, then the node is gone."""
        agent = self.agents[rank]
        if not agent.alive:
            return
        self.operator.mark(rank, conditions=("DisruptionTarget=True",))
        agent.goodbye(terminated=True)
        self.time.after(agent.luck.uniform(0.2, 8.0), agent.crash, -15)

    # ----------------------------------------------------------------------------------- operator

    def stop(self, grace: float) -> None:
        """The operator wants the job to end."""
        self.take(OperatorMessage(wire.StopRequest(reason="test", grace_seconds=grace)))

    def ask(self, request: UserRequest) -> int:
        """A user asks."""
        number = self.count()
        self.take(UserCall(number, request, "user"))
        return number

    # ------------------------------------------------------------------------------------- master

    def kill_master(self, span: float = float("inf"), *, quickly: bool = True) -> None:
        """The master process dies; every stream breaks. After `span` another one is started."""
        streams = list(self.master.streams.values())
        super().kill_master(span, quickly=quickly)
        for stream in streams:
            stream.end_at_agent(0.0)

    def start_master(self, *, journal: bool = True) -> None:
        """A new master reads the journal; without one it finds an empty disk."""
        if not journal:
            self.disk.lose()
            self.checks.left = None
        self.over = False
        super().start_master()
        core_state.check(self.core.job)

    def restart_master(self, after: float = 0.0, *, journal: bool = True) -> None:
        """The master process dies; another one starts after some seconds."""
        self.kill_master()
        if after:
            self.run(after)
        self.start_master(journal=journal)

    def stall_master(self, seconds: float) -> None:
        """The master's loop says that it stood still."""
        self.take(Stalled(seconds))

    def on_stepped_down(self, master: Master) -> None:
        """A master gave way."""
        self.stepped_down = True

    def on_finished(self, master: Master, finished: Finished) -> None:
        """A master says that the job has ended."""
        super().on_finished(master, finished)
        self.finished = finished

    @property
    def stepping(self) -> list[int]:
        """Rounds that step now."""
        return [found.number for found in self.training.live.values() if found.since is not None]

    @property
    def rounds(self) -> dict[int, Round]:
        """Every round that began, by its number."""
        return self.training.rounds


def started(
    nodes: int = 4,
    *,
    agents: Mapping[str, object] | None = None,
    settings: CoreSettings | None = None,
    operator_up: bool = True,
    **changes: object,
) -> SteeredJob:
    """A job that has come to train a moment ago, on nodes 0 to n - 1.

    agents: attributes of all agents. changes: of the spec.
    """
    spec = job_spec(**({"replicas": nodes} | changes))
    job = SteeredJob(spec, settings=settings, operator_up=operator_up)
    job.add_agents(nodes, **(agents or {}))
    job.run_until("TRAINING")
    return job


def training(nodes: int = 4, *, replaces: bool = True, **changes: object) -> SteeredJob:
    """A job that trains, with at least a few steps done; `changes` as `started` takes them.

    replaces: the operator makes pods for those that are gone.
    """
    job = started(nodes, **changes)  # type: ignore[arg-type]
    job.run(2.0)
    job.replaces = replaces
    return job
