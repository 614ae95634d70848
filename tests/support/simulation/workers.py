"""The training processes of one node, as its agent's runner and zygote keep them.

Belongs here: killing, starting and what processes report of themselves, in the order of
`holdfast_agent.workers.runner`. The phases, what counts as evidence and what the shared page says
are the agent's own pure functions. Does not belong here: orders (`agent`), physics (`training`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from holdfast.page_sample import RankSample
from holdfast_agent.policies import rank_progress, round_phases
from holdfast_agent.policies.rank_progress import Rank
from holdfast_agent.policies.round_phases import Orders, RoundPhase, RoundTrigger, follow
from holdfast_wire import messages as wire
from simulation.follower import Follower
from simulation.local_round import LocalRound, Slot

if TYPE_CHECKING:
    from simulation.line import Line


class Workers:
    """At most one living round, and perhaps one that waits for it to be dead."""

    slowest_end = 1.0
    """Longest that processes take to end after SIGTERM, s."""

    def __init__(self, agent: Line) -> None:
        self.agent = agent
        self.phase = RoundPhase.IDLE
        self.current: LocalRound | None = None
        self.pending: tuple[int, wire.WorldAssignment] | None = None
        self.paused = False
        self.held = False
        """There is no zygote that could start a round."""
        self.slow = 0.0
        """Share of a usual step that the node needs more."""

    @property
    def alive(self) -> bool:
        """Processes of a round run, or are about to."""
        return self.pending is not None or (self.current is not None and not self.current.dead)

    @property
    def ending_round(self) -> int:
        """Number of the newest round that was started if a rank of it has ended; else 0."""
        current = self.current
        return current.number if current is not None and (current.dead or current.exits) else 0

    @property
    def rank(self) -> int:
        """Node rank."""
        return self.agent.rank

    @property
    def master(self) -> tuple[int, str]:
        """Epoch and incarnation of the newest master that the agent has accepted."""
        return (self.agent.accepted.epoch, self.agent.accepted.incarnation)

    @property
    def reached(self) -> bool:
        """Return whether the newest master's word comes to the agent, and soon."""
        agent = self.agent
        return agent.reaches(agent.job.master) and not (agent.frozen or agent.lag)

    @property
    def dying(self) -> bool:
        """Return whether SIGKILL is on its way to the processes. It takes some milliseconds."""
        return self.current is not None and self.current.killed

    @property
    def living_round(self) -> int:
        """Round of living processes; 0: none live."""
        current = self.current
        return current.number if current is not None and current.started and not current.dead else 0

    # ------------------------------------------------------------------------------------- orders

    def start(self, number: int, assignment: wire.WorldAssignment) -> None:
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
        current.orders |= Orders.STOPPED
        self._move(RoundTrigger.STOP)
        self.agent.later(
            min(grace, self.agent.luck.uniform(0.01, self.slowest_end)), self._die, current
        )

    def _give_up_pending(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            self.agent.report(wire.RoundStopped(), pending[0])

    def _kill_current(self) -> None:
        current = self.current
        if current is None or current.dead:
            return
        current.orders |= Orders.KILLED
        self._move(RoundTrigger.KILL)
        self.agent.later(self.agent.luck.uniform(0.003, 0.02) + self.agent.drag, self._die, current)

    def _move(self, happening: RoundTrigger) -> None:
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
        self._move(RoundTrigger.DEAD)
        if round_phases.tells_stopped(current.orders, next_waits=self.pending is not None):
            message = wire.RoundStopped(lease_expired=Orders.LEASE_EXPIRED in current.orders)
            self.agent.report(message, current.number)
        self.agent.workers_dead()
        self._try_spawn()

    def _try_spawn(self) -> None:
        if self.pending is None or self.phase is not RoundPhase.IDLE or not self.agent.alive:
            return
        if self.held:
            return
        (number, assignment), self.pending = self.pending, None
        slot = Slot(number, self.agent.sdk)
        self.current = current = LocalRound(number, assignment, slot)
        self._move(RoundTrigger.SPAWN)
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
        if current.slot.attached and assignment.intervals:
            current.follower = self.follower(assignment, current.physics.base)
        if self.paused:
            self.pause(paused=True)
        if self.slow:
            self.slow_down(self.slow)
        self.agent.report(wire.RoundStarted(), current.number)
        self.agent.begun(current)

    def follower(self, assignment: wire.WorldAssignment, base: int) -> Follower | None:
        """Ranks that begin after step `base` and follow their master's schedule."""
        seed = f"{self.agent.job.scenario.seed}/costs/{self.agent.rank}"
        return Follower(seed, assignment, base)

    def pause(self, *, paused: bool) -> None:
        """The processes stand still with their node."""
        self.paused = paused
        current = self.current
        if current is not None and current.physics is not None and not current.dead:
            place = current.assignment.group_rank
            self.agent.job.training.pause(current.physics, place, paused=paused)

    def slow_down(self, share: float) -> None:
        """The node needs so much more for each step than usual, in later rounds, too."""
        self.slow = share
        current = self.current
        if current is not None and current.physics is not None and not current.dead:
            place = current.assignment.group_rank
            self.agent.job.training.slow_down(current.physics, place, share)

    def vanish(self) -> None:
        """Everything here is gone at once, and nobody says so."""
        self.pending = None
        current = self.current
        if current is not None and not current.dead:
            current.dead = True
            self._depart(current)

    def zygote_lost(self) -> None:
        """The processes are gone with their zygote; no round starts until `release`."""
        self.held = True
        current = self.current
        if current is None or current.dead:
            return
        living = [rank for rank in range(self.agent.local) if rank not in current.exits]
        current.exits.update(dict.fromkeys(living, -9))
        for rank in living:
            self._exited(current, rank, -9, "")
        self._die(current)

    def store_lost(self, store_id: str) -> None:
        """A store has ended: a round on it that waits is given up."""
        if self.pending is not None and self.pending[1].store_id == store_id:
            (number, assignment), self.pending = self.pending, None
            message = wire.WorkerExited(
                rank=assignment.base_rank, exit_code=1, error_type="StoreLost"
            )
            self.agent.report(message, number)

    def release(self) -> None:
        """There is a zygote again."""
        self.held = False
        self._try_spawn()

    def expire(self, current: LocalRound) -> None:
        """The lease ran out: the zygote kills what runs."""
        if current is self.current and not current.dead:
            current.orders |= Orders.LEASE_EXPIRED | Orders.KILLED
            self._move(RoundTrigger.KILL)
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
        elif not current.slot.barrier_complete:
            rank = current.assignment.base_rank + local_rank
            self.agent.job.checks.finished(current.assignment.world_hash, rank)
        self.agent.later(delay, self._exited, current, local_rank, code, error)

    def _exited(self, current: LocalRound, local_rank: int, code: int, error: str) -> None:
        if not self.agent.alive:
            return
        everyone = len(current.exits) == self.agent.local
        running = self.phase in (RoundPhase.STARTING, RoundPhase.RUNNING)
        if current is self.current and everyone and running:
            self._move(RoundTrigger.ALL_EXITED)
        if not round_phases.is_evidence(code, current.orders):
            return
        barrier = rank_progress.Rank(cast("RankSample", current.slot), 1, 0, code).ended_at_barrier
        message = wire.WorkerExited(
            local_rank=local_rank,
            rank=current.assignment.base_rank + local_rank,
            exit_code=code,
            error_type=error,
            barrier=barrier,
            step=current.slot.step,
            age_seconds=0.002,
        )
        self.report_exit(message, current.number)

    def report_exit(self, message: wire.WorkerExited, number: int) -> None:
        """Tell the master of an end."""
        self.agent.report(message, number)

    def on_first_step(self) -> None:
        """Every rank of the round has completed a step."""
        current = self.current
        if current is not None and current.slot.attached:
            self.agent.later(self.agent.luck.uniform(0.0, 0.012), self._first_step, current)

    def _first_step(self, current: LocalRound) -> None:
        if current is not self.current or current.dead or self.phase is not RoundPhase.STARTING:
            return
        found = rank_progress.first_step(self.view(current), current.number)
        if found is not None:
            self._move(RoundTrigger.FIRST_STEP)
            self.agent.report(wire.RoundStarted(first_step=True, step=found[0]), current.number)

    def set_barrier(self, order: wire.SetBarrier, number: int) -> None:
        """Ask the ranks to save at a step, and to stop there unless they go on."""
        current = self.current
        right = current is not None and current.number == number and not current.dead
        if current is None or not right or current.physics is None or not current.slot.attached:
            return
        if not order.goes_on:
            current.barrier = order
        place, training = current.assignment.group_rank, self.agent.job.training
        if order.goes_on:
            seen = training.step(current.physics)
        else:
            seen = training.set_barrier(current.physics, place, order.barrier_id, order.step)
        current.slot.ack_id, current.slot.ack_step = order.barrier_id, seen
        ack = rank_progress.barrier_ack(self.view(current), order.barrier_id)
        if ack is not None:
            self.agent.report(dataclasses.replace(ack, goes_on=order.goes_on), current.number)

    def schedule(self, order: wire.SetSchedule, number: int) -> None:
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

    def on_barrier(self, barrier_id: int, step: int) -> None:
        """The armed step is completed: the ranks of this node save and end."""
        current = self.current
        if current is None or current.dead:
            return
        slot = self.slot_of(current)
        slot.answered_id, slot.answered_step, slot.barrier_complete = barrier_id, step, True
        for local_rank in range(self.agent.local):
            self.exit(local_rank, 0, delay=0.005)
        self._depart(current)
        self.agent.later(0.01, self._reached, current)

    def _reached(self, current: LocalRound) -> None:
        reached = rank_progress.barrier(self.view(current))
        if reached is not None and not current.killed:
            self.agent.report(reached, current.number)

    def on_target(self) -> None:
        """The script has come to its end; ranks end apart from each other."""
        for local_rank in range(self.agent.local):
            self.agent.later(self.agent.luck.uniform(0.0, 1.5), self.exit, local_rank, 0)

    def on_peers_lost(self) -> None:
        """A collective broke."""
        current = self.current
        if current is not None and self.agent.luck.random() < self.agent.job.raises:
            self.agent.later(self.agent.luck.uniform(0.004, 0.04), self._raise, current)

    def _raise(self, current: LocalRound) -> None:
        if current is self.current and not self.paused:
            self.exit(0, 1, "RuntimeError")

    def slot_of(self, current: LocalRound) -> Slot:
        """The slot as it is now."""
        if current.physics is not None and current.slot.attached:
            step = self.agent.job.training.step(current.physics)
            current.slot.write(step, current.physics.base, self.agent.now_ns)
            current.slot.step_duration_ns = int(current.physics.pace * 1e9)
        return current.slot

    def view(self, current: LocalRound) -> dict[int, Rank]:
        """All ranks, as the agent samples them."""
        self.slot_of(current)
        return current.view(self.agent.local)

    def running(self) -> tuple[wire.RunningWorker, ...]:
        """The living processes, for a hello."""
        return self.current.running(self.agent.local) if self.current is not None else ()
