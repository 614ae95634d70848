"""Orders that are answered by their id: done once, however often they arrive."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast_agent import stacks
from holdfast_agent.control import Control
from holdfast_agent.runner import RoundRunner
from holdfast_wire.messages import CommandDone, DumpStacks

MAX_DONE = 64
"""Ids in a hello."""
DUMP_DEADLINE_SECONDS = 2.0
"""For the zygote to signal the workers."""


class Commands:
    """Carries out commands and remembers which."""

    def __init__(
        self, control: Control, runner: RoundRunner, report: Callable[[Any], None]
    ) -> None:
        """`report` sends a message to the master."""
        self._control = control
        self._runner = runner
        self._report = report
        self._done: OrderedDict[int, CommandDone] = OrderedDict()
        self._under_way: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dumps: dict[int, asyncio.Future[tuple[int, ...]]] = {}

    def done_ids(self) -> tuple[int, ...]:
        """Return the ids of the newest finished commands."""
        return tuple(self._done)

    def when_dead(self, command_id: int, text: str) -> None:
        """Answer the command as soon as nothing runs here."""

        async def work() -> CommandDone:
            await self._runner.died.wait()
            return CommandDone(command_id=command_id, ok=True, text=text)

        self._begin(command_id, work)

    def dump_stacks(self, order: DumpStacks) -> None:
        """Collect all ranks' stacks and answer with them."""
        self._begin(order.command_id, lambda: self._dump(order.command_id))

    def on_dumped(self, number: int, missing: tuple[int, ...]) -> None:
        """The zygote has signalled the workers of round `number`."""
        waiting = self._dumps.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(missing)

    async def close(self) -> None:
        """Wait shortly for answers that are due, then give up the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, command_id: int, work: Callable[[], Coroutine[Any, Any, CommandDone]]) -> None:
        known = self._done.get(command_id)
        if known is not None:
            self._report(known)
        if known is not None or command_id in self._under_way:
            return
        self._under_way.add(command_id)
        task = asyncio.create_task(self._finish(command_id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self, command_id: int, work: Callable[[], Coroutine[Any, Any, CommandDone]]
    ) -> None:
        try:
            answer = await work()
        finally:
            self._under_way.discard(command_id)
        self._done[command_id] = answer
        while len(self._done) > MAX_DONE:
            self._done.popitem(last=False)
        self._report(answer)

    async def _dump(self, command_id: int) -> CommandDone:
        current = self._runner.current
        if current is None or current.dead or not current.running():
            return CommandDone(command_id=command_id, text="no process runs here")
        before = await asyncio.to_thread(stacks.sizes, current)
        waiting = self._dumps.setdefault(current.number, asyncio.get_running_loop().create_future())
        self._control.dump_stacks(current.number)
        try:
            missing = await asyncio.wait_for(asyncio.shield(waiting), DUMP_DEADLINE_SECONDS)
        except TimeoutError:
            return CommandDone(command_id=command_id, text="the zygote did not answer in time")
        found = await stacks.collect(current, before, missing)
        return CommandDone(command_id=command_id, ok=True, stacks=found)
