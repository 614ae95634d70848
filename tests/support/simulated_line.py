"""A simulated agent's stream: connect, say hello, send, beat."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast_master.inputs import AgentMessage, Connected, Received
from holdfast_wire.messages import (
    Arm,
    BoundaryReached,
    ClassSeconds,
    Fence,
    Heartbeat,
    Hello,
    RankProgress,
    RankSection,
    RoundStopped,
    RunningWorker,
    SavingReport,
    SessionResponse,
    SetSchedule,
    StateDigest,
    StorePrepared,
    WorkerExited,
    WorldAssignment,
)
from simulated_training import PACE

if TYPE_CHECKING:
    from simulated_master import SimulatedMaster
    from simulated_process import AgentProcess

JOB_UID = "uid-1"


@dataclasses.dataclass
class AgentLine:
    """One agent process, as far as its master sees it."""

    job: SimulatedMaster
    rank: int
    agent_id: str
    pod_uid: str
    local: int = 1
    sdk: bool = True
    keeps_checkpoints: bool = True
    """Unlike a plain torchrun's."""
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
    save_seconds: float = 0.0
    """What its ranks take to save at a boundary, from the first to the last."""
    saving: bool = False
    """Its first local rank has saved, the others are still at it."""
    saved_round: int = 0
    """Newest round whose ranks all saved at a boundary and ended."""
    finished: bool = False
    arm: Arm | None = None
    saves: list[Arm] = dataclasses.field(default_factory=list)
    """Steps after which its ranks were asked to save and go on."""
    costs: SavingReport | None = None
    """What its ranks say of their checkpoints; None: they follow no schedule of a master."""
    schedules: list[SetSchedule] = dataclasses.field(default_factory=list)
    """What its ranks were told of the distance between checkpoints in the running round."""
    slow_steps: int = 0
    """Steps after which its ranks look at what they were told."""
    seen: dict[int, int] = dataclasses.field(default_factory=dict)
    """Schedule to the step at which its ranks did."""
    deaf: bool = False
    """Its ranks do not look."""
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
        self.session = self.job.new_session(self._self())
        hello = Connected(self.session, self._hello(), self._fence(self.newest_round))
        self.job.deliver(self.session, hello)
        for fence, message in self.important:
            self._send(message, fence)
        if not self.beating:
            self.beating = True
            self.job.time.after(self.heartbeat, self._beat)

    def _hello(self) -> Hello:
        now = self.job.time.now
        ended = self.ended_at_boundary()
        living = range(ended, self.local)
        workers = [RunningWorker(local_rank=i, pid=1, round=self.round) for i in living]
        shown = self.newest_round if ended else self.round
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
            step=self.job.training.step(shown, now) if shown and self.sdk else 0,
            workers=tuple(workers) if self.round and not self.crashed else (),
            store=self.store,
            digest=self.digest,
            goodput=(ClassSeconds(name="PRODUCTIVE", seconds=now),),
            assignment=self.assignment,
            peer_address=f"10.0.0.{self.rank}:1",
            unmanaged=self.unmanaged,
            max_restarts=self.max_restarts,
            topology=self.topology,
            ended_at_boundary=ended,
            keeps_checkpoints=self.keeps_checkpoints,
            knows_goes_on=True,
            gathers=True,
            arm_id=self.arm.arm_id if self.arm is not None and shown else 0,
        )

    def ended_at_boundary(self) -> int:
        """How many local ranks of the newest round have saved at a boundary and ended."""
        if self.saving:
            return 1 if self.local > 1 else 0
        return self.local if self.saved_round == self.newest_round != 0 else 0

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
            self._send(Heartbeat(ranks=self._progress(), saving=self._saving()))
        self.job.time.after(self.heartbeat, self._beat)

    def _saving(self) -> SavingReport | None:
        if self.costs is None or not self.round:
            return None
        if self.deaf or not self.schedules:
            return self.costs
        newest = max(self.schedules, key=lambda one: one.schedule_id)
        return dataclasses.replace(
            self.costs, seen_id=newest.schedule_id, seen_step=self.seen[newest.schedule_id]
        )

    def hear_schedule(self, message: SetSchedule) -> None:
        """The ranks look at it when they have completed their next step."""
        self.schedules.append(message)
        step = self.job.training.step(self.round, self.job.time.now) + 1 + self.slow_steps
        self.seen.setdefault(message.schedule_id, step)

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

    def _warmed(self) -> None:
        """Training processes can be started: see AgentProcess."""
        raise NotImplementedError

    def _self(self) -> AgentProcess:
        """The whole agent: see AgentProcess."""
        raise NotImplementedError
