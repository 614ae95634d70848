"""Commands with an id: each is done once, however often it arrives, and answered by its id."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast_agent.health import evidence, stacks
from holdfast_agent.health.evidence import LocalRank
from holdfast_agent.health.stacks import StackQuestions
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_wire.messages import (
    CollectEvidence,
    CommandDone,
    DumpStacks,
    EvidenceCollected,
    RankStack,
)

MAX_DONE = 64
"""Number of ids in a hello."""
MAX_STACKS_BYTES = 256 * 1024
"""Limit for the stacks of all ranks together."""

Answer = Callable[[], Coroutine[Any, Any, CommandDone]]
"""Carries a command out."""


class Commands:
    """Carries out commands and remembers their ids."""

    def __init__(self, runner: RoundRunner, report: Callable[[Any], None]) -> None:
        """`report` sends a message to the master."""
        self._runner = runner
        self._report = report
        self._done: OrderedDict[int, CommandDone] = OrderedDict()
        self._under_way: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = StackQuestions()

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
        self._start(self._collect(order.command_id, round_number))

    async def close(self) -> None:
        """Wait shortly for answers under way, then give up the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._questions.keep([])

    def _begin(self, command_id: int, work: Answer) -> None:
        known = self._done.get(command_id)
        if known is not None:
            self._report(known)
        if known is not None or command_id in self._under_way:
            return
        self._under_way.add(command_id)
        self._start(self._finish(command_id, work))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, command_id: int, work: Answer) -> None:
        try:
            answer = await work()
        finally:
            self._under_way.discard(command_id)
        self._done[command_id] = answer
        while len(self._done) > MAX_DONE:
            self._done.popitem(last=False)
        self._report(answer)

    async def _dump(self, command_id: int) -> CommandDone:
        current = self._runner.live
        if current is None or not current.running():
            return CommandDone(command_id=command_id, text="no process runs here")
        ranks = self._ranks(current)
        texts = await asyncio.gather(
            *(stacks.of_process(self._questions, one.pid, one.socket_path) for one in ranks)
        )
        share = MAX_STACKS_BYTES // max(1, len(ranks))
        cut = [evidence.cut_stack(text, share) for text in texts]
        found = tuple(
            RankStack(local_rank=one.local_rank, rank=one.rank, pid=one.pid, text=text)
            for one, text in zip(ranks, cut, strict=True)
        )
        return CommandDone(command_id=command_id, ok=True, stacks=found)

    def _ranks(self, current: Round) -> list[LocalRank]:
        """Return the ranks of a round; the questions to those of other rounds are forgotten."""
        self._questions.keep([files.server for files in current.logs.files.values()])
        return [
            LocalRank(
                local_rank=rank,
                rank=current.assignment.base_rank + rank,
                pid=0 if rank in current.exits else current.pids.get(rank, 0),
                socket_path=files.server,
            )
            for rank, files in sorted(current.logs.files.items())
        ]

    async def _collect(self, command_id: int, round_number: int) -> None:
        current = self._runner.running(round_number)
        if current is None:
            return  # the master does not wait for what has ended
        found = await evidence.collect(
            self._ranks(current),
            world_size=current.assignment.world_size,
            questions=self._questions,
        )
        self._report(EvidenceCollected(command_id=command_id, ranks=found))
