"""An agent process and its training processes: says what real ones would, on a virtual network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast_master.inputs import AgentMessage, Connected, Received
from holdfast_wire.messages import (
    Arm,
    ArmEcho,
    BoundaryReached,
    ClassSeconds,
    CommandDone,
    DumpStacks,
    Fence,
    Heartbeat,
    HeartbeatInterval,
    Hello,
    Leave,
    PrepareStore,
    RankProgress,
    RankSection,
    RankStack,
    RoundStarted,
    RoundStopped,
    RunningWorker,
    SessionResponse,
    StateDigest,
    StopRound,
    StorePrepared,
    Warmed,
    Welcome,
    WorkerExited,
    WorldAssignment,
)
from simulated_training import PACE

if TYPE_CHECKING:
    from simulated_master import SimulatedMaster

JOB_UID = "uid-1"


@dataclasses.dataclass
class AgentProcess:
    """One agent process with its training processes."""

    job: SimulatedMaster
    rank: int
    agent_id: str
    pod_uid: str
    local: int = 1
    sdk: bool = True
    unmanaged: bool = False
    max_restarts: int | None = None
    topology: dict[str, str] = dataclasses.field(default_factory=dict)

    alive: bool = True
    frozen: bool = False
    cut: bool = False
    """The network drops everything of this agent."""
    session: int | None = None
    epoch: int = 0
    incarnation: str = ""
    assignment: WorldAssignment | None = None
    round: int = 0
    """Round of the running processes; 0: none run."""
    newest_round: int = 0
    stepped_told: bool = False
    saved_arm: int = 0
    finished: bool = False
    arm: Arm | None = None
    store: StorePrepared | None = None
    digest: StateDigest | None = None
    heartbeat: float = 0.5
    warm: bool = False
    left: bool = False
    beating: bool = False
    inbox: list[SessionResponse] = dataclasses.field(default_factory=list)
    important: list[tuple[Fence, AgentMessage]] = dataclasses.field(default_factory=list)
    """What is said again on a new stream: the last one may have lost it."""
    matched: tuple[int, ...] = ()
    """Log patterns that the next crash matches."""
    crashed: bool = False
    """A process of the running round has died."""

    # ------------------------------------------------------------------------------------ stream

    def start(self) -> None:
        """The process begins: connects, and is warm after a while."""
        self.connect()
        self.job.time.after(self.job.draw(0.05, 0.6), self._warmed)

    def connect(self) -> None:
        """Open a stream, if there is anything to open one to."""
        if not self.alive or self.left or self.session is not None:
            return
        if self.frozen or self.cut or not self.job.master_up:
            self.job.time.after(self.job.draw(0.05, 0.5), self.connect)
            return
        self.session = self.job.new_session(self)
        hello = Connected(self.session, self._hello(), self._fence(self.newest_round))
        self.job.deliver(self.session, hello)
        for fence, message in self.important:
            self._send(message, fence)
        if not self.beating:
            self.beating = True
            self.job.time.after(self.heartbeat, self._beat)

    def _hello(self) -> Hello:
        now = self.job.time.now
        workers = [RunningWorker(local_rank=i, pid=1, round=self.round) for i in range(self.local)]
        return Hello(
            job_uid=JOB_UID,
            node_rank=self.rank,
            pod_uid=self.pod_uid,
            agent_id=self.agent_id,
            address=f"10.0.0.{self.rank}",
            host=f"host-{self.rank}",
            local_world_size=self.local,
            warm=self.warm,
            round=self.newest_round,
            step=self.job.training.step(self.round, now) if self.round and self.sdk else 0,
            workers=tuple(workers) if self.round and not self.crashed else (),
            store=self.store,
            digest=self.digest,
            goodput=(ClassSeconds(name="PRODUCTIVE", seconds=now),),
            assignment=self.assignment,
            peer_address=f"10.0.0.{self.rank}:1",
            unmanaged=self.unmanaged,
            max_restarts=self.max_restarts,
            topology=self.topology,
        )

    def _fence(self, round_number: int) -> Fence:
        return Fence(epoch=self.epoch, incarnation=self.incarnation, round=round_number)

    def _send(self, message: AgentMessage, fence: Fence | None = None) -> None:
        fence = fence or self._fence(self.round)
        again = isinstance(message, WorkerExited | RoundStopped | BoundaryReached)
        if again and (fence, message) not in self.important:
            self.important.append((fence, message))
        if self.session is None or self.cut or self.frozen:
            return
        self.job.deliver(self.session, Received(self.session, fence, message))

    def dropped(self) -> None:
        """The stream has ended."""
        if self.session is None:
            return
        self.session = None
        if self.alive and not self.left:
            self.job.time.after(self.job.draw(0.02, 0.3), self.connect)

    def _beat(self) -> None:
        if not self.alive or self.left:
            return
        if not self.frozen and self.session is not None:
            self._send(Heartbeat(ranks=self._progress()))
        self.job.time.after(self.heartbeat, self._beat)

    def _progress(self) -> tuple[RankProgress, ...]:
        if not self.round or self.assignment is None:
            return ()
        step = self.job.training.step(self.round, self.job.time.now)
        found = self.job.training.rounds[self.round]
        first = found.base + 1 if self.sdk and step > found.base else 0
        return tuple(
            RankProgress(
                local_rank=i,
                round=self.round,
                step=step if self.sdk else 0,
                step_seconds=PACE if self.sdk else 0.0,
                samples=step * 8,
                loss=1.0,
                section=RankSection.TRAIN,
                has_sdk=self.sdk,
                first_step=first,
            )
            for i in range(self.local)
        )

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

    def _assigned(self, fence: Fence, message: WorldAssignment) -> None:
        if fence.round < self.newest_round or (fence.round == self.newest_round and self.round):
            return
        self.job.note_assignment(self, fence.round, message)
        self._kill()
        self.assignment, self.newest_round, self.finished = message, fence.round, False
        self.important.clear()
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
        training, now = self.job.training, self.job.time.now
        training.saved = max(training.saved, step)
        number = self.round
        for i in range(self.local):
            self._send(WorkerExited(local_rank=i, boundary=True, step=step))
        self._send(BoundaryReached(arm_id=self.saved_arm, step=step), self._fence(number))
        training.leave(number, self.rank, self.agent_id, now)
        self.round = 0

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
        self.arm = message
        training, now = self.job.training, self.job.time.now
        found, seen = training.rounds[self.round], training.step(self.round, now)
        if seen < message.step:
            found.arm = max(found.arm or 0, message.step)
        self._send(ArmEcho(arm_id=message.arm_id, seen_at_step=seen))

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
}
