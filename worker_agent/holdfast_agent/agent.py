"""The agent: owns this node's state, receives from master, zygote and signals, and acts.

A message of the master that its fence allows is judged by a pure function of `policies`; one of the
owned parts carries out what follows. One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast import loop_errors
from holdfast.page_layout import Header
from holdfast_agent.errors import AgentRefusedError
from holdfast_agent.health.check_orders import CheckOrders
from holdfast_agent.health.node_check.link import LinkSettings
from holdfast_agent.health.node_check.process import Interrupt
from holdfast_agent.health.sampler import Sampler
from holdfast_agent.master_link.commands import Commands
from holdfast_agent.master_link.peers import MasterlessWatch
from holdfast_agent.master_link.session import MasterSession
from holdfast_agent.notices.sources import sources
from holdfast_agent.notices.watch import NoticeWatch
from holdfast_agent.policies import master_messages, rank_progress
from holdfast_agent.policies.round_phases import class_of, is_shown, ledger
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.page_watch import DeathWatch, HeartbeatClock, Lease, PageWatch
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.shutdown import End, Shutdown
from holdfast_agent.workers.store_processes import NodeStores
from holdfast_agent.workers.zygote_watch import ZygoteWatch
from holdfast_wire import messages as wire

log = logging.getLogger(__name__)

STORE_LINGER_SECONDS = 1.0
"""Seconds that the store of the round before lives on. A node that does not know of the new round
yet would lose its store at once, and its exceptions would look like the cause."""
CLOSE_SECONDS = 1.0
"""Seconds for the last messages when the agent ends."""
FIRST_LIMITS = wire.Welcome(masterless_limit_seconds=600.0, lease_seconds=4.0)
"""Limits that hold until a master sends its own."""


class AgentParts:
    """Parts of an agent, each made from those before it."""

    def __init__(
        self, tools: AgentContext, session: MasterSession, address: str, measuring: Interrupt
    ) -> None:
        """Connect the parts; none of them runs yet.

        address: IP at which other nodes reach this one.
        measuring: Ends a measurement of this node.
        """
        settings, page, report = tools.settings, tools.page, session.report
        link = LinkSettings(tls_dir=str(settings.tls_dir), job_uid=settings.job_uid)
        self.session = session
        self.clock, self.lease = clock, lease = HeartbeatClock(settings.node_rank), Lease(page)
        self.runner = runner = RoundRunner(tools, report, lease.resume)
        self.stores = NodeStores(tools.process, address, report, runner.on_store_lost)
        self.shutdown = Shutdown(runner, settings)
        self.zygote = ZygoteWatch(tools, runner, self.stores, lease, report, self.shutdown)
        self.sampler = Sampler(runner, report, clock.pause, clock.spread, page)
        self.watch = PageWatch(page, runner, report, clock, self.sampler.guess)
        self.deaths = DeathWatch(page, lambda: tools.process.pid, runner)
        self.commands = Commands(runner, report)
        self.checks = CheckOrders(address, link, measuring, report, lambda: runner.alive)
        withdraw = session.statements.withdraw
        self.notices = NoticeWatch(sources(settings.notices), report, withdraw)
        self.masterless = MasterlessWatch(self.watch, runner, session, settings)


class Agent:
    """One node's agent. `run` returns the reason and the exit code of its end."""

    def __init__(self, tools: AgentContext, own: wire.Hello, parts: AgentParts) -> None:
        """Own the parts; nothing runs yet. Needs a running event loop.

        own: The hello's part that never changes.
        """
        self._tools, self._own, self.parts = tools, own, parts
        self.welcome = FIRST_LIMITS
        self._said_warm = False
        """The newest hello said that the zygote is ready."""
        self._welcomed = False
        """A master has welcomed this agent before."""
        self._alone = asyncio.Event()
        self._stated_round = 0
        """Round whose start had been reported when the newest hello was made; 0: none."""
        self._digest: wire.StateDigest | None = None
        self._seconds = defaultdict[str, float](float)
        """Seconds by class since this agent started."""
        self._accounted_at = time.monotonic()
        self._handlers: Mapping[type[Any], Callable[[Any, Any], None]] = {
            wire.Welcome: self._on_welcome,
            wire.SetPolicies: lambda order, _: self._set_policies(order),
            wire.WorldAssignment: self._on_assignment,
            wire.StopRound: self._on_stop,
            wire.PrepareStore: lambda order, _: parts.stores.prepare(order.store_id),
            wire.SetBarrier: parts.watch.set_barrier,
            wire.SetSchedule: parts.watch.schedule,
            wire.CollectEvidence: parts.commands.collect_evidence,
            wire.CheckNode: lambda order, _: parts.checks.on_order(order),
            wire.DumpStacks: lambda order, _: parts.commands.dump_stacks(order),
            wire.Leave: lambda order, _: self._on_leave(order),
            wire.ClockReply: lambda reply, _: parts.sampler.on_clock(reply),
            wire.StateDigest: lambda digest, _: self._on_digest(digest),
            wire.ShardsLeased: parts.runner.shards.on_leased,
            wire.HeartbeatInterval: lambda order, _: self._set_interval(order.heartbeat_seconds),
            **dict.fromkeys(master_messages.ABOUT_CHECKPOINTS, tools.arenas.receive),
        }

    # --- the life of the agent ------------------------------------------------------------------

    async def run(self) -> End:
        """Work until the master, a signal or a fault ends the agent."""
        parts, shutdown = self.parts, self.parts.shutdown
        parts.lease.resume()
        parts.zygote.listen()
        parts.deaths.start()
        parts.notices.start()
        works = (
            parts.lease.run(parts.runner.stood_still, parts.clock.pause),
            parts.watch.beat(),
            parts.watch.poll(),
            parts.sampler.run(),
            parts.runner.rosters.run(),
            parts.runner.sync_choices.run(),
            self._every_second(),
            parts.session.run(self),
        )
        tasks = [self._supervised(work) for work in works]
        end = await shutdown.wait()
        await asyncio.to_thread(parts.deaths.stop)
        await asyncio.to_thread(parts.notices.stop)
        await parts.commands.close()
        await parts.checks.close()
        await parts.zygote.stop_restarts()
        signalled = shutdown.signalled is not None and not end.own_fault
        goodbye = wire.Goodbye(reason=end.reason, failed=end.own_fault, signalled=signalled)
        parts.session.report(goodbye)
        await parts.session.close(CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return end

    def on_signal(self, number: int) -> None:
        """Act on a signal that ends the agent."""
        session = self.parts.session
        if self.parts.shutdown.on_signal(number, connected=session.connected):
            session.report(wire.Goodbye(reason=f"signal {number}", terminated=True))

    # --- the stream -----------------------------------------------------------------------------

    def hello(self) -> wire.Hello:
        """Return the first message of a new stream: all that a master without memory must know."""
        parts = self.parts
        self._account()
        self._said_warm = parts.zygote.warm
        current, number = parts.runner.current, parts.session.accepted.round
        self._stated_round = current.number if current and current.started_reported else 0
        shown = self._shown_round()
        seen = shown.ranks(self._tools.page) if shown else {}
        roster = parts.runner.rosters.newest(number)
        return dataclasses.replace(
            self._own,
            warm=parts.zygote.warm,
            workers=current.running() if current is not None else (),
            round=number,
            step=rank_progress.common_step(seen, shown.number) if shown else 0,
            done_command_ids=parts.commands.done_ids(),
            goodput=ledger(self._seconds),
            digest=self._digest,
            store=parts.stores.prepared,
            assignment=dataclasses.replace(shown.assignment, roster=roster) if shown else None,
            ended_at_barrier=rank_progress.ended_at_barrier(seen),
            barrier_id=shown.stop_barrier.barrier_id if shown and shown.stop_barrier else 0,
        )

    def _shown_round(self) -> Round | None:
        """Return the round that a hello names; none while a newer one is being prepared."""
        current = self.parts.runner.current
        if current is None or current.number != self.parts.session.accepted.round:
            return None
        return current if is_shown(current.orders) else None

    def on_message(self, message: Any, round_number: int) -> None:
        """Act on a message of the master that its fence allows."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return
        if not self.parts.shutdown.started or master_messages.concerns_ending(message):
            handler(message, round_number)

    def on_down(self, reason: str) -> None:
        """Note that the stream ended: workers train on."""
        self.parts.masterless.begin()
        self._alone.set()
        if not self.parts.shutdown.started:
            log.warning("lost the master: %s", reason)

    # --- orders ---------------------------------------------------------------------------------

    def _on_welcome(self, welcome: wire.Welcome, _: int) -> None:
        parts, runner, session = self.parts, self.parts.runner, self.parts.session
        again = logging.WARNING if self._welcomed else logging.INFO
        self._welcomed = True
        log.log(again, "welcomed by the master of epoch %d", session.accepted.epoch)
        self.welcome = welcome
        self._set_interval(welcome.heartbeat_seconds)
        parts.sampler.welcomed(welcome.health)
        parts.checks.welcomed(welcome.health, warm=parts.zygote.warm)
        self._set_rules(welcome.failure_rules)
        if welcome.lease_seconds > 0:
            self._tools.page.words[Header.LEASE_LIMIT_NS] = int(welcome.lease_seconds * 1e9)
        newest, alive = session.accepted.round, runner.alive
        killed_for = master_messages.why_killed(newest, welcome.round, alive=alive)
        # A start that came after the hello is news, also where a rank has ended since.
        ending = runner.ending_round if runner.ending_round == self._stated_round else 0
        session.repeat(ending=ending)
        cold_reason = runner.cold_reason
        if master_messages.warmth_unknown(
            warm=parts.zygote.warm, said=self._said_warm, cold_reason=cold_reason
        ):
            session.report(wire.Warmed(cold_reason=cold_reason))
        if killed_for:
            runner.kill(killed_for)
        self._tools.arenas.restate()
        runner.shards.restate()

    def _set_policies(self, order: wire.SetPolicies) -> None:
        """Follow an edit of the job's spec."""
        log.info("the job has other rules of exits, or another spec.health")
        self.parts.sampler.follow(order.health)
        self._set_rules(order.failure_rules)

    def _set_rules(self, rules: tuple[wire.FailureRule, ...]) -> None:
        exits = self.parts.runner.exits
        self.parts.session.statements.renumber_rules(exits.rules, rules)
        exits.rules = rules

    def _on_assignment(self, assignment: wire.WorldAssignment, own_round: int) -> None:
        if assignment.mode is wire.AssignmentMode.RECONFIGURE:
            self._on_roster(assignment, own_round)
            return
        parts, number = self.parts, self.parts.session.accepted.round
        offered = self._tools.settings.launch.local_world_size
        size = assignment.local_world_size
        ignored = master_messages.why_not_started(own_round, number, size, offered)
        if ignored:
            log.warning("assignment ignored: %s", ignored)
            return
        log.log(
            logging.WARNING if own_round else logging.INFO,  # a later round follows from an event
            "round %d: ranks %d to %d of %d (%s)",
            number,
            assignment.base_rank,
            assignment.base_rank + size - 1,
            assignment.world_size,
            assignment.reason,
        )
        parts.checks.cancel()
        parts.session.statements.forget_before(number - 1)
        self._tools.arenas.begin_round(number, assignment.world_hash)
        has_store = parts.stores.use(assignment.store_id, STORE_LINGER_SECONDS)
        parts.runner.start(number, assignment)
        if not has_store:
            parts.runner.on_store_lost(assignment.store_id, "before the round was assigned")

    def _on_roster(self, assignment: wire.WorldAssignment, number: int) -> None:
        """Hand the newest roster to the ranks of a round; none of them ends."""
        problem = self.parts.runner.rosters.take(assignment, number)
        if problem:
            log.warning("roster ignored: %s", problem)
        elif assignment.roster is not None:
            epoch = assignment.roster.epoch
            log.info("outer roster of epoch %d: %s", epoch, assignment.reason)

    def _on_stop(self, order: wire.StopRound, number: int) -> None:
        runner, newest = self.parts.runner, self.parts.session.accepted.round
        ignored = master_messages.why_not_stopped(newest, number, alive=runner.alive)
        if not ignored:
            runner.stop(order.grace_seconds, order.reason)
        text = ignored or f"the master stops round {newest}"
        self.parts.commands.when_dead(order.command_id, text)

    def _on_leave(self, order: wire.Leave) -> None:
        log.info("the master says leave: %s", order.reason)
        self.parts.commands.when_dead(order.command_id, order.reason)
        self.parts.shutdown.leave(order)

    def _on_digest(self, digest: wire.StateDigest) -> None:
        if master_messages.newer_digest(self._digest, digest):
            self._digest = digest

    def _set_interval(self, seconds: float) -> None:
        if seconds > 0:
            self.parts.clock.interval_seconds = seconds
            self._tools.arenas.interval_seconds = seconds

    # --- time -----------------------------------------------------------------------------------

    async def _every_second(self) -> None:
        parts = self.parts
        while True:
            # At once when the master is lost: a barrier that it sent to others may be near.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(parts.clock.pause(1.0)):
                    await self._alone.wait()
            self._alone.clear()
            self._account()
            if not parts.shutdown.started:
                parts.zygote.look(time.monotonic())
            if not parts.session.connected and parts.runner.alive:
                await parts.masterless.look(self.welcome.masterless_limit_seconds)

    def _account(self) -> None:
        now = time.monotonic()
        name = class_of(self.parts.runner.phase, saving=self.parts.watch.saving)
        self._seconds[name] += now - self._accounted_at
        self._accounted_at = now

    def _supervised(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part that never ends by itself; an error in it ends the agent."""

        async def guarded() -> None:
            try:
                await work
            except AgentRefusedError as error:
                self.parts.shutdown.fail(f"the master refused this agent: {error}")
            except Exception as error:
                log.exception("a part of the agent failed (fault %d)", loop_errors.count(__name__))
                self.parts.shutdown.fail(f"{type(error).__name__}: {error}")

        return asyncio.create_task(guarded())
