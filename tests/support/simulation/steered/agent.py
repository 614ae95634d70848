"""An agent that a test can hurt, and whose node does as the test says.

Belongs here: faults by what they are called on a real machine, and what a node of a test is like.
Does not belong here: what an agent makes of messages and deaths (`agent`, `workers`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast.page_sample import SavingSample, TierSaving
from holdfast_agent.policies.collective_steps import StepGuess
from holdfast_agent.policies.master_messages import Statements
from holdfast_agent.policies.rank_progress import Rank
from holdfast_agent.policies.round_phases import RoundPhase
from holdfast_wire import messages as wire
from holdfast_wire.tiers import costs_by_tier
from simulation.agent import Agent
from simulation.follower import Follower
from simulation.local_round import LocalRound, Slot
from simulation.network import Stream
from simulation.workers import Workers

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.steered.job import SteeredJob

CHECKPOINTS = (
    wire.RestorePlan,
    wire.CommitGrant,
    wire.CommitAnnounced,
    wire.ReleaseCheckpoints,
    wire.FlushToStorage,
)
"""A test says itself what a node does with its checkpoints."""
GRACE = 30.0
"""Of a pod that is taken away, s."""


class SteeredWorkers(Workers):
    """Training processes that save, end and follow schedules as the test says."""

    agent: SteeredAgent
    slowest_end = 0.05

    def lose(self) -> None:
        """The processes are gone; their agent does not know why, and has nothing to say again."""
        self.vanish()
        self.agent.statements = Statements()
        self.phase = RoundPhase.IDLE

    def view(self, current: LocalRound) -> dict[int, Rank]:
        """All ranks, as the agent samples them; none before they exist."""
        return super().view(current) if current.started else {}

    def set_barrier(self, order: wire.SetBarrier, number: int) -> None:
        """Ask the ranks to save at a step; one at which they go on is noted."""
        if order.goes_on and number == self.living_round:
            self.agent.saves.append(order)
        super().set_barrier(order, number)

    def follower(self, assignment: wire.WorldAssignment, base: int) -> Follower | None:
        """The ranks' costs are the test's: see `follow`."""
        return None

    def schedule(self, order: wire.SetSchedule, number: int) -> None:
        """The ranks look at it when they have completed their next step."""
        current = self.current
        if number == self.living_round and current is not None and current.physics is not None:
            step = self.agent.job.training.step(current.physics) + 1 + self.agent.slow_steps
            self.agent.schedules.append(order)
            self.agent.seen.setdefault(order.schedule_id, step)

    def follow(self) -> None:
        """Copy the agent's sample of saves to the current round's slot."""
        if self.current is not None:
            self.current.slot.saving = self.agent.saving_sample()

    def slot_of(self, current: LocalRound) -> Slot:
        """The slot as it is now: a script may import the SDK late."""
        current.slot.attached = self.agent.sdk
        return super().slot_of(current)

    def on_barrier(self, barrier_id: int, step: int) -> None:
        """The armed step is completed: the ranks save, which may take a while, and end."""
        current = self.current
        if current is None or current.dead or not self.agent.save_seconds:
            super().on_barrier(barrier_id, step)
            return
        self.agent.saving = True
        if self.agent.local > 1:
            slot = current.slot
            slot.answered_id, slot.answered_step = barrier_id, step
            self.exit(0, 0)
        self.agent.later(self.agent.save_seconds, self._end_saving, current, barrier_id, step)

    def _end_saving(self, current: LocalRound, barrier_id: int, step: int) -> None:
        if current is self.current and self.agent.saving:
            self.agent.saving = False
            super().on_barrier(barrier_id, step)

    def _depart(self, current: LocalRound) -> None:
        self.agent.job.saves_cut += self.agent.saving
        self.agent.saving = False
        super()._depart(current)

    def on_target(self) -> None:
        """The script has come to its end."""
        if self.agent.finishes:
            super().on_target()

    def report_exit(self, message: wire.WorkerExited, number: int) -> None:
        """Tell the master of an end, with what the agent saw of it."""
        agent = self.agent
        known = dataclasses.replace(
            message,
            matched_rules=agent.matched,
            memory=agent.memory,
            final=agent.final,
            age_seconds=agent.death_age or message.age_seconds,
        )
        agent.death_age = 0.0
        super().report_exit(known, number)


class SteeredAgent(Agent):
    """An agent that can be hurt; the faults by what they are called on a real machine."""

    workers_type = SteeredWorkers
    workers: SteeredWorkers
    job: SteeredJob

    unmanaged = False
    max_restarts: int | None = None
    keeps_checkpoints = True
    """Unlike a plain torchrun's."""
    newest_round: int | None = None
    """The round that its hello claims; None: the truth."""
    ignores: tuple[type, ...] = CHECKPOINTS
    """Messages that never come to it."""
    memory: wire.MemoryUse | None = None
    """What its control group says of the memory when a process has died."""
    matched: tuple[int, ...] = ()
    """Log patterns that a death of its workers matches."""
    final = False
    """It makes no further round."""
    death_age = 0.0
    """How long ago its worker died when it says so, s."""
    costs: wire.SavingReport | None = None
    """What its ranks say of their checkpoints; None: they follow no schedule of a master."""
    slow_steps = 0
    """Steps after which its ranks look at what they were told."""
    deaf = False
    """Its ranks do not look."""
    guesses_after: float | None = None
    """From a round's first heartbeat to its first guessed step, s; infinite: its collectives have
    no period; None: its agent guesses nothing."""
    save_seconds = 0.0
    """What its ranks take to save at a barrier, from the first to the last."""
    saving = False
    finishes = True
    """Its ranks end when the script does."""

    def __init__(self, job: Job, rank: int, number: int, pod_uid: str) -> None:
        self.saves: list[wire.SetBarrier] = []
        """Steps after which its ranks were asked to save and go on."""
        self.schedules: list[wire.SetSchedule] = []
        """What its ranks were told of the distance between checkpoints in the running round."""
        self.seen: dict[int, int] = {}
        """Schedule to the step at which its ranks did."""
        self.topology: dict[str, str] = {}
        self.first_beats: dict[int, float] = {}
        """Round to its first heartbeat."""
        super().__init__(job, rank, number, pod_uid)

    def hello(self) -> wire.Hello:
        """Return the greeting with the changes that a test has set."""
        hello = super().hello()
        return dataclasses.replace(
            hello,
            unmanaged=self.unmanaged,
            max_restarts=self.max_restarts,
            keeps_checkpoints=self.keeps_checkpoints,
            topology=self.topology,
            round=hello.round if self.newest_round is None else self.newest_round,
        )

    def receive(self, stream: Stream, response: wire.SessionResponse) -> None:
        """A message of a master arrived."""
        if not isinstance(response.message, self.ignores):
            super().receive(stream, response)

    def saving_sample(self) -> SavingSample | None:
        """Return the shared page's sample of saves; None without costs."""
        costs = self.costs
        if costs is None:
            return None
        heard = max(self.seen, default=0) if not self.deaf else 0
        return SavingSample(
            step_ns=round(costs.step_seconds * 1e9),
            tiers={
                tier: TierSaving(
                    stop_ns=round(cost.stop_seconds * 1e9),
                    durable_ns=round(cost.durable_seconds * 1e9),
                    every=cost.every,
                )
                for tier, cost in costs_by_tier(costs).items()
            },
            seen_id=heard,
            seen_step=self.seen.get(heard, 0),
        )

    def guess(self, number: int) -> StepGuess | None:
        """Return a guess by the time since the round's first heartbeat: ten steps a second."""
        since = self.now - self.first_beats.setdefault(number, self.now)
        if self.guesses_after is None:
            return None
        if since < self.guesses_after:
            return StepGuess(expected=True)
        steps = 1 + (since - self.guesses_after) * 10
        return StepGuess(group="0", period=1, steps=steps, step_seconds=0.1, at=self.now)

    def forget_round(self) -> None:
        """It starts another: what was said of the one before is over."""
        self.schedules.clear()
        self.seen.clear()
        self.newest_round = None

    @property
    def session(self) -> int | None:
        """Its stream as the master numbers it."""
        return self.stream.number if self.stream is not None else None

    @property
    def round(self) -> int:
        """Round of its running processes; 0: none run."""
        return self.workers.living_round

    @property
    def left(self) -> bool:
        """It ended as it was told."""
        return not self.alive and self.ending is not None

    def _again(self) -> None:
        self.later(self.luck.uniform(0.02, 0.3), self.dial)

    # ------------------------------------------------------------------------------------- faults

    def crash_worker(
        self, exit_code: int = -9, error_type: str = "", *, final: bool = False
    ) -> None:
        """A training process dies."""
        if not self.able or not self.round:
            return
        self.final = final
        self.death_age = self.luck.uniform(0.001, 0.03)
        self.workers.exit(0, exit_code, error_type, delay=self.death_age)
        if final:
            self.later(self.death_age + 0.01, lambda: self.crash(exit_code, told=False))

    def crash(self, exit_code: int = -9, *, told: bool = True) -> None:
        """The agent process dies with all it started."""
        if self.alive:
            self.job.kill_agent(self)
            if told:
                delay = self.luck.uniform(0.005, 0.1)
                self.job.time.after(delay, self.job.pod_failed, self, exit_code)

    def _unanswered(self, stream: Stream, since: float) -> None:
        """Streams break where the test says so: see `blip` and `cut_off`."""

    def blip(self) -> None:
        """The stream breaks; the agent comes back soon."""
        if self.stream is not None:
            self.stream.reset()

    def cut_off(self) -> None:
        """The network loses everything from and to this agent."""
        if self.stream is not None:
            self.stream.end_at_agent(0.0)
            self.stream.end_at_host(self.luck.uniform(0.0, 0.01))
        self.cut_up = self.cut_down = 1

    def reachable(self) -> None:
        """The network is whole again."""
        self.cut_up = self.cut_down = 0

    def forget_barrier(self) -> None:
        """Its ranks have seen no barrier, train on, and hear of none from peers."""
        current = self.workers.current
        assert current is not None
        self.saving, current.barrier, self.statements = False, None, Statements()
        current.exits.clear()
        current.slot.answered_id = 0
        self.cut_peers = 1

    def finish(self) -> None:
        """Its ranks end after all."""
        self.finishes = True
        self.workers.on_target()

    def goodbye(self, *, terminated: bool) -> None:
        """SIGTERM, or the agent ends on purpose."""
        if terminated:
            self.on_signal(15, GRACE)
        else:
            self.report(wire.Goodbye(reason="test"))
            self.job.ended(self, 0)
