"""The real core with its journal and network, on a virtual clock, with a seed.

After every input the core's invariants are checked. The same seed gives the same run.
"""

from __future__ import annotations

import dataclasses
import random

from holdfast_master.core import Core
from holdfast_master.inputs import (
    Connected,
    Disconnected,
    Input,
    Moment,
    OperatorConnected,
    Received,
    SpecArrived,
    Ticked,
)
from holdfast_master.instructions import (
    CloseSession,
    Finished,
    Instruction,
    Record,
    Refuse,
    Reply,
    Send,
    StepDown,
    Tell,
)
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire.messages import (
    BudgetKind,
    FinishDecision,
    JobPhase,
    JournalRecord,
    LeaveOutcome,
    MasterSpec,
    PodObservation,
    WorldAssignment,
)
from simulated_agent import SimulatedAgent
from simulated_line import JOB_UID
from simulated_process import AgentProcess
from simulated_training import Training
from simulated_views import JobViews
from simulation.clock import VirtualTime

MONO_START = 1000.0
UNIX_START = 1_700_000_000.0


@dataclasses.dataclass(eq=False)
class SimulatedMaster(JobViews):
    """The core, its journal, the network and the agents."""

    spec: MasterSpec
    seed: int = 0
    target: int = 100_000
    """Steps after which the script ends."""
    operator_up: bool = True
    settings: CoreSettings = dataclasses.field(default_factory=CoreSettings)
    raises: float = 0.7
    """Chance that a survivor's collective raises instead of hanging."""
    store_failures: float = 0.0
    """Chance that a store cannot start."""
    saves_cut: int = 0
    """Nodes that were killed while their ranks saved at a boundary."""
    replaces: bool = True
    """The operator does what it is asked."""
    replace_delay: float = 1.0
    time: VirtualTime = dataclasses.field(default_factory=VirtualTime)
    agents: dict[int, SimulatedAgent] = dataclasses.field(default_factory=dict)
    everyone: list[SimulatedAgent] = dataclasses.field(default_factory=list)
    streams: dict[int, AgentProcess] = dataclasses.field(default_factory=dict)
    records: list[JournalRecord] = dataclasses.field(default_factory=list)
    answers: dict[int, Reply | Refuse] = dataclasses.field(default_factory=dict)
    outcomes: list[tuple[int, LeaveOutcome | None]] = dataclasses.field(default_factory=list)
    assignments: list[tuple[float, int, int, WorldAssignment]] = dataclasses.field(
        default_factory=list
    )
    pods: dict[int, PodObservation] = dataclasses.field(default_factory=dict)
    finished: Finished | None = None
    finish_told: FinishDecision | None = None
    stepped_down: bool = False
    master_up: bool = True
    inputs: int = 0
    _numbers: int = 0
    _round: int = 0
    _kept: int = 0
    _epoch: int = 1
    _fifo: dict[tuple[str, int], float] = dataclasses.field(default_factory=dict)
    _tick_at: float | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.training = Training(self.target)
        self.core = Core(self._identity(), self.settings)
        self.do(self.core.open(self.moment()))
        if self.operator_up:
            self.take(OperatorConnected())
        self.take(SpecArrived(self.spec))

    # -------------------------------------------------------------------------------------- luck

    def draw(self, low: float, high: float) -> float:
        """A duration, s."""
        return self.random.uniform(low, high)

    def chance(self, share: float) -> bool:
        """Whether something of this likelihood happens."""
        return self.random.random() < share

    def count(self) -> int:
        """A number that was not used before."""
        self._numbers += 1
        return self._numbers

    # -------------------------------------------------------------------------------------- core

    def _identity(self) -> CoreIdentity:
        return CoreIdentity(
            job_name="job",
            job_uid=JOB_UID,
            epoch=self._epoch,
            incarnation=f"m{self._epoch}",
            version="0.1.0",
        )

    def moment(self) -> Moment:
        """Now, on both clocks."""
        return Moment(MONO_START + self.time.now, UNIX_START + self.time.now)

    def take(self, event: Input) -> list[Instruction]:
        """Hand the core one input, check it, carry out what it wants."""
        if not self.master_up:
            return []
        self.inputs += 1
        batch = self.core.handle(event, self.moment())
        self.core.validate()
        self._check_growth()
        self.do(batch)
        return batch

    def _check_growth(self) -> None:
        """Rounds only grow, and only charges of no progress are ever forgotten."""
        state = self.core._desk.state
        kept = sum(charge.kind is not BudgetKind.NO_PROGRESS for charge in state.charges)
        assert state.round >= self._round, self.tale(f"round {state.round} after {self._round}")
        assert kept >= self._kept, self.tale(f"{kept} charges after {self._kept}")
        self._round, self._kept = state.round, kept

    def do(self, batch: list[Instruction]) -> None:
        """Carry a batch out as the shell would."""
        for item in batch:
            if isinstance(item, Record):
                self.records.append(item.journal())
        for item in batch:
            if isinstance(item, Send):
                self._send(item)
            elif isinstance(item, CloseSession):
                self._close(item.session)
            elif isinstance(item, Tell):
                self._told(item.response.message)
            elif isinstance(item, Reply | Refuse):
                assert item.request_id not in self.answers, "a request was answered twice"
                self.answers[item.request_id] = item
            elif isinstance(item, Finished):
                self.finished = item
            elif isinstance(item, StepDown):
                self.stepped_down = True
        self._plan_tick()

    def _plan_tick(self) -> None:
        due = self.core.next_deadline()
        when = None if due is None else max(due - MONO_START + 1e-9, self.time.now)
        if when is not None and when != self._tick_at:
            self._tick_at = when
            self.time.at(when, lambda: self._tick(when))

    def _tick(self, when: float) -> None:
        if self._tick_at != when:
            return
        self._tick_at = None
        if self.master_up:
            self.take(Ticked())
            self._plan_tick()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.time.run(self.time.now + seconds)

    def run_until(self, what: str, limit: float = 60.0) -> None:
        """Let time pass until the phase is reached."""
        phase = JobPhase[what]
        self.time.run(self.time.now + limit, lambda: self.phase is phase)
        assert self.phase is phase, self.tale(f"{what} was not reached in {limit} s")

    def tale(self, problem: str) -> str:
        """A problem with what happened before it."""
        events = self.core.events_after(max(0, self.core.newest_event() - 60), 60)
        lines = [f"  {e.unix_time - UNIX_START:9.3f} {e.reason:18} {e.text}" for e in events]
        return f"{problem}; phase {self.phase.name}\n" + "\n".join(lines)

    # ----------------------------------------------------------------------------------- network

    def new_session(self, agent: AgentProcess) -> int:
        """A stream of an agent."""
        session = self.count()
        self.streams[session] = agent
        return session

    def _in_order(self, way: str, session: int) -> float:
        when = max(self.time.now + self.draw(0.0005, 0.01), self._fifo.get((way, session), 0.0))
        self._fifo[way, session] = when
        return when

    def deliver(self, session: int, event: Connected | Received) -> None:
        """Bring an agent's message to the master, in the order of its stream."""

        def arrive() -> None:
            if session in self.streams:
                self.take(event)

        self.time.at(self._in_order("up", session), arrive)

    def _send(self, item: Send) -> None:
        agent = self.streams.get(item.session)
        if agent is not None:
            self.time.at(
                self._in_order("down", item.session),
                lambda: agent.receive(item.session, item.response),
            )

    def _close(self, session: int) -> None:
        agent = self.streams.get(session)
        if agent is None:
            return

        def closed() -> None:
            self.streams.pop(session, None)
            if agent.session == session:
                agent.dropped()

        self.time.at(self._in_order("down", session), closed)

    def cut_stream(self, session: int) -> None:
        """A stream breaks: both sides learn of it."""
        agent = self.streams.get(session)

        def broken() -> None:
            if self.streams.pop(session, None) is not None:
                self.take(Disconnected(session))

        self.time.at(self._in_order("up", session), broken)
        if agent is not None and agent.session == session:
            agent.dropped()

    # ------------------------------------------------------------------------------------ agents

    def peers_raise(self, number: int, but: int) -> None:
        """A node of a round is gone: the others' collectives raise or hang."""
        for agent in self.agents.values():
            if agent.rank != but and self.chance(self.raises):
                agent.peer_died(number)

    def departed(self, agent: AgentProcess, outcome: LeaveOutcome | None) -> None:
        """An agent ended by itself: see SimulatedJob."""
        raise NotImplementedError

    def pod_ended(self, agent: AgentProcess, exit_code: int) -> None:
        """An agent died: see SimulatedJob."""
        raise NotImplementedError

    def _told(self, message: object) -> None:
        """A decision for the operator: see SimulatedJob."""
        raise NotImplementedError

    def note_assignment(self, agent: AgentProcess, number: int, world: WorldAssignment) -> None:
        """An agent accepted an assignment."""
        self.assignments.append((self.time.now, agent.rank, number, world))

    def check_single_round(self) -> None:
        """No two rounds can step at the same time."""
        rounds = self.training.stepping(self.time.now)
        assert len(rounds) <= 1, self.tale(f"rounds {rounds} step at the same time")
