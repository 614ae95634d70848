"""One agent process on a simulated node: hears a master, keeps its workers, says what happens.

What it makes of messages, leases, exits, signals and the lack of a master are the agent's own pure
functions (`holdfast_agent.policies`); here are the clock, the luck and the wires that the shell
has.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast_agent.policies import (
    exit_codes,
    liveness,
    master_messages,
    rank_progress,
    round_phases,
)
from holdfast_agent.policies.collective_steps import StepGuess
from holdfast_agent.policies.exit_codes import SignalStep
from holdfast_agent.policies.round_phases import class_of, ledger
from holdfast_master.inputs import Received
from holdfast_wire import messages as wire
from holdfast_wire.resources import TRAITS, Resource
from simulation.keeper import Keeper
from simulation.line import Line
from simulation.local_round import LocalRound
from simulation.master import JOB_UID
from simulation.network import Stream
from simulation.oracle import invariants
from simulation.oracle.accounts import Hurt
from simulation.sampling import NodeSampling

if TYPE_CHECKING:
    from simulation.job import Job

STOP_SECONDS = 30.0
RANKS_END_SECONDS = 10.0
"""Time that ranks of a world that is over have before a check is refused, s."""


class Agent(Line):
    """An agent, its processes, and its end of the wires."""

    def __init__(self, job: Job, rank: int, number: int, pod_uid: str) -> None:
        super().__init__(job, rank, number, pod_uid)
        self.welcome = wire.Welcome(masterless_limit_seconds=600.0)
        self.beat_seconds = 0.5
        self.warm = self.said_warm = False
        self.digest: wire.StateDigest | None = None
        self.waiting: wire.StorePrepared | None = None
        self.used: wire.StorePrepared | None = None
        self.owed_store = ""
        """A store that is to be started once there is a zygote again; empty: none."""
        self.done: dict[int, wire.CommandDone] = {}
        self.due: list[wire.CommandDone] = []
        """Answers that wait for the workers to be dead."""
        self.signals: list[int] = []
        self.ending: wire.LeaveOutcome | None = None
        self.seconds = defaultdict[str, float](float)
        self.accounted_at = job.time.now
        self.keeper: Keeper = Keeper(self, number)
        self.later(self.luck.uniform(0.0, 0.02), self.dial)
        self.later(self.luck.uniform(0.05, 0.6), self._warmed)
        self.later(self.luck.uniform(0.3, 1.0), self._look)
        self.later(self.luck.uniform(0.0, 0.5), self._beat)
        self.sampling: NodeSampling = NodeSampling(self, number)
        self.follows_rosters = True
        """Its ranks take part in local SGD."""
        self.rosters: list[wire.WorldAssignment] = []
        """Rosters of replicas that it was told, oldest first."""
        self.checked = {Resource.CPU_MATMUL: 1.0, Resource.LINK_BANDWIDTH: 10.0}
        """Figures that a check of this node has, by resource; none: it does not answer."""
        self.refuses: wire.CheckRole | None = None
        """Part of a check that this node refuses."""

    def hello(self) -> wire.Hello:
        """Return the greeting with all that a new master must know."""
        self._account()
        self.said_warm = self.warm
        current = self.workers.current
        shown = current if current is not None and round_phases.is_shown(current.orders) else None
        if shown is not None and shown.number != self.accepted.round:
            shown = None
        seen = self.workers.view(shown) if shown else {}
        step = rank_progress.common_step(seen, shown.number) if shown else 0
        return wire.Hello(
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
            goodput=ledger(self.seconds),
            digest=self.digest,
            store=self.waiting,
            assignment=self._with_roster(shown) if shown else None,
            peer_address=str(self.rank),
            ended_at_barrier=rank_progress.ended_at_barrier(seen),
            keeps_checkpoints=True,
            knows_goes_on=True,
            gathers=True,
            barrier_id=shown.armed if shown else 0,
        )

    def _with_roster(self, current: LocalRound) -> wire.WorldAssignment:
        """Return what this node runs, with the newest roster that names it."""
        assignment, number = current.assignment, current.number
        told = [one.roster for one in self.rosters if one.assignment_id == number]
        return dataclasses.replace(assignment, roster=told[-1]) if told else assignment

    def _account(self) -> None:
        name = class_of(self.workers.phase, saving=False)
        self.seconds[name] += max(0.0, self.now - self.accounted_at)
        self.accounted_at = self.now

    def _beat(self) -> None:
        if self.connected and self.ending is None:
            current = self.workers.current
            if current is None or current.dead:
                self.report(wire.Heartbeat(), current.number if current else 0)
            else:
                self.workers.follow()
                view = self.workers.view(current)
                guess = self.guess(current.number)
                progress = tuple(
                    rank_progress.guessed(
                        rank_progress.progress(rank, seen, current.number, self.now_ns),
                        guess,
                        self.now,
                    )
                    for rank, seen in view.items()
                )
                beat = wire.Heartbeat(ranks=progress, saving=rank_progress.saving(view))
                self.report(beat, current.number)
        self.later(self.beat_seconds, self._beat)

    def guess(self, number: int) -> StepGuess | None:
        """Return what the agent guesses of its ranks' steps in a round; None: nothing."""
        return None

    def _check(self, order: wire.CheckNode, _: int) -> None:
        if self.checked:
            self._once_idle(order, self.now + RANKS_END_SECONDS)

    def _once_idle(self, order: wire.CheckNode, until: float) -> None:
        """Give the ranks of a world that is over time to end, as the real agent does."""
        if self.refuses is order.role or (self.workers.alive and self.now >= until):
            text = "ranks run on this node, or are about to"
            self.report(wire.NodeChecked(round=order.round, partner=order.partner, refused=text), 0)
        elif self.workers.alive:
            self.later(0.1, self._once_idle, order, until)
        else:
            self._measure(order)

    def _measure(self, order: wire.CheckNode) -> None:
        """Take a second or two, alone or with a partner."""
        if order.role is wire.CheckRole.SERVE:
            self.report(
                wire.CheckListening(round=order.round, host=f"10.0.0.{self.rank}", port=1), 0
            )
        figures = tuple(
            wire.CheckFigure(resource=resource.value, value=value)
            for resource, value in self.checked.items()
            if TRAITS[resource].of_pair is (order.role is not wire.CheckRole.ALONE)
        )
        answer = wire.NodeChecked(
            round=order.round, partner=order.partner, kind="simulated", figures=figures
        )
        self.later(self.sampling.luck.uniform(1.0, 2.0), self.report, answer, 0)

    # ------------------------------------------------------------------------------------- orders

    def receive(self, stream: Stream, response: wire.SessionResponse) -> None:
        """A message of a master arrived."""
        if not self.alive or self.stream is not stream:
            return
        if self.frozen:
            self.deferred.append(lambda: self.receive(stream, response))
            return
        heard = master_messages.judge(self.accepted, response)
        if heard.refused:
            if not stream.welcomed:
                self._hang_up(stream)
            return
        self.job.checks.obeyed(self, response)
        self.accepted = heard.accepted
        message = response.message
        if not stream.welcomed:
            invariants.opened(self.agent_id, message)
            stream.welcomed = isinstance(message, wire.Welcome)
        if self.ending is None or master_messages.concerns_ending(message):
            _ORDERS[type(message)](self, message, heard.round)

    def _welcomed(self, welcome: wire.Welcome, _: int) -> None:
        self.welcome, self.attempt = welcome, 0
        self.beat_seconds = welcome.heartbeat_seconds
        newest, alive = self.accepted.round, self.workers.alive
        killed_for = master_messages.why_killed(newest, welcome.round, alive=alive)
        for request in self.statements.again(
            self.accepted, self.now, ending=self.workers.ending_round
        ):
            if self.stream is not None:
                event = Received(self.stream.number, request.fence, request.message)  # type: ignore[arg-type]
                self.stream.send_up(event)
        self.keeper.welcomed()
        self.sampling.forget_clock()
        if master_messages.warmth_unknown(warm=self.warm, said=self.said_warm, cold_reason=""):
            self.report(wire.Warmed())
        if killed_for:
            self.workers.kill()

    def _assigned(self, assignment: wire.WorldAssignment, own_round: int) -> None:
        if assignment.mode is wire.AssignmentMode.RECONFIGURE:
            self.job.checks.roster_told(self, assignment)
            self.rosters.append(assignment)
            return
        newest, size = self.accepted.round, assignment.local_world_size
        if master_messages.why_not_started(own_round, newest, size, self.local):
            return
        self.statements.forget_before(self.accepted.round - 1)
        self.used = None
        if self.waiting is not None and self.waiting.store_id == assignment.store_id:
            self.used, self.waiting = self.waiting, None
        self.job.checks.started(self, self.accepted.round, assignment)
        self.workers.start(self.accepted.round, assignment)
        if assignment.store_id and self.used is None:
            self.workers.store_lost(assignment.store_id)

    def _stopped(self, order: wire.StopRound, number: int) -> None:
        newest, alive = self.accepted.round, self.workers.alive
        if not master_messages.why_not_stopped(newest, number, alive=alive):
            self.workers.stop(order.grace_seconds)
        self._answer_when_dead(wire.CommandDone(command_id=order.command_id, ok=True))

    def _answer_when_dead(self, answer: wire.CommandDone) -> None:
        self.due.append(answer)
        if not self.workers.alive:
            self.workers_dead()

    def begun(self, current: LocalRound) -> None:
        """The processes of a round exist: they ask what to start from, or wait for a roster."""
        self.keeper.ask(current)
        if current.assignment.replica and self.follows_rosters:
            self.report(wire.ReplicaReady(replica=current.assignment.replica), current.number)

    def workers_dead(self) -> None:
        """Nothing lives here: answers that waited for it go out, a lease is taken again."""
        self.lease_held = True
        due, self.due = self.due, []
        for answer in due:
            self.done[answer.command_id] = answer
            self.report(answer)
        if self.ending is not None and not self.workers.alive:
            self.later(0.01, self._gone, self.ending)

    def _prepare(self, order: wire.PrepareStore, _: int) -> None:
        if self.waiting is not None and self.waiting.store_id == order.store_id:
            self.report(self.waiting)
            return
        self.later(self.luck.uniform(0.005, 0.03), self._store_ready, order.store_id)

    def _store_ready(self, store_id: str) -> None:
        if self.workers.held:
            self.owed_store = store_id
            return
        if self.luck.random() < self.job.store_failures:
            self.report(wire.StorePrepared(store_id=store_id, error="no port"))
            return
        self.waiting = wire.StorePrepared(
            store_id=store_id, host=f"10.0.0.{self.rank}", port=self.luck.randrange(1024, 65000)
        )
        self.report(self.waiting)

    def _dump(self, order: wire.DumpStacks, _: int) -> None:
        stacks = tuple(wire.RankStack(local_rank=rank, text="stack") for rank in range(self.local))
        self.report(wire.CommandDone(command_id=order.command_id, ok=True, stacks=stacks))

    def _leave(self, order: wire.Leave, _: int) -> None:
        self._answer_when_dead(wire.CommandDone(command_id=order.command_id, ok=True))
        self.end(order.outcome, order.grace_seconds)

    def end(self, outcome: wire.LeaveOutcome, grace: float) -> None:
        """Workers first, then itself."""
        if self.ending is not None:
            return
        self.ending = outcome
        self.workers.stop(grace)
        if not self.workers.alive:
            self.later(0.01, self._gone, outcome)

    def _gone(self, outcome: wire.LeaveOutcome) -> None:
        """The process ends in order."""
        if not self.alive:
            return
        self.report(wire.Goodbye(reason="ends", signalled=bool(self.signals)))
        signal_number = self.signals[0] if self.signals else None
        self.job.ended(self, exit_codes.exit_code(outcome, signal_number))

    def _keep_digest(self, digest: wire.StateDigest, _: int) -> None:
        if master_messages.newer_digest(self.digest, digest):
            self.digest = digest

    def _interval(self, order: wire.HeartbeatInterval, _: int) -> None:
        self.beat_seconds = order.heartbeat_seconds

    def _set_policies(self, order: wire.SetPolicies, _: int) -> None:
        rules, health = order.failure_rules, order.health
        self.welcome = dataclasses.replace(self.welcome, failure_rules=rules, health=health)

    def _warmed(self) -> None:
        self.warm = True
        self.report(wire.Warmed(seconds=0.5))

    @property
    def able(self) -> bool:
        """It lives, runs, and was not told to end."""
        return self.alive and not self.frozen and self.ending is None

    def zygote_lost(self) -> None:
        """The zygote is gone with its workers and stores; another one follows.

        One that was never ready ends the agent.
        """
        if self.workers.held:
            return
        if not self.warm:
            self.give_up("the zygote ended before it was ready")
            return
        self.warm = False
        self.workers.zygote_lost()
        for gone in (self.waiting, self.used):
            if gone is not None:
                self.report(wire.StorePrepared(store_id=gone.store_id, error="the zygote ended"))
                self.workers.store_lost(gone.store_id)
        self.waiting = self.used = None
        self.later(self.luck.uniform(0.5, 12.0), self._zygote_back)

    def _zygote_back(self) -> None:
        self.workers.release()
        self._warmed()
        owed, self.owed_store = self.owed_store, ""
        if owed:
            self._store_ready(owed)

    def give_up(self, reason: str) -> None:
        """The agent cannot go on, and says so."""
        self.workers.vanish()
        self.report(wire.Goodbye(reason=reason, failed=True))
        self.job.ended(self, 1)

    # --------------------------------------------------------------------------- without a master

    def _look(self) -> None:
        """Every second: is there a master, and do peers know better."""
        if not self.connected and self.workers.alive:
            current = self.workers.current
            peers = current.assignment.peers if current is not None else ()
            answers = self.job.ask_peers(self, [int(peer.address) for peer in peers])
            barrier = liveness.peers_barrier(self.accepted, answers)
            if liveness.why_masterless_end(
                silent_seconds=self.now - self.no_master_since,
                limit_seconds=self.welcome.masterless_limit_seconds,
                accepted=self.accepted,
                answers=answers,
            ):
                accounts = self.job.checks.accounts
                accounts.muddle()
                accounts.hurt(self.rank, Hurt.FAILURE, 0.0)  # its master was away for too long
                self.workers.kill()
            elif barrier is not None and current and barrier.barrier_id > current.armed:
                self.workers.set_barrier(barrier, self.accepted.round)
        self.later(1.0, self._look)

    def known(self) -> wire.GetRoundResponse:
        """Return the answer to a peer that has no master."""
        current = self.workers.current
        own = current is not None and current.number == self.accepted.round
        return wire.GetRoundResponse(
            fence=self.accepted,
            has_master=self.connected,
            barrier=current.barrier if current is not None and own else None,
        )

    def on_signal(self, number: int, grace: float) -> None:
        """A signal that ends the agent came."""
        earlier = len(self.signals)
        self.signals.append(number)
        plan = exit_codes.on_signal(
            earlier=earlier,
            managed=True,
            connected=self.connected,
            grace_seconds=grace,
            stop_seconds=STOP_SECONDS,
        )
        if plan.step is SignalStep.NOTICE:
            self.report(wire.Goodbye(reason=f"signal {number}", terminated=True))
            self.later(
                plan.leave_wait_seconds,
                self.end,
                wire.LeaveOutcome.UNSPECIFIED,
                plan.stop_grace_seconds,
            )
            return
        self.end(wire.LeaveOutcome.UNSPECIFIED, plan.stop_grace_seconds)


