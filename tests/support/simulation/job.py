"""A whole job in memory: masters, agents, operator, users, and the wires between them.

Belongs here: who is there and who reaches whom. Does not belong here: what goes wrong (`faults`),
what is right (`oracle.invariants`), the course of a run (`run`), a job whose course a test writes
(`steered.job`).
"""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence

from holdfast_master.core import Core
from holdfast_master.inputs import Input, Moment, UserCall, UserRequest
from holdfast_master.instructions import Finished, Instruction
from holdfast_master.journal.writer import RETRY_SECONDS
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import GetRoundResponse, JobPhase, PodPhase
from simulation.agent import Agent
from simulation.clock import VirtualTime
from simulation.disk import Disk
from simulation.line import Line
from simulation.master import JOB_UID, UNIX_START, Master
from simulation.network import Stream
from simulation.operator import Operator
from simulation.oracle.checks import Checks
from simulation.scenario import Scenario
from simulation.storage import Storage
from simulation.training import Training

RESTART_SECONDS = 0.5
"""After which a master that ended by itself is started again."""


class Job:
    """Everything of one run."""

    agent_type: type[Agent] = Agent
    checks_type: type[Checks] = Checks
    operator_type: type[Operator] = Operator
    training_type: type[Training] = Training

    def __init__(self, scenario: Scenario) -> None:
        """Start a master; no agent yet."""
        self.scenario = scenario
        self.luck = random.Random(f"{scenario.seed}/job")
        self.time = VirtualTime()
        self.wall = UNIX_START
        """Unix time at virtual time 0, by the clock of the newest master's machine, s."""
        self.jumped = False
        """It did: how long ago accounts were written cannot be told any more."""
        self.disk = Disk()
        self.storage = Storage()
        self.checks = self.checks_type(self)
        self.training = self.training_type(self.time, self.checks.two_rounds)
        self.agents: dict[int, Agent] = {}
        self.others: list[Master] = []
        self.store_failures = scenario.store_failures
        self.raises = scenario.raises
        self.seen: collections.Counter[tuple[JobPhase, str]] = collections.Counter()
        """(phase, kind of input) of every input."""
        self.inputs = 0
        self.over = False
        self._numbers = 0
        self._epoch = 1
        self._restarting = False
        self.operator = self.operator_type(self)
        self.master = Master(self, 1, "m1", ())
        self.operator.attach()
        self.checks.sweep()

    def count(self) -> int:
        """A number that was not used before."""
        self._numbers += 1
        return self._numbers

    def core_settings(self) -> CoreSettings:
        """Return the settings that the job's masters are started with."""
        return CoreSettings(
            heartbeat_seconds=self.scenario.heartbeat,
            schedule_seconds=3.0,
            silence_seconds=4.0 + 2 * self.scenario.heartbeat,
            masterless_seconds=self.scenario.masterless,
            commit_seconds=5.0,
            unseen_start_seconds=10.0,
            rescue_seconds=20.0,
            rescue_least_seconds=0.2,
            gather_ranks=self.gather_ranks,
        )

    def wrap(self, core: Core) -> Core:
        """Return a new master's core as its shell uses it."""
        return core

    def decide(self, core: Core, event: Input, moment: Moment) -> list[Instruction]:
        """Hand a master's core one input."""
        return core.handle(event, moment)

    def note_input(self, phase: JobPhase, event: Input) -> None:
        """An input is about to be taken."""
        self.inputs += 1
        message = getattr(event, "message", None) or getattr(event, "request", event)
        self.seen[phase, type(message).__name__] += 1

    # ---------------------------------------------------------------------------------------- wires

    def endpoint(self, agent: Line) -> Master | None:
        """Return the master behind the address, now and then one that should be gone."""
        living = [other for other in self.others if other.up]
        if living and agent.luck.random() < 0.3:
            return agent.luck.choice(living)
        return self.master if self.master.up else None

    def connect(self, agent: Line, master: Master) -> Stream:
        """A new stream."""
        stream = Stream(self.count(), self.time, agent, master)
        master.streams[stream.number] = stream
        return stream

    @property
    def gather_ranks(self) -> int:
        """Every third job has too many ranks to read each other's memory, as masters see it."""
        return 64 if self.scenario.seed % 3 else 0

    def cut(self, agents: Sequence[Agent], up: int, down: int, span: float) -> None:
        """Nothing gets through in these directions for a while."""
        for agent in agents:
            agent.cut_up += up
            agent.cut_down += down
            if agent.stream is not None:
                self.time.after(agent.luck.uniform(2.0, 4.0), agent.stream.keep_alive)
        self.time.after(span, self._healed, agents, up, down)

    def _healed(self, agents: Sequence[Agent], up: int, down: int) -> None:
        for agent in agents:
            agent.cut_up -= up
            agent.cut_down -= down
            if agent.stream is not None:
                agent.stream.healed()

    def ask_peers(self, agent: Agent, ranks: Sequence[int]) -> list[GetRoundResponse]:
        """The answers of those peers that can be reached."""
        found = [self.peer(agent, rank) for rank in ranks]
        return [peer.known() for peer in found if peer is not None]

    def peer(self, agent: Agent, rank: int) -> Agent | None:
        """Another agent, where it can be reached."""
        peer = self.agents.get(rank)
        if peer is None or not peer.alive or peer.frozen or peer.cut_peers or agent.cut_peers:
            return None
        return peer

    def ask(self, request: UserRequest) -> int:
        """A user asks the newest master."""
        number = self.count()
        if self.master.acting:
            self.checks.promises.asked(request)
            self.master.watch.asked[number] = request
            self.master.push(UserCall(number, request, "user"))
        return number

    # --------------------------------------------------------------------------------------- agents

    def new_agent(self, rank: int, number: int, pod_uid: str) -> Agent:
        """An agent process."""
        agent = self.agents[rank] = self.agent_type(self, rank, number, pod_uid)
        return agent

    def make_pods(self, count: int) -> None:
        """Pods of node ranks 0 to count - 1."""
        for rank in range(count):
            self.operator.make(rank)

    def kill_agent(self, agent: Agent) -> None:
        """SIGKILL of an agent with all it started; its kernel resets the stream."""
        if agent.alive:
            agent.alive = False
            agent.workers.vanish()
            if agent.stream is not None:
                agent.stream.reset()

    def pod_failed(self, agent: Agent, code: int) -> None:
        """The kubelet sees that the container ended."""
        self.operator.ended(agent, PodPhase.FAILED, code)

    def evicted(self, agent: Agent) -> None:
        """The grace of an evicted pod is over."""
        if agent.alive:
            self.kill_agent(agent)
            self.operator.ended(agent, PodPhase.FAILED, 143, "Evicted")

    def restart_in_pod(self, agent: Agent) -> None:
        """A new agent process in the same pod."""
        pod = self.operator.pods[agent.rank]
        stays = pod.pod_uid == agent.pod_uid and not pod.terminating
        if self.agents.get(agent.rank) is agent and stays and not self.over:
            self.new_agent(agent.rank, self.count(), agent.pod_uid)

    def ended(self, agent: Agent, code: int) -> None:
        """An agent process ends by itself."""
        if agent.alive:
            self.kill_agent(agent)
            self.operator.ended(agent, PodPhase.FAILED if code else PodPhase.SUCCEEDED, code)

    # -------------------------------------------------------------------------------------- masters

    def kill_master(self, span: float, *, quickly: bool) -> None:
        """The newest master ends; another is started after a while."""
        if self.master.up:
            self.checks.accounts.muddle(span)
            self.checks.promises.master_lost(self.master)
            self.master.die(quickly=quickly)
            self._start_later(span)

    def _start_later(self, delay: float) -> None:
        if not self._restarting:
            self._restarting = True
            self.time.after(delay, self.start_master)

    def start_master(self) -> None:
        """A new master with the next epoch reads what the disk holds."""
        self._restarting = False
        if self.over:
            return
        self._epoch += 1
        self.checks.promises.takes_over()
        self.master = Master(self, self._epoch, f"m{self._epoch}", self.disk.read(JOB_UID))
        # One that was thought dead may have ended the job: then the journal says so at the start.
        self.over = self.master.finished is not None
        if self.operator.up:
            self.operator.attach()

    def leave_zombie(self, span: float) -> None:
        """The master is stopped, given up, followed by another, and wakes up."""
        zombie = self.master
        if not zombie.acting or zombie.frozen or self._restarting:
            return
        self.checks.accounts.muddle(span)
        self.checks.promises.disturb()
        zombie.freeze()
        self.others.append(zombie)
        self._start_later(0.3)
        self.time.after(span / 2, zombie.thaw)
        self.time.after(span, self._end_other, zombie)

    def start_twin(self, span: float) -> None:
        """By mistake a second process gets the epoch of the master that runs.

        It is gone before its silence limit ends: agents refuse it, but nothing else does.
        """
        records = self.disk.read(JOB_UID)
        if self.master.acting and records and not self._restarting:
            self.checks.accounts.muddle(span)
            self.checks.promises.disturb()
            epoch = self.master.identity.epoch
            twin = Master(self, epoch, f"twin{self.count()}", records, own_disk=False)
            self.others.append(twin)
            if self.operator.up and self.operator.known.incarnation:
                self.operator.call(twin)  # a stream that broke may lead to it
            self.time.after(min(span, 3.5), self._end_other, twin)

    def _end_other(self, master: Master) -> None:
        if master is not self.master and master.up:
            master.die(quickly=True)

    def on_stepped_down(self, master: Master) -> None:
        """A master gave way; if it was the newest, it is started again."""
        self.checks.accounts.muddle()
        if master is self.master:
            self._start_later(RESTART_SECONDS)

    def on_finished(self, master: Master, _: Finished) -> None:
        """A master says that the job has ended."""
        if master is self.master:
            self.over = True

    # ------------------------------------------------------------------------------- ends of faults

    def operator_prompt(self) -> None:
        """The operator is quick again."""
        self.operator.lateness = 0.0

    def resume(self) -> None:
        """The spec does not suspend the job any more."""
        if self.operator.spec.suspend:
            self.operator.change(suspend=False)

    def disk_quick(self) -> None:
        """The disk is quick again."""
        self.disk.latency = 0.0

    def disk_empty(self) -> None:
        """The disk has room again; its master finds out when it tries next."""
        self.disk.full = False
        self.time.after(RETRY_SECONDS, self._try_disk)

    def _try_disk(self) -> None:
        self.master.try_disk()

    def stores_work(self) -> None:
        """Stores can be started again."""
        self.store_failures = 0.0

    @property
    def phase(self) -> JobPhase:
        """The phase that the newest master is in."""
        return self.master.core.job.state.phase

    def tale(self, last: int = 60) -> str:
        """The newest events of the newest master."""
        core = self.master.core
        events = core.events_after(max(0, core.newest_event() - last), last)
        return "\n".join(
            f"  {event.unix_time - UNIX_START:9.3f} {event.reason:18} {event.text}"
            for event in events
        )
