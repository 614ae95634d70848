"""One agent process on a simulated node: hears a master, keeps its workers, says what happens.

What it makes of messages, leases, exits, signals and the lack of a master are the agent's own pure
functions (`holdfast_agent.decide`); here are the clock, the luck and the wires that the shell has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast_agent.decide import hearing, leaving, lease, masterless, orders, ranks, reconnect
from holdfast_agent.decide.fence import Accepted, FenceVerdict
from holdfast_agent.decide.goodput import Ledger, class_of
from holdfast_agent.decide.leaving import SignalStep
from holdfast_agent.decide.lease import LeaseVerdict
from holdfast_agent.decide.orders import Order
from holdfast_agent.decide.statements import Statements
from holdfast_master.inputs import Connected, Received
from holdfast_wire.messages import (
    Arm,
    CommandDone,
    DumpStacks,
    Goodbye,
    Heartbeat,
    HeartbeatInterval,
    Hello,
    Leave,
    LeaveOutcome,
    PrepareStore,
    RankStack,
    SessionResponse,
    StateDigest,
    StopRound,
    StorePrepared,
    Warmed,
    Welcome,
    WorldAssignment,
)
from simulation.master import JOB_UID
from simulation.network import Stream
from simulation.workers import SIGKILL, SIGTERM, Workers

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.master import Master

WELCOME_SECONDS = 5.0
"""holdfast_agent.session.WELCOME_DEADLINE_SECONDS."""
STOP_SECONDS = 30.0
LEASE_LIMIT = 4.0


class Agent:
    """An agent, its processes, and its end of the wires."""

    def __init__(self, job: Job, rank: int, number: int, pod_uid: str) -> None:
        self.job, self.rank, self.pod_uid = job, rank, pod_uid
        self.agent_id = f"a{number}"
        self.local = job.scenario.local
        self.luck = random.Random(f"{job.scenario.seed}/{rank}/{number}")
        self.pace = 1.0 + self.luck.uniform(-job.scenario.skew, job.scenario.skew)
        """Its seconds are this long."""
        self.alive = True
        self.frozen = False
        self.cut_up = self.cut_down = self.cut_peers = 0
        self.lag = self.drag = 0.0
        self.stream: Stream | None = None
        self.attempt = 0
        self.accepted = Accepted()
        self.statements = Statements()
        self.workers = Workers(self)
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
        self.deferred: list[Callable[[], None]] = []
        """What happens once a frozen process goes on."""
        self.lease_held = True
        self.frozen_at = 0.0
        self.no_master_since = job.time.now
        self.ledger = Ledger()
        self.accounted_at = job.time.now
        self.later(self.luck.uniform(0.0, 0.02), self.dial)
        self.later(self.luck.uniform(0.05, 0.6), self._warmed)
        self.later(self.luck.uniform(0.3, 1.0), self._look)
        self.later(self.luck.uniform(0.0, 0.5), self._beat)

    # -------------------------------------------------------------------------------------- time

    def later(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        """Have this process do something after a delay of its own clock, s."""
        self.job.time.after(delay * self.pace, self._on_time, what, args)

    def _on_time(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.deferred.append(lambda: what(*args))
        else:
            what(*args)

    @property
    def now(self) -> float:
        """Its monotonic clock, s."""
        return self.job.time.now / self.pace

    @property
    def now_ns(self) -> int:
        """The same, ns; never 0."""
        return int(self.now * 1e9) + 1

    # ------------------------------------------------------------------------------------ stream

    def dial(self) -> None:
        """Open a stream, if there is anything to open one to."""
        if self.stream is not None:
            return
        host = self.job.endpoint(self)
        if host is None or self.cut_up or self.cut_down:
            self._again()
            return
        stream = self.stream = self.job.connect(self, host)
        stream.send_up(Connected(stream.number, self.hello(), self.accepted.fence()))
        self.later(WELCOME_SECONDS, self._welcome_due, stream)

    def _again(self) -> None:
        self.attempt += 1
        self.later(reconnect.delay(self.attempt, self.luck.uniform(0.5, 1.0)), self.dial)

    def _welcome_due(self, stream: Stream) -> None:
        if self.stream is stream and not stream.welcomed:
            self._hang_up(stream)

    def _hang_up(self, stream: Stream) -> None:
        stream.end_at_agent(0.0)
        stream.end_at_host(0.01)

    def dropped(self, stream: Stream) -> None:
        """The stream has ended, as this side sees it."""
        if self.stream is not stream or not self.alive:
            return
        if self.frozen:
            self.deferred.append(lambda: self.dropped(stream))
            return
        self.stream = None
        if stream.welcomed:
            self.no_master_since, self.attempt = self.now, -1
        self._again()

    @property
    def connected(self) -> bool:
        """A Welcome came and the stream has not ended since."""
        return self.stream is not None and self.stream.welcomed

    def reaches(self, master: Master) -> bool:
        """Whether it has a stream to this very master, and nothing is in the way."""
        stream, blocked = self.stream, self.cut_up or self.cut_down
        host = stream.host if stream is not None and stream.welcomed else None
        return host is master and not (master.frozen or master.busy or blocked)

    def report(self, message: Any, number: int | None = None) -> None:
        """Send a message, about a round where it is about workers."""
        self.statements.note(message, number or 0, self.now)
        if self.connected and not self.frozen and self.stream is not None:
            fence = self.accepted.fence(number)
            self.stream.send_up(Received(self.stream.number, fence, message))

    def hello(self) -> Hello:
        """What a new master must know."""
        self._account()
        self.said_warm = self.warm
        current = self.workers.current
        shown = current if current is not None and hearing_shows(current) else None
        step = ranks.common_step(self.workers.view(shown), shown.number) if shown else 0
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
                view = self.workers.view(current)
                progress = tuple(
                    ranks.progress(rank, seen, current.number, self.now_ns)
                    for rank, seen in view.items()
                )
                self.report(Heartbeat(ranks=progress), current.number)
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
        if isinstance(message, Welcome):
            stream.welcomed = True
        if self.ending is None or isinstance(message, Welcome):
            _ORDERS[type(message)](self, message, heard.round)

    def _welcomed(self, welcome: Welcome, _: int) -> None:
        self.welcome, self.attempt = welcome, 0
        self.beat_seconds = welcome.heartbeat_seconds
        verdict = orders.on_welcome(self.accepted.round, welcome.round, alive=self.workers.alive)
        for request in self.statements.again(self.accepted, self.now):
            if self.stream is not None:
                event = Received(self.stream.number, request.fence, request.message)  # type: ignore[arg-type]
                self.stream.send_up(event)
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

    def peers_reachable(self) -> None:
        """Other agents are reached again."""
        self.cut_peers -= 1

    def quick_again(self) -> None:
        """The node is as fast as others."""
        self.lag = self.drag = 0.0

    def zygote_lost(self) -> None:
        """The zygote is gone with its workers: the agent cannot go on."""
        self.workers.vanish()
        self.report(Goodbye(reason="the zygote ended"))
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
                self.job.checks.muddle()
                self.workers.kill()
        self.later(1.0, self._look)

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

    # -------------------------------------------------------------------------------------- freeze

    def freeze(self, *, node: bool) -> None:
        """SIGSTOP of the agent; `node`: of everything on its node, the zygote too."""
        if self.frozen:
            return
        self.frozen, self.frozen_at = True, self.job.time.now
        current = self.workers.current
        if node:
            self.workers.pause(paused=True)
        elif current is not None:
            self.job.time.after(LEASE_LIMIT, self._zygote_kills, current, self.frozen_at)
        if self.stream is not None:
            self.job.time.after(
                self.luck.uniform(2.0, 4.0), self._unanswered, self.stream, self.frozen_at
            )

    def _zygote_kills(self, current: Any, since: float) -> None:
        if self.frozen and self.frozen_at == since and self.alive:
            self.workers.expire(current)

    def _unanswered(self, stream: Stream, since: float) -> None:
        if self.frozen and self.frozen_at == since:
            stream.end_at_host(0.0)
            stream.end_at_agent(0.0)

    def thaw(self) -> None:
        """SIGCONT: the lease is looked at first, then everything that has come."""
        if not self.frozen or not self.alive:
            return
        self.frozen = False
        age = int((self.job.time.now - self.frozen_at) * 1e9)
        verdict = lease.judge(held=self.lease_held, age_ns=age, limit_ns=int(LEASE_LIMIT * 1e9))
        current = self.workers.current
        if verdict is LeaseVerdict.EXPIRED and current is not None and not current.dead:
            self.lease_held = False
            self.workers.expire(current)
        self.workers.pause(paused=False)
        self.job.checks.thawed(self, age * 1e-9, LEASE_LIMIT)
        deferred, self.deferred = self.deferred, []
        for what in deferred:
            if self.alive:
                what()


def hearing_shows(current: Any) -> bool:
    """Whether a hello names the round: `decide.exits`."""
    from holdfast_agent.decide import exits  # noqa: PLC0415

    return exits.is_shown(current.orders)


_ORDERS: dict[type | None, Callable[[Agent, Any, int], None]] = {
    Welcome: Agent._welcomed,
    WorldAssignment: Agent._assigned,
    StopRound: Agent._stopped,
    PrepareStore: Agent._prepare,
    Arm: lambda agent, order, number: agent.workers.arm(order, number),
    DumpStacks: Agent._dump,
    Leave: Agent._leave,
    StateDigest: Agent._keep_digest,
    HeartbeatInterval: Agent._interval,
}
__all__ = ["SIGKILL", "SIGTERM", "Agent"]
