"""One agent process on a simulated node: hears a master, keeps its workers, says what happens.

What it makes of messages, leases, exits, signals and the lack of a master are the agent's own pure
functions (`holdfast_agent.decide`); here are the clock, the luck and the wires that the shell has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast_agent.decide import exits, hearing, leaving, masterless, orders, ranks
from holdfast_agent.decide.fence import FenceVerdict
from holdfast_agent.decide.goodput import Ledger, class_of
from holdfast_agent.decide.leaving import SignalStep
from holdfast_agent.decide.orders import Order
from holdfast_master.inputs import Received
from holdfast_wire.messages import (
    Arm,
    CommandDone,
    CommitStep,
    DumpStacks,
    GetRoundResponse,
    Goodbye,
    Heartbeat,
    HeartbeatInterval,
    Hello,
    Leave,
    LeaveOutcome,
    Origin,
    PrepareStore,
    RankStack,
    ReleaseBefore,
    SaveHeld,
    SessionResponse,
    SetSchedule,
    StateDigest,
    StepAnnounced,
    StopRound,
    StorePrepared,
    Warmed,
    Welcome,
    WorldAssignment,
)
from simulation import invariants
from simulation.accounts import Hurt
from simulation.keeper import Keeper
from simulation.line import Line
from simulation.local_round import LocalRound
from simulation.master import JOB_UID
from simulation.network import Stream

if TYPE_CHECKING:
    from simulation.job import Job

STOP_SECONDS = 30.0


class Agent(Line):
    """An agent, its processes, and its end of the wires."""

    def __init__(self, job: Job, rank: int, number: int, pod_uid: str) -> None:
        super().__init__(job, rank, number, pod_uid)
        self.welcome = Welcome(masterless_limit_seconds=600.0)
        self.beat_seconds = 0.5
        self.warm = self.said_warm = False
        self.digest: StateDigest | None = None
        self.waiting: StorePrepared | None = None
        self.done: dict[int, CommandDone] = {}
        self.due: list[CommandDone] = []
        """Answers that wait for the workers to be dead."""
        self.signals: list[int] = []
        self.ending: LeaveOutcome | None = None
        self.ledger = Ledger()
        self.accounted_at = job.time.now
        self.keeper: Keeper = Keeper(self, number)
        self.later(self.luck.uniform(0.0, 0.02), self.dial)
        self.later(self.luck.uniform(0.05, 0.6), self._warmed)
        self.later(self.luck.uniform(0.3, 1.0), self._look)
        self.later(self.luck.uniform(0.0, 0.5), self._beat)

    def hello(self) -> Hello:
        """What a new master must know."""
        self._account()
        self.said_warm = self.warm
        current = self.workers.current
        shown = current if current is not None and exits.is_shown(current.orders) else None
        if shown is not None and shown.number != self.accepted.round:
            shown = None
        seen = self.workers.view(shown) if shown else {}
        step = ranks.common_step(seen, shown.number) if shown else 0
        return Hello(
            job_uid=JOB_UID,
            node_rank=self.rank,
            pod_uid=self.pod_uid,
            agent_id=self.agent_id,
            host=f"host-{self.rank}",
            address=f"10.0.0.{self.rank}",
            local_world_size=self.local,
            warm=self.warm,
            workers=self.workers.running(),
            round=self.accepted.round,
            step=step,
            done_command_ids=tuple(self.done),
            goodput=self.ledger.entries(),
            digest=self.digest,
            store=self.waiting,
            assignment=shown.assignment if shown else None,
            peer_address=str(self.rank),
            ended_at_boundary=ranks.ended_at_boundary(seen),
            keeps_checkpoints=True,
            knows_goes_on=True,
            gathers=True,
            arm_id=shown.armed if shown else 0,
        )

    def _account(self) -> None:
        name = class_of(self.workers.phase, saving=False)
        self.ledger = self.ledger.add(name, max(0.0, self.now - self.accounted_at))
        self.accounted_at = self.now

    def _beat(self) -> None:
        if self.connected and self.ending is None:
            current = self.workers.current
            if current is None or current.dead:
                self.report(Heartbeat(), current.number if current else 0)
            else:
                self.workers.follow()
                view = self.workers.view(current)
                progress = tuple(
                    ranks.progress(rank, seen, current.number, self.now_ns)
                    for rank, seen in view.items()
                )
                beat = Heartbeat(ranks=progress, saving=ranks.saving(view))
                self.report(beat, current.number)
        self.later(self.beat_seconds, self._beat)

    # ------------------------------------------------------------------------------------- orders

    def receive(self, stream: Stream, response: SessionResponse) -> None:
        """A message of a master arrived."""
        if not self.alive or self.stream is not stream:
            return
        if self.frozen:
            self.deferred.append(lambda: self.receive(stream, response))
            return
        heard = hearing.hear(self.accepted, response)
        if heard.verdict is not FenceVerdict.ACCEPT:
            if not stream.welcomed:
                self._hang_up(stream)
            return
        self.job.checks.obeyed(self, response)
        self.accepted = heard.accepted
        message = response.message
        if not stream.welcomed:
            invariants.opened(self.agent_id, message)
            stream.welcomed = isinstance(message, Welcome)
        if self.ending is None or hearing.concerns_ending(message):
            _ORDERS[type(message)](self, message, heard.round)

    def _welcomed(self, welcome: Welcome, _: int) -> None:
        self.welcome, self.attempt = welcome, 0
        self.beat_seconds = welcome.heartbeat_seconds
        verdict = orders.on_welcome(self.accepted.round, welcome.round, alive=self.workers.alive)
        for request in self.statements.again(self.accepted, self.now):
            if self.stream is not None:
                event = Received(self.stream.number, request.fence, request.message)  # type: ignore[arg-type]
                self.stream.send_up(event)
        self.keeper.welcomed()
        if orders.warmth_unknown(warm=self.warm, said=self.said_warm, cold_reason=""):
            self.report(Warmed())
        if verdict.order is Order.KILL:
            self.workers.kill()

    def _assigned(self, assignment: WorldAssignment, own_round: int) -> None:
        verdict = orders.on_assignment(
            own_round, self.accepted.round, assignment.local_world_size, self.local
        )
        if verdict.order is not Order.START:
            return
        self.statements.forget_before(self.accepted.round - 1)
        if self.waiting is not None and self.waiting.store_id == assignment.store_id:
            self.waiting = None
        self.job.checks.started(self, self.accepted.round, assignment)
        self.workers.start(self.accepted.round, assignment)

    def _stopped(self, order: StopRound, number: int) -> None:
        verdict = orders.on_stop(self.accepted.round, number, alive=self.workers.alive)
        if verdict.order is Order.KILL:
            self.workers.stop(order.grace_seconds)
        self._answer_when_dead(CommandDone(command_id=order.command_id, ok=True))

    def _answer_when_dead(self, answer: CommandDone) -> None:
        self.due.append(answer)
        if not self.workers.alive:
            self.workers_dead()

    def begun(self, current: LocalRound) -> None:
        """The processes of a round exist: they ask what to start from."""
        self.keeper.ask(current)

    def workers_dead(self) -> None:
        """Nothing lives here: answers that waited for it go out, a lease is taken again."""
        self.lease_held = True
        due, self.due = self.due, []
        for answer in due:
            self.done[answer.command_id] = answer
            self.report(answer)
        if self.ending is not None and not self.workers.alive:
            self.later(0.01, self._gone, self.ending)

    def _prepare(self, order: PrepareStore, _: int) -> None:
        if self.waiting is not None and self.waiting.store_id == order.store_id:
            self.report(self.waiting)
            return
        self.later(self.luck.uniform(0.005, 0.03), self._store_ready, order.store_id)

    def _store_ready(self, store_id: str) -> None:
        if self.luck.random() < self.job.store_failures:
            self.report(StorePrepared(store_id=store_id, error="no port"))
            return
        self.waiting = StorePrepared(
            store_id=store_id, host=f"10.0.0.{self.rank}", port=self.luck.randrange(1024, 65000)
        )
        self.report(self.waiting)

    def _dump(self, order: DumpStacks, _: int) -> None:
        stacks = tuple(RankStack(local_rank=rank, text="stack") for rank in range(self.local))
        self.report(CommandDone(command_id=order.command_id, ok=True, stacks=stacks))

    def _leave(self, order: Leave, _: int) -> None:
        self._answer_when_dead(CommandDone(command_id=order.command_id, ok=True))
        self.end(order.outcome, order.grace_seconds)

    def end(self, outcome: LeaveOutcome, grace: float) -> None:
        """Workers first, then itself."""
        if self.ending is not None:
            return
        self.ending = outcome
        self.workers.stop(grace)
        if not self.workers.alive:
            self.later(0.01, self._gone, outcome)

    def _gone(self, outcome: LeaveOutcome) -> None:
        """The process ends in order."""
        if not self.alive:
            return
        self.report(Goodbye(reason="ends"))
        signal_number = self.signals[0] if self.signals else None
        self.job.ended(self, leaving.exit_code(outcome, signal_number))

    def _keep_digest(self, digest: StateDigest, _: int) -> None:
        if hearing.newer_digest(self.digest, digest):
            self.digest = digest

    def _interval(self, order: HeartbeatInterval, _: int) -> None:
        self.beat_seconds = order.heartbeat_seconds

    def _warmed(self) -> None:
        self.warm = True
        self.report(Warmed(seconds=0.5))

    @property
    def able(self) -> bool:
        """It lives, runs, and was not told to end."""
        return self.alive and not self.frozen and self.ending is None

    def zygote_lost(self) -> None:
        """The zygote is gone with its workers: the agent cannot go on."""
        self.workers.vanish()
        self.report(Goodbye(reason="the zygote ended", failed=True))
        self.job.ended(self, 1)

    # --------------------------------------------------------------------------- without a master

    def _look(self) -> None:
        """Every second: is there a master, and do peers know better."""
        if not self.connected and self.workers.alive:
            current = self.workers.current
            peers = current.assignment.peers if current is not None else ()
            answers = self.job.ask_peers(self, [int(peer.address) for peer in peers])
            verdict = masterless.judge(
                silent_seconds=self.now - self.no_master_since,
                limit_seconds=self.welcome.masterless_limit_seconds,
                epoch=self.accepted.epoch,
                own_round=self.accepted.round,
                answers=answers,
            )
            if verdict.kill:
                accounts = self.job.checks.accounts
                accounts.muddle()
                accounts.hurt(self.rank, Hurt.FAILURE, 0.0)  # its master was away for too long
                self.workers.kill()
            elif verdict.arm is not None and current and verdict.arm.arm_id > current.armed:
                self.workers.arm(verdict.arm, self.accepted.round)
        self.later(1.0, self._look)

    def known(self) -> GetRoundResponse:
        """What a peer that has no master is told."""
        current = self.workers.current
        own = current is not None and current.number == self.accepted.round
        return GetRoundResponse(
            fence=self.accepted.fence(),
            has_master=self.connected,
            arm=current.boundary if current is not None and own else None,
        )

    def on_signal(self, number: int, grace: float) -> None:
        """A signal that ends the agent came."""
        earlier = len(self.signals)
        self.signals.append(number)
        plan = leaving.on_signal(
            earlier=earlier,
            managed=True,
            connected=self.connected,
            grace_seconds=grace,
            stop_seconds=STOP_SECONDS,
        )
        if plan.step is SignalStep.NOTICE:
            self.report(Goodbye(reason=f"signal {number}", terminated=True))
            self.later(
                plan.leave_wait_seconds, self.end, LeaveOutcome.UNSPECIFIED, plan.stop_grace_seconds
            )
            return
        self.end(LeaveOutcome.UNSPECIFIED, plan.stop_grace_seconds)


_ORDERS: dict[type | None, Callable[[Agent, Any, int], None]] = {
    Welcome: Agent._welcomed,
    WorldAssignment: Agent._assigned,
    StopRound: Agent._stopped,
    PrepareStore: Agent._prepare,
    Arm: lambda agent, order, number: agent.workers.arm(order, number),
    SetSchedule: lambda agent, order, number: agent.workers.schedule(order, number),
    DumpStacks: Agent._dump,
    Leave: Agent._leave,
    StateDigest: Agent._keep_digest,
    HeartbeatInterval: Agent._interval,
    CommitStep: lambda agent, order, number: agent.keeper.on_grant(order, number),
    StepAnnounced: lambda agent, news, number: agent.keeper.on_announced(news, number),
    ReleaseBefore: lambda agent, order, number: agent.keeper.on_release(order, number),
    SaveHeld: lambda agent, order, number: agent.keeper.on_save_held(order, number),
    Origin: lambda agent, origin, number: agent.keeper.on_origin(origin, number),
}