_ORDERS: dict[type | None, Callable[[Agent, Any, int], None]] = {
    wire.Welcome: Agent._welcomed,
    wire.ClockReply: lambda agent, reply, _: agent.sampling.on_clock(reply),
    wire.CollectEvidence: lambda agent, order, number: agent.sampling.on_collect(order, number),
    wire.CheckNode: Agent._check,
    wire.WorldAssignment: Agent._assigned,
    wire.StopRound: Agent._stopped,
    wire.PrepareStore: Agent._prepare,
    wire.SetBarrier: lambda agent, order, number: agent.workers.set_barrier(order, number),
    wire.SetSchedule: lambda agent, order, number: agent.workers.schedule(order, number),
    wire.DumpStacks: Agent._dump,
    wire.Leave: Agent._leave,
    wire.StateDigest: Agent._keep_digest,
    wire.HeartbeatInterval: Agent._interval,
    wire.SetPolicies: Agent._set_policies,
    wire.CommitGrant: lambda agent, order, number: agent.keeper.on_grant(order, number),
    wire.CommitAnnounced: lambda agent, news, number: agent.keeper.on_announced(news, number),
    wire.ReleaseCheckpoints: lambda agent, order, number: agent.keeper.on_release(order, number),
    wire.FlushToStorage: lambda agent, order, number: agent.keeper.on_save_held(order, number),
    wire.RestorePlan: lambda agent, origin, number: agent.keeper.on_origin(origin, number),
    wire.ShardsLeased: lambda *_: None,  # its ranks read no shards; a test looks at what was sent
}
