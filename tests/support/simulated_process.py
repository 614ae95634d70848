"""An agent process and its training processes: says what real ones would, on a virtual network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from holdfast_wire.messages import (
    Arm,
    ArmEcho,
    BoundaryReached,
    CommandDone,
    CommitStep,
    DumpStacks,
    Fence,
    HeartbeatInterval,
    Leave,
    Origin,
    PrepareStore,
    RankStack,
    ReleaseBefore,
    RoundStarted,
    SaveHeld,
    SessionResponse,
    SetSchedule,
    StateDigest,
    StepAnnounced,
    StopRound,
    StorePrepared,
    Warmed,
    Welcome,
    WorkerExited,
    WorldAssignment,
)
from simulated_line import JOB_UID, AgentLine

__all__ = ["JOB_UID", "AgentProcess"]


@dataclasses.dataclass
class AgentProcess(AgentLine):
    """One agent process with its training processes."""

    def _self(self) -> AgentProcess:
        return self

    # ---------------------------------------------------------------------------------- messages

    def receive(self, session: int, response: SessionResponse) -> None:
        """A message of the master arrived."""
        if not self.alive or self.left or session != self.session or self.cut:
            return
        if self.frozen:
            self.inbox.append(response)
            return
        fence = response.fence
        assert fence is not None
        if fence.epoch < self.epoch:
            return
        self.epoch, self.incarnation = fence.epoch, fence.incarnation
        _RECEIVE[type(response.message)](self, fence, response.message)

    def _welcome(self, _: Fence, message: Welcome) -> None:
        self.heartbeat = message.heartbeat_seconds
        if self.round and message.round != self.round:
            self._kill()
        elif self.round and self.arm is not None:
            self._echo(self.arm)

    def _schedule(self, fence: Fence, message: SetSchedule) -> None:
        if self.round and fence.round == self.round:
            self.hear_schedule(message)

    def _assigned(self, fence: Fence, message: WorldAssignment) -> None:
        if fence.round < self.newest_round or (fence.round == self.newest_round and self.round):
            return
        self.job.note_assignment(self, fence.round, message)
        self._kill()
        self.assignment, self.newest_round, self.finished = message, fence.round, False
        self.important.clear()
        self.schedules, self.seen = [], {}
        if message.store_id:
            assert self.store is not None
            assert self.store.store_id == message.store_id
            self.store = None
        number = fence.round
        self.job.time.after(self.job.draw(0.01, 0.05), lambda: self._spawned(number))

    def _spawned(self, number: int) -> None:
        if self.frozen:
            self.job.time.after(0.1, lambda: self._spawned(number))
            return
        if not self._able() or self.newest_round != number or self.assignment is None:
            return
        self.round, self.stepped_told, self.arm, self.saved_arm = number, False, None, 0
        self.crashed = False
        now = self.job.time.now
        size, world = self.assignment.group_world_size, self.assignment.world_hash
        self.job.training.join(number, size, world, (self.rank, self.agent_id), now)
        self.job.check_single_round()
        self._send(RoundStarted())
        self._watch(number)

    def _able(self) -> bool:
        return self.alive and not self.left and not self.frozen

    def _watch(self, number: int) -> None:
        """Look at the processes from time to time, as the agent does at its page."""
        if not self.alive or self.left or self.round != number or self.finished:
            return
        busy = not self.stepped_told or self.arm is not None
        pause = self.job.draw(0.01, 0.04) if busy else self.job.draw(0.05, 0.15)
        self.job.time.after(pause, lambda: self._watch(number))
        if self.frozen:
            return
        now, training = self.job.time.now, self.job.training
        step = training.step(number, now)
        if self.sdk and not self.stepped_told and training.has_stepped(number, now):
            self.stepped_told = True
            first = training.rounds[number].base + 1
            self._send(RoundStarted(first_step=True, step=first))
        found = training.rounds[number]
        if found.arm is not None and step >= found.arm and self.saved_arm == 0:
            self._save(found.arm)
        elif step >= training.target:
            self._finish()

    def _save(self, step: int) -> None:
        self.saved_arm = self.arm.arm_id if self.arm else 1
        if not self.save_seconds:
            self._saved(step)
            return
        self.saving = True
        number = self.round
        self.job.time.after(self.save_seconds, lambda: self._end_saving(number, step))

    def _end_saving(self, number: int, step: int) -> None:
        if self.saving and self.round == number:
            self.saving = False
            self._saved(step)

    def _saved(self, step: int) -> None:
        training, now = self.job.training, self.job.time.now
        training.saved = max(training.saved, step)
        number = self.round
        for i in range(self.local):
            self._send(WorkerExited(local_rank=i, boundary=True, step=step))
        self._send(BoundaryReached(arm_id=self.saved_arm, step=step), self._fence(number))
        training.leave(number, self.rank, self.agent_id, now)
        self.saved_round, self.round = number, 0

    def _finish(self) -> None:
        self.finished = True
        assert self.assignment is not None
        fence = self._fence(self.round)
        for i in range(self.local):
            exited = WorkerExited(
                local_rank=i, rank=self.assignment.base_rank + i, step=self.job.training.target
            )
            # Ranks end apart from each other.
            self._tell_later(self.job.draw(0.0, 2.0), fence.round, exited, fence)

    def _stop_round(self, fence: Fence, message: StopRound) -> None:
        if self.round == fence.round:
            self._kill()
        self._send(CommandDone(command_id=message.command_id, ok=True))

    def _prepare(self, _: Fence, message: PrepareStore) -> None:
        self.job.time.after(self.job.draw(0.005, 0.03), lambda: self._store_ready(message.store_id))

    def _store_ready(self, store_id: str) -> None:
        if not self._able():
            return
        if self.job.chance(self.job.store_failures):
            self._send(StorePrepared(store_id=store_id, error="no port"))
            return
        port = 1024 + self.job.count()
        self.store = StorePrepared(store_id=store_id, host=f"10.0.0.{self.rank}", port=port)
        self._send(self.store)

    def _armed(self, fence: Fence, message: Arm) -> None:
        if fence.round != self.round or not self.sdk:
            return
        if message.goes_on:
            self.saves.append(message)
            self._echo(message)
            return
        self.arm = message
        found, seen = self.job.training.rounds[self.round], self._step()
        if seen < message.step:
            found.arm = max(found.arm or 0, message.step)
        self._echo(message)

    def _echo(self, arm: Arm) -> None:
        echo = ArmEcho(arm_id=arm.arm_id, seen_at_step=self._step(), goes_on=arm.goes_on)
        self._send(echo)

    def _step(self) -> int:
        return self.job.training.step(self.round, self.job.time.now)

    def _dump(self, _: Fence, message: DumpStacks) -> None:
        stacks = tuple(RankStack(local_rank=i, rank=i, text="stack") for i in range(self.local))
        self._send(CommandDone(command_id=message.command_id, ok=True, stacks=stacks))

    def _leave(self, _: Fence, message: Leave) -> None:
        self._kill()
        self.left = True
        self.job.departed(self, message.outcome)

    def _interval(self, _: Fence, message: HeartbeatInterval) -> None:
        self.heartbeat = message.heartbeat_seconds

    def _digest(self, _: Fence, message: StateDigest) -> None:
        self.digest = message

    def _warmed(self) -> None:
        if self.frozen:
            self.job.time.after(0.1, self._warmed)
        elif self.alive and not self.left:
            self.warm = True
            self._send(Warmed(seconds=0.5))

    def _kill(self) -> None:
        self.job.saves_cut += self.saving
        self.saving = False
        if self.round:
            now = self.job.time.now
            self.job.training.leave(self.round, self.rank, self.agent_id, now)
            if not self.finished:
                self.job.peers_raise(self.round, self.rank)
        self.round = 0

    def _tell(self, exited: WorkerExited, fence: Fence) -> None:
        if self.alive and not self.left:
            self._send(exited, fence)

    def _tell_later(self, delay: float, number: int, exited: WorkerExited, fence: Fence) -> None:
        def tell() -> None:
            if self.alive and not self.left and self.round == number:
                self.crashed |= exited.exit_code != 0
                self._send(exited, fence)

        self.job.time.after(delay, tell)

    def peer_died(self, number: int) -> None:
        """The collective of this round broke: this node's processes raise, or hang."""
        if self.round != number or self.finished or self.assignment is None:
            return
        exited = WorkerExited(
            rank=self.assignment.base_rank,
            exit_code=1,
            error_type="RuntimeError",
            error_message="connection closed by peer",
            step=self.job.training.step(number, self.job.time.now),
        )
        fence = self._fence(number)
        self._tell_later(self.job.draw(0.008, 0.04), number, exited, fence)


_RECEIVE: dict[type | None, Callable[[AgentProcess, Fence, object], None]] = {
    Welcome: AgentProcess._welcome,  # type: ignore[dict-item]
    WorldAssignment: AgentProcess._assigned,  # type: ignore[dict-item]
    StopRound: AgentProcess._stop_round,  # type: ignore[dict-item]
    PrepareStore: AgentProcess._prepare,  # type: ignore[dict-item]
    Arm: AgentProcess._armed,  # type: ignore[dict-item]
    DumpStacks: AgentProcess._dump,  # type: ignore[dict-item]
    Leave: AgentProcess._leave,  # type: ignore[dict-item]
    HeartbeatInterval: AgentProcess._interval,  # type: ignore[dict-item]
    StateDigest: AgentProcess._digest,  # type: ignore[dict-item]
    # Checkpoints: what a test expects of them it sees in the batch.
    Origin: lambda *_: None,
    CommitStep: lambda *_: None,
    StepAnnounced: lambda *_: None,
    ReleaseBefore: lambda *_: None,
    SaveHeld: lambda *_: None,
    SetSchedule: AgentProcess._schedule,  # type: ignore[dict-item]
}
