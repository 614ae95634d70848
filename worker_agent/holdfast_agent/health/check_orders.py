"""Orders of the master to measure this node, while no rank runs on it.

A measurement has a thread and a child process of its own; the connection to the master never waits
for it. The process stays for the next round, which then need not import torch again. An order that
comes again, after a lost stream, gets the answer that it had.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

from holdfast_agent.health.node_check import link
from holdfast_agent.health.node_check.link import LinkSettings
from holdfast_agent.health.node_check.measured import Task
from holdfast_agent.health.node_check.process import Interrupt, KeptProcess
from holdfast_agent.health.node_check.runner import (
    CheckResult,
    alone_tasks,
    import_task,
    join_task,
    run,
    serve_task,
)
from holdfast_agent.policies.node_check import Reading
from holdfast_wire.messages import (
    CheckFigure,
    CheckListening,
    CheckNode,
    CheckRole,
    CheckRound,
    HealthMode,
    HealthPolicy,
    NodeChecked,
)

log = logging.getLogger(__name__)

MOST_SECONDS: Final = 600.0
"""Of one order, whatever the master says, s."""
PARTNER_SECONDS: Final = 30.0
"""For the partner of a pair to come, and for each of its answers, s."""
KEPT_SECONDS: Final = 60.0
"""For which the process that measures waits for the next round, s. It waits for the slowest node of
a round; an import of torch takes seconds, and much longer only from a cold disk."""
RANKS_END_SECONDS: Final = 10.0
"""For ranks that are being ended, s: a suspect node is measured after its world."""
_LOOK_SECONDS = 0.1
_CLOSE_SECONDS: Final = 3.0
"""For the child to end when the agent ends, s; it is killed."""


class CheckOrders:
    """Carries out one `CheckNode` at a time; a newer one takes the place of an older one."""

    def __init__(
        self,
        address: str,
        settings: LinkSettings,
        interrupt: Interrupt,
        report: Callable[[Any], None],
        busy: Callable[[], bool],
    ) -> None:
        """Measure nothing yet.

        address: IP at which a partner reaches this node.
        settings: For the link to a partner; each order has a deadline of its own.
        busy: Returns True if ranks run here.
        """
        self._address, self._settings, self._interrupt = address, settings, interrupt
        self._report, self._busy = report, busy
        self._round: CheckRound | None = None
        self._said: CheckListening | NodeChecked | None = None
        """Newest message about the round: said again where the order comes again."""
        self._task: asyncio.Task[None] | None = None
        self._kept = KeptProcess()
        self._waits: asyncio.TimerHandle | None = None
        self._dropping: asyncio.Task[None] | None = None

    def welcomed(self, policy: HealthPolicy | None, *, warm: bool) -> None:
        """Prepare for a check where the job wants checks and this agent has just started.

        Torch is imported in the process that measures while the zygote imports it, too: a node
        without it is not checked.
        """
        preflight = policy.preflight if policy is not None else None
        wanted = preflight is not None and preflight.mode in (HealthMode.REPORT, HealthMode.ACT)
        if wanted and not warm and not self._busy() and self._task is None:
            self._task = asyncio.create_task(self._prepared())

    async def _prepared(self) -> None:
        try:
            await self._run([import_task()], (), MOST_SECONDS)
        except OSError as error:
            log.warning("no process to measure this node could be started: %s", error)
        self._let_wait()

    def on_order(self, order: CheckNode) -> None:
        """Measure and answer; an order that is known is answered again, once it has been."""
        if order.round is None:
            log.warning("an order to check this node names no round: nothing is measured")
        elif order.round != self._round:
            if self._round is not None and self._task is not None and not self._task.done():
                self._interrupt.set()
            until = time.monotonic() + min(MOST_SECONDS, max(1.0, order.deadline_seconds))
            self._round, self._said = order.round, None
            self._task = asyncio.create_task(self._work(order, order.round, self._task, until))
        elif self._said is not None:
            self._report(self._said)

    def cancel(self) -> None:
        """End the measurement that is under way: ranks are to start, or it is not wanted."""
        if self._task is not None and not self._task.done():
            self._interrupt.set()
        else:
            self._drop()

    def _drop(self) -> None:
        """End the process that waits for the next round, if there is one."""
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
            self._dropping = asyncio.create_task(asyncio.to_thread(self._kept.drop))

    def _let_wait(self) -> None:
        """Have the process wait for the next round; not without end, nor while ranks run."""
        self._waits = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop)
        if self._interrupt.is_set():
            self._drop()

    async def close(self) -> None:
        """End what is under way and wait for it."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        if self._dropping is not None:
            await asyncio.wait({self._dropping}, timeout=_CLOSE_SECONDS)

    async def _work(
        self, order: CheckNode, current: CheckRound, before: asyncio.Task[None] | None, until: float
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        if current != self._round:
            return  # a newer order came while the one before ended
        self._interrupt.clear()
        if self._waits is not None:
            self._waits.cancel()
        answer = await self._answered(order, current, until)
        if current == self._round:
            self._said = answer
            self._report(answer)
        self._let_wait()

    async def _answered(self, order: CheckNode, current: CheckRound, until: float) -> NodeChecked:
        answer = functools.partial(NodeChecked, round=current, partner=order.partner)
        if await self._still_busy(until):
            return answer(refused="ranks run on this node, or are about to")
        try:
            result = await self._measured(order, current, until)
        except OSError as error:
            return answer(refused=f"this node could not begin to measure: {error}")
        figures = tuple(figure for one in result.figures if (figure := _figure(one)) is not None)
        if self._interrupt.is_set() and not figures:
            return answer(refused="the measurement was ended before its first figure")
        return answer(kind=result.kind, figures=figures)

    async def _still_busy(self, until: float) -> bool:
        """Return True if ranks run here; those of a world that is over are given time to end."""
        latest = min(until, time.monotonic() + RANKS_END_SECONDS)
        # Ranks end by several ways that have no event in common.
        while self._busy() and time.monotonic() < latest and not self._interrupt.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        return self._busy()

    async def _measured(self, order: CheckNode, current: CheckRound, until: float) -> CheckResult:
        seconds = max(1.0, until - time.monotonic())
        deadline = min(PARTNER_SECONDS, seconds)
        settings = dataclasses.replace(self._settings, deadline_seconds=deadline)
        if order.role is CheckRole.JOIN:
            return await self._run([join_task(order.host, order.port, settings)], (), seconds)
        if order.role is not CheckRole.SERVE:
            # No other node's figures are compared with what a node reaches with itself.
            return await self._run(alone_tasks(loopback=False), (), seconds)
        with link.listen(self._address) as listener:
            port = listener.getsockname()[1]
            self._said = CheckListening(round=current, host=self._address, port=port)
            self._report(self._said)
            return await self._run([serve_task(settings)], (listener.fileno(),), seconds)

    async def _run(
        self, tasks: list[Task], descriptors: tuple[int, ...], seconds: float
    ) -> CheckResult:
        kept, interrupt = self._kept, self._interrupt
        return await asyncio.to_thread(
            run, tasks, descriptors, seconds=seconds, interrupt=interrupt, kept=kept
        )


def _figure(measured: Reading) -> CheckFigure | None:
    """Return the figure for the master; None: nothing was measured, for no fault of the node."""
    figure = functools.partial(
        CheckFigure, resource=measured.resource.value, subject=measured.subject
    )
    if measured.error:
        return figure(error=measured.error)
    if measured.value is None or not math.isfinite(measured.value):
        return None
    return figure(value=measured.value)
