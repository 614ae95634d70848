"""Commands with an id: each is done once, however often it arrives, and answered by its id."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast_agent.health import evidence
from holdfast_agent.health.evidence import LocalRank
from holdfast_agent.workers import stacks
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.zygote import ZygoteControl
from holdfast_wire.messages import (
    CollectEvidence,
    CommandDone,
    DumpStacks,
    EvidenceCollected,
    RankStack,
)

MAX_DONE = 64
"""Number of ids in a hello."""
DUMP_DEADLINE_SECONDS = 2.0
"""Seconds for the zygote to signal the workers."""


class Commands:
    """Carries out commands and remembers their ids."""

    def __init__(
        self, control: ZygoteControl, runner: RoundRunner, report: Callable[[Any], None]
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
        """Answer the command as soon as no process of a round lives here."""

        async def work() -> CommandDone:
            await self._runner.died.wait()
            return CommandDone(command_id=command_id, ok=True, text=text)

        self._begin(command_id, work)

    def dump_stacks(self, order: DumpStacks) -> None:
        """Collect all ranks' stacks and send them as the answer."""
        self._begin(order.command_id, lambda: self._dump(order.command_id))

    def collect_evidence(self, order: CollectEvidence, round_number: int) -> None:
        """Report what each rank of the round does; nothing is remembered of it."""
        task = asyncio.create_task(self._collect(order.command_id, round_number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_dumped(self, number: int, missing: tuple[int, ...]) -> None:
        """Note that the zygote has signalled the workers of round `number`."""
        waiting = self._dumps.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(missing)

    async def close(self) -> None:
        """Wait shortly for answers under way, then give up the rest."""
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
        try:
            found = await self._stacks(current)
        except TimeoutError:
            return CommandDone(command_id=command_id, text="the zygote did not answer in time")
        return CommandDone(command_id=command_id, ok=True, stacks=found)

    async def _stacks(self, current: Round) -> tuple[RankStack, ...]:
        """Have a round's ranks dump their stacks; raises TimeoutError."""
        before = await asyncio.to_thread(stacks.sizes, current)
        waiting = self._dumps.setdefault(current.number, asyncio.get_running_loop().create_future())
        self._control.dump_stacks(current.number)
        async with asyncio.timeout(DUMP_DEADLINE_SECONDS):
            missing = await asyncio.shield(waiting)
        return await stacks.collect(current, before, missing)

    async def _collect(self, command_id: int, round_number: int) -> None:
        current = self._runner.current
        if current is None or current.number != round_number or current.dead:
            return  # the master does not wait for what has ended

        async def dumps(wanted: tuple[int, ...]) -> Mapping[int, str]:
            found = await self._stacks(current)
            return {one.local_rank: one.text for one in found if one.local_rank in wanted}

        base = current.assignment.base_rank
        ranks = [
            LocalRank(
                local_rank=rank,
                rank=base + rank,
                pid=0 if rank in current.exits else current.pids.get(rank, 0),
                socket_path=files.server,
            )
            for rank, files in sorted(current.logs.files.items())
        ]
        found = await evidence.collect(ranks, world_size=current.assignment.world_size, dumps=dumps)
        self._report(EvidenceCollected(command_id=command_id, ranks=found))
