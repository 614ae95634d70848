"""The agent: owns this node's state, receives from master, zygote and signals, and acts.

Every message of the master is checked against the fence and judged by a pure function of
`policies`; every event of the zygote is given to the parts that it concerns. One of the owned parts
(runner, stores, page watch, shutdown) carries out what follows. One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast import loop_errors
from holdfast.page_layout import Header
from holdfast_agent import zygote
from holdfast_agent.errors import AgentRefusedError
from holdfast_agent.health.check_orders import CheckOrders, CheckPlace
from holdfast_agent.health.node_check.process import Interrupt
from holdfast_agent.health.sampler import Sampler
from holdfast_agent.master_link.commands import Commands
from holdfast_agent.master_link.hello import Memory, Self, hello
from holdfast_agent.master_link.masterless import Solitude
from holdfast_agent.master_link.session import MasterDial, MasterSession
from holdfast_agent.notices.sources import sources
from holdfast_agent.notices.watch import NoticeWatch
from holdfast_agent.policies import master_messages
from holdfast_agent.policies.goodput import SecondsByClass, class_of
from holdfast_agent.policies.master_messages import Accepted, FenceVerdict, RoundOrder, Statements
from holdfast_agent.shutdown import End, Shutdown
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.death_watch import Deaths
from holdfast_agent.workers.lease import Lease
from holdfast_agent.workers.page_watch import PageWatch
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.store_processes import NodeStores
from holdfast_agent.workers.zygote_restarts import ZygoteRestarts
from holdfast_wire.messages import (
    AssignmentMode,
    CheckNode,
    ClockReply,
    CollectEvidence,
    DumpStacks,
    Fence,
    Goodbye,
    HeartbeatInterval,
    Leave,
    PrepareStore,
    SessionRequest,
    SessionResponse,
    SetBarrier,
    SetSchedule,
    StateDigest,
    StopRound,
    Warmed,
    Welcome,
    WorldAssignment,
)

log = logging.getLogger(__name__)

STORE_LINGER_SECONDS = 1.0
"""Seconds that the store of the round before lives on. A node that does not know of the new round
yet would lose its store at once, and its exceptions would look like the cause."""
CLOSE_SECONDS = 1.0
"""Seconds for the last messages when the agent ends."""
FIRST_LIMITS = Welcome(masterless_limit_seconds=600.0, lease_seconds=4.0)
"""Limits that hold until a master sends its own."""


class Agent:
    """One node's agent. `run` returns the reason and the exit code of its end."""

    def __init__(
        self,
        tools: AgentContext,
        own: Self,
        dial: MasterDial,
        jitter: random.Random,
        measuring: Interrupt,
    ) -> None:
        """Connect the parts; nothing runs yet. Needs a running event loop.

        `measuring` ends a check of this node, and names its child processes.
        """
        self._tools, self._own = tools, own
        self.accepted = Accepted()
        self.welcome = FIRST_LIMITS
        self.warm = self._said_warm = self._welcomed = False
        self.dropped: collections.Counter[FenceVerdict] = collections.Counter()
        self.statements = Statements()
        self.lease = Lease(tools.page, self._on_stood_still, self._pause)
        self.runner = RoundRunner(tools, self.report, self.lease.resume)
        self.stores = NodeStores(tools.control, own.address, self.report, self.runner.on_store_lost)
        node_rank = tools.settings.node_rank
        self.sampler = Sampler(self.runner, self.report, self._pause, self._spread, tools.page)
        self.watch = PageWatch(
            tools.page, self.runner, self.report, node_rank, guess=self.sampler.guess
        )
        self.deaths = Deaths(tools.page, lambda: tools.process.pid, self.runner)
        self.commands = Commands(self.runner, self.report)
        self.checks = CheckOrders(
            CheckPlace(own.address, str(tools.settings.tls_dir), tools.settings.job_uid),
            measuring,
            self.report,
            lambda: self.runner.alive,
        )
        self.ending = Shutdown(
            self.runner,
            managed=not own.unmanaged,
            grace_seconds=tools.settings.grace_seconds,
            stop_seconds=tools.settings.launch.shutdown_seconds,
        )
        self.notices = NoticeWatch(
            sources(tools.settings.notices), self.report, self.statements.withdraw
        )
        self.session = MasterSession(dial, self, jitter)
        self.solitude = Solitude(self.runner, dial, node_rank, self._on_barrier)
        self._alone = asyncio.Event()
        self.restarts = ZygoteRestarts(
            tools,
            self.runner,
            self.stores,
            reaped=self.lease.resume,
            restarted=lambda: self.zygote.listen(tools.process),
            ending=lambda: self.ending.begun,
            fail=self.ending.fail,
        )
        self.zygote = ZygoteEvents(self)
        """`_welcomed`: a master has welcomed this agent before."""
        self._stated_round = 0
        """Round whose start had been reported when the newest hello was made; 0: none."""
        self._digest: StateDigest | None = None
        self._ledger = SecondsByClass()
        self._accounted_at = time.monotonic()
        self._handlers: Mapping[type[Any], Callable[[Any, Any], None]] = {
            Welcome: self._on_welcome,
            WorldAssignment: self._on_assignment,
            StopRound: self._on_stop,
            PrepareStore: lambda order, _: self.stores.prepare(order.store_id),
            SetBarrier: self._on_barrier,
            SetSchedule: self._on_schedule,
            CollectEvidence: self.commands.collect_evidence,
            CheckNode: lambda order, _: self.checks.on_order(order),
            DumpStacks: lambda order, _: self.commands.dump_stacks(order),
            Leave: lambda order, _: self._on_leave(order),
            ClockReply: lambda reply, _: self.sampler.on_clock(reply),
            StateDigest: lambda digest, _: self._on_digest(digest),
            HeartbeatInterval: lambda order, _: self._set_interval(order.heartbeat_seconds),
            **dict.fromkeys(master_messages.ABOUT_CHECKPOINTS, self._tools.arenas.hear),
        }

    # --- the life of the agent ------------------------------------------------------------------

    async def run(self) -> End:
        """Work until the master, a signal or a fault ends the agent."""
        self.lease.begin()
        self.zygote.listen(self._tools.process)
        self.deaths.start()
        self.notices.start()
        works = (
            self.lease.run(),
            self.watch.beat(),
            self.watch.poll(),
            self.sampler.run(),
            self.runner.rosters.run(),
            self.runner.sync_choices.run(),
            self._every_second(),
            self.session.run(),
        )
        tasks = [self._supervised(work) for work in works]
        end = await self.ending.wait()
        await asyncio.to_thread(self.deaths.stop)
        await asyncio.to_thread(self.notices.stop)
        await self.commands.close()
        await self.checks.close()
        await self.restarts.close()
        signalled = self.ending.signalled is not None and not end.own_fault
        self.report(Goodbye(reason=end.reason, failed=end.own_fault, signalled=signalled))
        await self.session.close(CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return end

    def report(self, message: Any, round_number: int | None = None) -> None:
        """Send a message; `round_number`: the round that it is about, if it is about workers."""
        self.statements.note(message, round_number or 0, time.monotonic())
        request = SessionRequest(fence=self.accepted.fence(round_number), message=message)
        self.session.send(request)

    def accepted_fence(self, round_number: int) -> Fence:
        """Return the fence for a message about a round."""
        return self.accepted.fence(round_number)

    def on_signal(self, number: int) -> None:
        """Act on a signal that ends the agent."""
        if self.ending.on_signal(number, connected=self.session.connected):
            self.report(Goodbye(reason=f"signal {number}", terminated=True))

    def become_warm(self, seconds: float) -> None:
        """Note that the zygote is ready, or cannot fork any more."""
        self.warm = True
        self.report(Warmed(seconds=seconds, cold_reason=self.runner.cold_reason))

    def on_zygote_lost(self, event: zygote.ZygoteExited) -> None:
        """Note that the zygote is gone, and its workers with it."""
        self.warm = False
        self.restarts.on_exited(event)

    # --- the stream -----------------------------------------------------------------------------

    def hello(self) -> SessionRequest:
        """Return the first message of a new stream."""
        self._account()
        self._said_warm = self.warm
        current = self.runner.current
        self._stated_round = current.number if current and current.started_reported else 0
        memory = Memory(
            warm=self.warm,
            round=self.accepted.round,
            done_command_ids=self.commands.done_ids(),
            goodput=self._ledger.entries(),
            digest=self._digest,
            store=self.stores.prepared,
            roster=self.runner.rosters.newest(self.accepted.round),
        )
        message = hello(self._tools.settings, self._own, memory, current, self._tools.page)
        return SessionRequest(fence=self.accepted.fence(), message=message)

    def on_response(self, response: SessionResponse) -> bool:
        """Act on a message of the master, if its fence allows."""
        message = response.message
        heard = master_messages.hear(self.accepted, response)
        if heard.verdict is not FenceVerdict.ACCEPT:
            self.dropped[heard.verdict] += 1
            log.warning("%s of the master dropped: %s", type(message).__name__, heard.verdict.value)
            return False
        self.accepted = heard.accepted
        handler = self._handlers.get(type(message))
        if handler is None:
            return True
        if self.ending.begun and not master_messages.concerns_ending(message):
            return True
        handler(message, heard.round)
        return True

    def on_down(self, reason: str) -> None:
        """Note that the stream ended: workers train on."""
        self.solitude.begin()
        self._alone.set()
        if not self.ending.begun:
            log.warning("lost the master: %s", reason)

    # --- orders ---------------------------------------------------------------------------------

    def _on_welcome(self, welcome: Welcome, _: int) -> None:
        again = logging.WARNING if self._welcomed else logging.INFO
        self._welcomed = True
        log.log(again, "welcomed by the master of epoch %d", self.accepted.epoch)
        self.welcome = welcome
        self._set_interval(welcome.heartbeat_seconds)
        self.sampler.welcomed(welcome.health)
        self.checks.welcomed(welcome.health, warm=self.warm)
        self.statements.renumber_rules(self.runner.exits.rules, welcome.failure_rules)
        self.runner.compare(welcome.failure_rules)
        if welcome.lease_seconds > 0:
            self._tools.page.words[Header.LEASE_LIMIT_NS] = int(welcome.lease_seconds * 1e9)
        verdict = master_messages.on_welcome(
            self.accepted.round, welcome.round, alive=self.runner.alive
        )
        # A start that came after the hello is news, also where a rank has ended since.
        ending = self.runner.ending_round if self.runner.ending_round == self._stated_round else 0
        for request in self.statements.again(self.accepted, time.monotonic(), ending=ending):
            self.session.send(request)
        cold_reason = self.runner.cold_reason
        if master_messages.warmth_unknown(
            warm=self.warm, said=self._said_warm, cold_reason=cold_reason
        ):
            self.report(Warmed(cold_reason=cold_reason))
        if verdict.order is RoundOrder.KILL:
            self.runner.kill(verdict.reason)
        self._tools.arenas.restate()

    def _on_assignment(self, assignment: WorldAssignment, own_round: int) -> None:
        if assignment.mode is AssignmentMode.RECONFIGURE:
            self._on_roster(assignment, own_round)
            return
        verdict = master_messages.on_assignment(
            own_round,
            self.accepted.round,
            assignment.local_world_size,
            self._tools.settings.launch.local_world_size,
        )
        if verdict.order is not RoundOrder.START:
            log.warning("assignment ignored: %s", verdict.reason)
            return
        log.log(
            logging.WARNING if own_round else logging.INFO,  # a later round follows from an event
            "round %d: ranks %d to %d of %d (%s)",
            self.accepted.round,
            assignment.base_rank,
            assignment.base_rank + assignment.local_world_size - 1,
            assignment.world_size,
            assignment.reason,
        )
        self.checks.cancel()
        self.statements.forget_before(self.accepted.round - 1)
        self._tools.arenas.begin_round(self.accepted.round, assignment.world_hash)
        has_store = self.stores.use(assignment.store_id, STORE_LINGER_SECONDS)
        self.runner.start(self.accepted.round, assignment)
        if not has_store:
            self.runner.on_store_lost(assignment.store_id, "before the round was assigned")

    def _on_roster(self, assignment: WorldAssignment, number: int) -> None:
        """Hand the newest roster to the ranks of a round; none of them ends."""
        problem = self.runner.rosters.take(assignment, number)
        if problem:
            log.warning("roster ignored: %s", problem)
        elif assignment.roster is not None:
            epoch = assignment.roster.epoch
            log.info("outer roster of epoch %d: %s", epoch, assignment.reason)

    def _on_stop(self, order: StopRound, number: int) -> None:
        verdict = master_messages.on_stop(self.accepted.round, number, alive=self.runner.alive)
        if verdict.order is RoundOrder.KILL:
            self.runner.stop(order.grace_seconds, order.reason)
        self.commands.when_dead(order.command_id, verdict.reason)

    def _on_barrier(self, barrier: SetBarrier, number: int) -> None:
        problem = self.watch.set_barrier(barrier, number)
        if problem:
            log.warning("arm %d at step %d: %s", barrier.barrier_id, barrier.step, problem)

    def _on_schedule(self, order: SetSchedule, number: int) -> None:
        problem = self.watch.schedule(order, number)
        if problem:
            log.warning("schedule %d from step %d: %s", order.schedule_id, order.step, problem)

    def _on_leave(self, order: Leave) -> None:
        log.info("the master says leave: %s", order.reason)
        self.commands.when_dead(order.command_id, order.reason)
        self.ending.leave(order)

    def _on_digest(self, digest: StateDigest) -> None:
        if master_messages.newer_digest(self._digest, digest):
            self._digest = digest

    def _set_interval(self, seconds: float) -> None:
        if seconds > 0:
            self.watch.interval_seconds = self._tools.arenas.interval_seconds = seconds

    # --- time -----------------------------------------------------------------------------------

    def _on_stood_still(self, age_seconds: float) -> bool:
        """Kill the workers: the lease ran out before this process could renew it."""
        return self.runner.stood_still(age_seconds)

    def _pause(self, period: float) -> float:
        return self.watch.pause(period)

    def _spread(self) -> float:
        return self.watch.spread()

    async def _every_second(self) -> None:
        while True:
            # At once when the master is lost: a barrier that it sent to others may be near.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(1.0)):
                    await self._alone.wait()
            self._alone.clear()
            self._account()
            if not self.ending.begun:
                self.restarts.look(time.monotonic())
            if not self.session.connected and self.runner.alive:
                limit = self.welcome.masterless_limit_seconds
                await self.solitude.look(self.accepted, limit, lambda: self.session.connected)

    def _account(self) -> None:
        now = time.monotonic()
        name = class_of(self.runner.phase, saving=self.watch.saving)
        self._ledger = self._ledger.add(name, now - self._accounted_at)
        self._accounted_at = now

    def _supervised(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part that never ends by itself; an error in it ends the agent."""

        async def guarded() -> None:
            try:
                await work
            except AgentRefusedError as error:
                self.ending.fail(f"the master refused this agent: {error}")
            except Exception as error:
                log.exception("a part of the agent failed (fault %d)", loop_errors.count(__name__))
                self.ending.fail(f"{type(error).__name__}: {error}")

        return asyncio.create_task(guarded())


class ZygoteEvents:
    """Reads the zygote's events inside the event loop, and gives each to the parts it concerns."""

    def __init__(self, agent: Agent) -> None:
        """Give the events to `agent`'s parts."""
        self._agent = agent
        self._process: zygote.Zygote | None = None
        self._descriptor = -1
        """Descriptor of the events; kept because the zygote closes its own at its end."""
        self._gone = asyncio.Event()
        self._is_ready = False
        """It may have processes: before, all commands wait for it."""
        self._handlers: Mapping[type[Any], Callable[[Any], None]] = {
            zygote.Ready: self._on_ready,
            zygote.ForkDisabled: self._on_fork_disabled,
            zygote.WorkerStarted: agent.runner.on_started,
            zygote.WorkerExitedEvent: agent.runner.on_exited,
            zygote.RoundDead: self._on_dead,
            zygote.StoreReady: agent.stores.on_ready,
            zygote.StoreExited: agent.stores.on_exited,
            zygote.LeaseExpired: self._on_lease_expired,
            zygote.Failure: agent.runner.on_failure,
            zygote.ZygoteExited: self._on_exited,
        }

    def listen(self, process: zygote.Zygote) -> None:
        """Begin to read the events of a started zygote."""
        self._gone.clear()
        self._is_ready = False
        self._process = process
        self._descriptor = process.fileno()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    async def close(self, process: zygote.Zygote, timeout_seconds: float) -> None:
        """End the zygote and wait for it; one that does not react (SIGSTOP) is killed.

        So is one that still imports: it reads no command and has no processes.
        """
        process.shutdown()
        if self._process is not None and not self._is_ready:
            os.kill(process.pid, signal.SIGKILL)
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._gone.wait()
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _read(self) -> None:
        if self._process is None:
            return
        events = self._process.receive()
        # Workers that see a stale lease kill themselves: with the event first, that is no failure.
        events.sort(key=lambda event: not isinstance(event, zygote.LeaseExpired))
        for event in events:
            self._handlers[type(event)](event)

    def _on_ready(self, event: zygote.Ready) -> None:
        self._is_ready = True
        if not event.fork_ok:
            log.warning("workers are started cold: %s", event.reason)
        self._agent.runner.cold_reason = event.reason
        self._agent.restarts.on_ready()
        log.info("ready for ranks: what they share took %.1f s to import", event.seconds)
        self._agent.become_warm(event.seconds)

    def _on_fork_disabled(self, event: zygote.ForkDisabled) -> None:
        log.warning("workers are started cold from now on: %s", event.reason)
        self._agent.runner.cold_reason = event.reason
        self._agent.become_warm(0.0)

    def _on_dead(self, event: zygote.RoundDead) -> None:
        self._agent.runner.on_dead(event.round)
        if not self._agent.runner.died.is_set():
            return
        self._agent.lease.resume()

    def _on_lease_expired(self, event: zygote.LeaseExpired) -> None:
        runner = self._agent.runner
        # The lease may have run out while nothing lived, and a round have been started since.
        if runner.current is not None and runner.current.number in event.rounds:
            runner.stood_still(event.age_s)
        if not runner.has_processes:
            self._agent.lease.resume()

    def _on_exited(self, event: zygote.ZygoteExited) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._process = None
        self._gone.set()
        self._agent.on_zygote_lost(event)
