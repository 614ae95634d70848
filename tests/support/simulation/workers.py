"""The training processes of one node, as its agent's runner and zygote keep them.

Belongs here: killing, starting and what processes report of themselves, in the order of
`holdfast_agent.runner`. The phases, what counts as evidence and what the shared page says are the
agent's own pure functions. Does not belong here: orders (`agent`), physics (`training`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast_agent.decide import exits, ranks
from holdfast_agent.decide.phases import Happening, RoundPhase, follow
from holdfast_agent.decide.ranks import Rank
from holdfast_wire.messages import (
    Arm,
    RoundStarted,
    RoundStopped,
    RunningWorker,
    SetSchedule,
    WorkerExited,
    WorldAssignment,
)
from simulation.follower import Follower
from simulation.local_round import LocalRound, Slot

if TYPE_CHECKING:
    from simulation.line import Line


class Workers:
    """At most one living round, and perhaps one that waits for it to be dead."""

    def __init__(self, agent: Line) -> None:
        self.agent = agent
        self.phase = RoundPhase.IDLE
        self.current: LocalRound | None = None
        self.pending: tuple[int, WorldAssignment] | None = None
        self.paused = False

    @property
    def alive(self) -> bool:
        """Processes of a round run, or are about to."""
        return self.pending is not None or (self.current is not None and not self.current.dead)

    @property
    def master(self) -> tuple[int, str]:
        """Epoch and incarnation of the newest master that the agent has accepted."""
        return (self.agent.accepted.epoch, self.agent.accepted.incarnation)

    @property
    def reached(self) -> bool:
        """Whether the newest master's word comes to the agent, and soon."""
        agent = self.agent
        return agent.reaches(agent.job.master) and not (agent.frozen or agent.lag)

    @property
    def dying(self) -> bool:
        """Whether SIGKILL is on its way to the processes: it takes some milliseconds."""
        return self.current is not None and self.current.killed

    @property
    def living_round(self) -> int:
        """Round of living processes; 0: none live."""
        current = self.current
        return current.number if current is not None and current.started and not current.dead else 0

    # ------------------------------------------------------------------------------------- orders

    def start(self, number: int, assignment: WorldAssignment) -> None:
        """Kill what runs and start the round once that is dead."""
        self.pending = (number, assignment)
        self._kill_current()
        self._try_spawn()

    def kill(self) -> None:
        """SIGKILL everything."""
        self._give_up_pending()
        self._kill_current()

    def stop(self, grace: float) -> None:
        """SIGTERM, SIGKILL after the grace; 0: at once."""
        self._give_up_pending()
        current = self.current
        if current is None or current.dead:
            return
        if grace <= 0:
            self._kill_current()
            return
        current.stopped = True
        self._move(Happening.STOP)
        self.agent.later(min(grace, self.agent.luck.uniform(0.01, 1.0)), self._die, current)

    def _give_up_pending(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            self.agent.report(RoundStopped(), pending[0])

    def _kill_current(self) -> None:
        current = self.current
        if current is None or current.dead:
            return
        current.killed = True
        self._move(Happening.KILL)
        self.agent.later(self.agent.luck.uniform(0.003, 0.02) + self.agent.drag, self._die, current)

    def _move(self, happening: Happening) -> None:
        self.phase = follow(self.phase, happening)

    # ----------------------------------------------------------------------------------- processes

    def _die(self, current: LocalRound) -> None:
        """Nothing of the round lives any more."""
        if current.dead:
            return
        current.dead = True
        self._depart(current)
        if self.agent.frozen:
            self.agent.deferred.append(lambda: self._note_dead(current))
        else:
            self._note_dead(current)

    def _depart(self, current: LocalRound) -> None:
        if current.physics is not None:
            done = len(current.exits) == self.agent.local and not any(current.exits.values())
            place = current.assignment.group_rank
            self.agent.job.training.leave(current.physics, place, quietly=done)

    def _note_dead(self, current: LocalRound) -> None:
        if current is not self.current or not self.agent.alive:
            return
        self._move(Happening.DEAD)
        if exits.tells_stopped(current.orders, next_waits=self.pending is not None):
            message = RoundStopped(lease_expired=current.lease_expired)
            self.agent.report(message, current.number)
        self.agent.workers_dead()
        self._try_spawn()

    def _try_spawn(self) -> None:
        if self.pending is None or self.phase is not RoundPhase.IDLE or not self.agent.alive:
            return
        (number, assignment), self.pending = self.pending, None
        slot = Slot(number, self.agent.job.scenario.sdk)
        self.current = current = LocalRound(number, assignment, slot)
        self._move(Happening.SPAWN)
        self.agent.later(self.agent.luck.uniform(0.01, 0.05) + self.agent.drag, self._run, current)

    def _run(self, current: LocalRound) -> None:
        """The processes exist."""
        if current.dead or current.killed or not self.agent.alive:
            return
        assignment = current.assignment
        current.started = True
        current.physics = self.agent.job.training.join(
            current.number,
            assignment.world_hash,
            assignment.group_world_size,
            assignment.group_rank,
            self,
        )
        if current.slot.attached and assignment.memory_every:
            agent = self.agent
            seed = f"{agent.job.scenario.seed}/costs/{agent.rank}"
            current.follower = Follower(seed, assignment, current.physics.base)
        if self.paused:
            self.pause(paused=True)
        self.agent.report(RoundStarted(), current.number)
        self.agent.begun(current)

    def pause(self, *, paused: bool) -> None:
        """The processes stand still with their node."""
        self.paused = paused
        current = self.current
        if current is not None and current.physics is not None and not current.dead:
            place = current.assignment.group_rank
            self.agent.job.training.pause(current.physics, place, paused=paused)

    def vanish(self) -> None:
        """Everything here is gone at once, and nobody says so."""
        self.pending = None
        current = self.current
        if current is not None and not current.dead:
            current.dead = True
            self._depart(current)

    def expire(self, current: LocalRound) -> None:
        """The lease ran out: the zygote kills what runs."""
        if current is self.current and not current.dead:
            current.lease_expired = current.killed = True
            self._move(Happening.KILL)
            self._die(current)

    # ------------------------------------------------------------------------- what processes tell

    def exit(self, local_rank: int, code: int, error: str = "", *, delay: float = 0.0) -> None:
        """A process ends; the agent has the news after `delay`."""
        current = self.current
        if current is None or current.dead or not current.started or local_rank in current.exits:
            return
        current.exits[local_rank] = code
        self.slot_of(current)
        if code != 0:
            self._depart(current)
        elif not current.slot.boundary_complete:
            rank = current.assignment.base_rank + local_rank
            self.agent.job.checks.finished(current.assignment.world_hash, rank)
        self.agent.later(delay, self._exited, current, local_rank, code, error)

    def _exited(self, current: LocalRound, local_rank: int, code: int, error: str) -> None:
        if not self.agent.alive:
            return
        everyone = len(current.exits) == self.agent.local
        running = self.phase in (RoundPhase.STARTING, RoundPhase.RUNNING)
        if current is self.current and everyone and running:
            self._move(Happening.ALL_EXITED)
        if not exits.is_evidence(code, current.orders):
            return
        boundary = ranks.Rank(current.slot, 1, 0, code).ended_at_boundary
        message = WorkerExited(
            local_rank=local_rank,
            rank=current.assignment.base_rank + local_rank,
            exit_code=code,
            error_type=error,
            boundary=boundary,
            step=current.slot.step,
            age_seconds=0.002,
        )
        self.agent.report(message, current.number)

    def on_first_step(self) -> None:
        """Every rank of the round has completed a step."""
        current = self.current
        if current is not None and current.slot.attached:
            self.agent.later(self.agent.luck.uniform(0.0, 0.012), self._first_step, current)

    def _first_step(self, current: LocalRound) -> None:
        if current is not self.current or current.dead or self.phase is not RoundPhase.STARTING:
            return
        found = ranks.first_step(self.view(current), current.number)
        if found is not None:
            self._move(Happening.FIRST_STEP)
            self.agent.report(RoundStarted(first_step=True, step=found.step), current.number)

    def arm(self, order: Arm, number: int) -> None:
        """Ask the ranks to save at a step, and to stop there unless they go on."""
        current = self.current
        right = current is not None and current.number == number and not current.dead
        if current is None or not right or current.physics is None or not current.slot.attached:
            return
        if not order.goes_on:
            current.boundary = order
        place, training = current.assignment.group_rank, self.agent.job.training
        if order.goes_on:
            seen = training.step(current.physics)
        else:
            seen = training.arm(current.physics, place, order.arm_id, order.step)
        current.slot.echo_id, current.slot.echo_step = order.arm_id, seen
        echo = ranks.arm_echo(self.view(current), order.arm_id)
        if echo is not None:
            self.agent.report(dataclasses.replace(echo, goes_on=order.goes_on), current.number)

    def schedule(self, order: SetSchedule, number: int) -> None:
        """Tell the ranks how far apart checkpoints are."""
        current = self.current
        right = current is not None and current.number == number and not current.dead
        if current is not None and right and current.physics is not None and current.follower:
            current.follower.tell(order, self.agent.job.training.step(current.physics))

    def follow(self) -> None:
        """The ranks have completed steps: by which schedules they save there."""
        current = self.current
        if current is None or current.dead or current.physics is None or not current.follower:
            return
        follower, training = current.follower, self.agent.job.training
        # Until all are there, they may begin at a later checkpoint than it seemed.
        follower.looked = max(follower.looked, current.physics.base)
        for step in range(follower.looked + 1, training.step(current.physics) + 1):
            every = follower.step(step)
            self.agent.job.checks.schedules.saves(current.assignment.world_hash, step, every)
        current.slot.saving = follower.saving(self.agent.now)

    def on_boundary(self, arm_id: int, step: int) -> None:
        """The armed step is completed: the ranks of this node save and end."""
        current = self.current
        if current is None or current.dead:
            return
        slot = self.slot_of(current)
        slot.answered_id, slot.answered_step, slot.boundary_complete = arm_id, step, True
        for local_rank in range(self.agent.local):
            self.exit(local_rank, 0, delay=0.005)
        self._depart(current)
        self.agent.later(0.01, self._reached, current)

    def _reached(self, current: LocalRound) -> None:
        reached = ranks.boundary(self.view(current))
        if reached is not None and not current.killed:
            self.agent.report(reached, current.number)

    def on_target(self) -> None:
        """The script has come to its end; ranks end apart from each other."""
        for local_rank in range(self.agent.local):
            self.agent.later(self.agent.luck.uniform(0.0, 1.5), self.exit, local_rank, 0)

    def on_peers_lost(self) -> None:
        """A collective broke."""
        current = self.current
        if current is not None and self.agent.luck.random() < self.agent.job.scenario.raises:
            self.agent.later(self.agent.luck.uniform(0.004, 0.04), self._raise, current)

    def _raise(self, current: LocalRound) -> None:
        if current is self.current and not self.paused:
            self.exit(0, 1, "RuntimeError")

    def slot_of(self, current: LocalRound) -> Slot:
        """The slot as it is now."""
        if current.physics is not None and current.slot.attached:
            step = self.agent.job.training.step(current.physics)
            current.slot.write(step, current.physics.base, self.agent.now_ns)
        return current.slot

    def view(self, current: LocalRound) -> dict[int, Rank]:
        """All ranks, as the agent samples them."""
        self.slot_of(current)
        return current.view(self.agent.local)

    def running(self) -> tuple[RunningWorker, ...]:
        """The living processes, for a hello."""
        return self.current.running(self.agent.local) if self.current is not None else ()
