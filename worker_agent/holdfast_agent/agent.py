"""The agent: owns what this node knows, hears master, zygote and signals, and acts.

Every message is checked against the fence, judged by a pure function of `decide`, and carried out
by one of the owned parts (runner, stores, watch, ending). One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast import faults
from holdfast.layout import Header
from holdfast_agent import zygote
from holdfast_agent.commands import Commands
from holdfast_agent.deaths import Deaths
from holdfast_agent.decide import hearing, orders
from holdfast_agent.decide.fence import Accepted, FenceVerdict
from holdfast_agent.decide.goodput import Ledger, class_of
from holdfast_agent.decide.statements import Statements
from holdfast_agent.ending import End, Ending
from holdfast_agent.errors import RefusedError
from holdfast_agent.greeting import Memory, Self, hello
from holdfast_agent.hearing import ZygoteEvents
from holdfast_agent.lease import Lease
from holdfast_agent.runner import RoundRunner
from holdfast_agent.session import Dial, Session
from holdfast_agent.solitude import Solitude
from holdfast_agent.stores import Stores
from holdfast_agent.tools import Tools
from holdfast_agent.watch import Watch
from holdfast_wire.messages import (
    Arm,
    DumpStacks,
    Fence,
    Goodbye,
    HeartbeatInterval,
    Leave,
    PrepareStore,
    SessionRequest,
    SessionResponse,
    SetSchedule,
    StateDigest,
    StopRound,
    Warmed,
    Welcome,
    WorldAssignment,
)

log = logging.getLogger(__name__)

STORE_LINGER_SECONDS = 1.0
"""The store of the round before goes this much later: nodes that have not heard of the new round
yet would see their store vanish, and their own exceptions would look like the cause."""
CLOSE_SECONDS = 1.0
"""For the last messages when the agent ends."""
FIRST_LIMITS = Welcome(masterless_limit_seconds=600.0, lease_seconds=4.0)
"""What holds until a master says otherwise."""


class Agent:
    """One node's agent. `run` returns why and with which exit code it ended."""

    def __init__(self, tools: Tools, own: Self, dial: Dial, jitter: random.Random) -> None:
        """Wire the parts together; nothing runs yet. Needs a running event loop."""
        launch = tools.settings.launch
        self._tools, self._own = tools, own
        self.accepted = Accepted()
        self.welcome = FIRST_LIMITS
        self.warm = self._said_warm = False
        self.dropped: collections.Counter[FenceVerdict] = collections.Counter()
        self.statements = Statements()
        self.runner = RoundRunner(tools, self.report)
        self.stores = Stores(tools.control, own.address, self.report)
        node_rank = tools.settings.node_rank
        self.watch = Watch(tools.page, self.runner, self.report, node_rank)
        self.deaths = Deaths(tools.page, tools.process.pid, self.runner)
        self.lease = Lease(tools.page, self._on_stood_still)
        self.commands = Commands(tools.control, self.runner, self.report)
        self.ending = Ending(
            self.runner,
            managed=not own.unmanaged,
            grace_seconds=tools.settings.grace_seconds,
            stop_seconds=launch.shutdown_seconds,
        )
        self.session = Session(dial, self, jitter)
        self.solitude = Solitude(self.runner, dial, node_rank, self._on_arm)
        self._alone = asyncio.Event()
        self.zygote = ZygoteEvents(self)
        self._digest: StateDigest | None = None
        self._ledger = Ledger()
        self._accounted_at = time.monotonic()
        self._handlers: Mapping[type[Any], Callable[[Any, Any], None]] = {
            Welcome: self._on_welcome,
            WorldAssignment: self._on_assignment,
            StopRound: self._on_stop,
            PrepareStore: lambda order, _: self.stores.prepare(order.store_id),
            Arm: self._on_arm,
            SetSchedule: self._on_schedule,
            DumpStacks: lambda order, _: self.commands.dump_stacks(order),
            Leave: lambda order, _: self._on_leave(order),
            StateDigest: lambda digest, _: self._on_digest(digest),
            HeartbeatInterval: lambda order, _: self._set_interval(order.heartbeat_seconds),
            **dict.fromkeys(hearing.ABOUT_CHECKPOINTS, self._on_checkpoint),
        }

    # --- the life of the agent ------------------------------------------------------------------

    async def run(self) -> End:
        """Work until the master, a signal or a fault ends the agent."""
        self.lease.begin()
        self.zygote.listen(self._tools.process)
        self.deaths.start()
        works = (
            self.lease.run(),
            self.watch.beat(),
            self.watch.poll(),
            self._every_second(),
            self.session.run(),
        )
        tasks = [self._supervised(work) for work in works]
        end = await self.ending.wait()
        await asyncio.to_thread(self.deaths.stop)
        await self.commands.close()
        self.report(Goodbye(reason=end.reason, failed=end.own_fault))
        await self.session.close(CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return end

    def report(self, message: Any, round_number: int | None = None) -> None:
        """Send a message, about `round_number` where it is about workers."""
        self.statements.note(message, round_number or 0, time.monotonic())
        request = SessionRequest(fence=self.accepted.fence(round_number), message=message)
        self.session.send(request)

    def accepted_fence(self, round_number: int) -> Fence:
        """Return the fence of what this agent says about a round."""
        return self.accepted.fence(round_number)

    def on_signal(self, number: int) -> None:
        """A signal that ends the agent came."""
        if self.ending.on_signal(number, connected=self.session.connected):
            self.report(Goodbye(reason=f"signal {number}", terminated=True))

    def become_warm(self, seconds: float) -> None:
        """The zygote is ready, or says that it cannot fork any more."""
        self.warm = True
        self.report(Warmed(seconds=seconds, cold_reason=self.runner.cold_reason))

    def on_zygote_lost(self, event: zygote.ZygoteExited) -> None:
        """The zygote is gone and its workers with it; with grpc loaded none can be forked anew."""
        found = self._tools.process.kill_orphans(self._tools.spared())
        self.runner.zygote_lost()
        if not self.ending.begun:
            cause = f"signal {event.signal}" if event.signal else f"exit code {event.exit_code}"
            self.ending.fail(f"the zygote ended with {cause}; {found} processes were killed")

    # --- the stream -----------------------------------------------------------------------------

    def hello(self) -> SessionRequest:
        """Return the first message of a new stream."""
        self._account()
        self._said_warm = self.warm
        memory = Memory(
            warm=self.warm,
            round=self.accepted.round,
            done_command_ids=self.commands.done_ids(),
            goodput=self._ledger.entries(),
            digest=self._digest,
            store=self.stores.prepared,
        )
        message = hello(
            self._tools.settings, self._own, memory, self.runner.current, self._tools.page
        )
        return SessionRequest(fence=self.accepted.fence(), message=message)

    def on_response(self, response: SessionResponse) -> bool:
        """Act on a message of the master, if its fence allows."""
        message = response.message
        heard = hearing.hear(self.accepted, response)
        if heard.verdict is not FenceVerdict.ACCEPT:
            self.dropped[heard.verdict] += 1
            log.warning("%s of the master dropped: %s", type(message).__name__, heard.verdict.value)
            return False
        self.accepted = heard.accepted
        handler = self._handlers.get(type(message))
        if handler is None:
            return True
        if self.ending.begun and not hearing.concerns_ending(message):
            return True
        handler(message, heard.round)
        return True

    def on_down(self, reason: str) -> None:
        """The stream ended: workers train on."""
        self.solitude.begin()
        self._alone.set()
        if not self.ending.begun:
            log.warning("lost the master: %s", reason)

    # --- orders ---------------------------------------------------------------------------------

    def _on_welcome(self, welcome: Welcome, _: int) -> None:
        log.info("welcomed by the master of epoch %d", self.accepted.epoch)
        self.welcome = welcome
        self._set_interval(welcome.heartbeat_seconds)
        self.runner.capture_stderr(welcome.log_patterns)
        if welcome.lease_seconds > 0:
            self._tools.page.words[Header.LEASE_LIMIT_NS] = int(welcome.lease_seconds * 1e9)
        verdict = orders.on_welcome(self.accepted.round, welcome.round, alive=self.runner.alive)
        for request in self.statements.again(self.accepted, time.monotonic()):
            self.session.send(request)
        cold_reason = self.runner.cold_reason
        if orders.warmth_unknown(warm=self.warm, said=self._said_warm, cold_reason=cold_reason):
            self.report(Warmed(cold_reason=cold_reason))
        if verdict.order is orders.Order.KILL:
            self.runner.kill(verdict.reason)
        self._tools.arenas.restate()

    def _on_assignment(self, assignment: WorldAssignment, own_round: int) -> None:
        verdict = orders.on_assignment(
            own_round,
            self.accepted.round,
            assignment.local_world_size,
            self._tools.settings.launch.local_world_size,
        )
        if verdict.order is not orders.Order.START:
            log.warning("assignment ignored: %s", verdict.reason)
            return
        log.info(
            "round %d: ranks %d to %d of %d (%s)",
            self.accepted.round,
            assignment.base_rank,
            assignment.base_rank + assignment.local_world_size - 1,
            assignment.world_size,
            assignment.reason,
        )
        self.statements.forget_before(self.accepted.round - 1)
        self._tools.arenas.begin_round(self.accepted.round, assignment.world_hash)
        self.stores.use(assignment.store_id, STORE_LINGER_SECONDS)
        self.runner.start(self.accepted.round, assignment)

    def _on_stop(self, order: StopRound, number: int) -> None:
        verdict = orders.on_stop(self.accepted.round, number, alive=self.runner.alive)
        if verdict.order is orders.Order.KILL:
            self.runner.stop(order.grace_seconds, order.reason)
        self.commands.when_dead(order.command_id, verdict.reason)

    def _on_arm(self, arm: Arm, number: int) -> None:
        problem = self.watch.arm(arm, number)
        if problem:
            log.warning("arm %d at step %d: %s", arm.arm_id, arm.step, problem)

    def _on_schedule(self, order: SetSchedule, number: int) -> None:
        problem = self.watch.schedule(order, number)
        if problem:
            log.warning("schedule %d from step %d: %s", order.schedule_id, order.step, problem)

    def _on_leave(self, order: Leave) -> None:
        log.info("the master says leave: %s", order.reason)
        self.commands.when_dead(order.command_id, order.reason)
        self.ending.leave(order)

    def _on_digest(self, digest: StateDigest) -> None:
        if hearing.newer_digest(self._digest, digest):
            self._digest = digest

    def _on_checkpoint(self, message: Any, number: int) -> None:
        from holdfast_agent import checkpoint_words

        word = checkpoint_words.heard(message, number)
        if word is not None:
            self._tools.arenas.tell(word)

    def _set_interval(self, seconds: float) -> None:
        if seconds > 0:
            self.watch.interval_seconds = self._tools.arenas.interval_seconds = seconds

    # --- time -----------------------------------------------------------------------------------

    def _on_stood_still(self, age_seconds: float) -> bool:
        """The lease ran out before this process could renew it: kill what may be left."""
        self.runner.stood_still(age_seconds)
        return self.runner.alive

    async def _every_second(self) -> None:
        while True:
            # At once when the master is lost: what it had told others may be due soon.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._alone.wait()
            self._alone.clear()
            self._account()
            stuck = self.runner.stuck(time.monotonic())
            if stuck and not self.ending.begun:
                self.ending.fail(stuck)
            if not self.session.connected and self.runner.alive:
                limit = self.welcome.masterless_limit_seconds
                await self.solitude.look(self.accepted, limit, lambda: self.session.connected)

    def _account(self) -> None:
        now = time.monotonic()
        name = class_of(self.runner.phase, saving=self.watch.saving)
        self._ledger = self._ledger.add(name, now - self._accounted_at)
        self._accounted_at = now

    def _supervised(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part that never ends by itself; its fault ends the agent."""

        async def guarded() -> None:
            try:
                await work
            except RefusedError as error:
                self.ending.fail(f"the master refused this agent: {error}")
            except Exception as error:
                log.exception("a part of the agent failed (fault %d)", faults.count(__name__))
                self.ending.fail(f"{type(error).__name__}: {error}")

        return asyncio.create_task(guarded())
