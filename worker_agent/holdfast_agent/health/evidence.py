"""Collects what is known of local ranks that make no progress, before anything is ended.

The conclusion is the master's (`policies/hang`). All ranks are asked side by side, in threads, each
call with a deadline: a rank that is stopped, gone or stuck in the kernel costs no more time than
one that answers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from holdfast_agent.health import proc_samples, stacks
from holdfast_agent.health.stacks import StackQuestions, UnreadableError, scripts_own
from holdfast_agent.health.worker_server import (
    FlightEntry,
    FlightRecord,
    NoAnswerError,
    WorkerServer,
    WorkerServerError,
    parse_flight_record,
)
from holdfast_agent.text_limits import cut
from holdfast_wire.messages import GroupTail, RankEvidence

log = logging.getLogger(__name__)

OBSERVED_SECONDS: Final = 1.0
"""Time over which the process is watched, and for which an answer of its server is waited, s."""
TOTAL_SECONDS: Final = 2.0
"""Longest collection, s: what is left after the observation is for stacks from the memory."""
MAX_STACK_BYTES: Final = 64 * 1024
MAX_LATER_BYTES: Final = 16 * 1024
"""Of a further dump: its end has the main thread."""
_LATER: Final = 3
"""Further dumps of a rank that dumps at all, in the time of the observation."""
_LATER_SECONDS: Final = 0.25
"""Between two dumps."""
_DUMP_MOVES: Final = 2
"""Times that a byte of a dump counts as moved: the server writes it to a file and reads it. On a
disk a page of that file may count as often."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MARGIN_SECONDS: Final = 0.1
"""After the deadlines of the threads' own calls, s."""
_DEFAULT_GROUP: Final = "default_pg"
MAX_MEMBERS: Final = 512
"""Ranks of a group that are listed. Longer lists, of every rank, would be a flood for the master,
which then knows those that have used the group."""
_MAX_TENSORS: Final = 16
"""Tensors of one collective that are written out."""
_NO_MEMORY: Final = frozenset({"", "Z"})
"""In these states a process has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalRank:
    """A local rank to collect evidence of."""

    local_rank: int
    rank: int
    pid: int
    """0: it has no process."""
    socket_path: Path
    """Of its worker server."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """An answer of the worker server."""

    record: FlightRecord | None = None
    """None: it gave none."""
    gil_free: bool = False
    stack: str = ""
    later: tuple[str, ...] = ()
    """Empty where a dump came too late."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that the dumps may have moved; one that came too late counts as the longest."""
        lengths = [len(text.encode()) for text in (self.stack, *self.later)]
        known = [length or max(lengths) for length in lengths]
        pages = sum(-(-length // _PAGE_BYTES) for length in known)
        return _DUMP_MOVES * (sum(known) + pages * _PAGE_BYTES)


async def collect(
    ranks: Sequence[LocalRank], *, world_size: int, questions: StackQuestions
) -> tuple[RankEvidence, ...]:
    """Return the evidence of each rank, in their order, within about `TOTAL_SECONDS`.

    world_size: Number of ranks of the world, which the default process group has.
    questions: For stacks, those of earlier collections that are not answered yet.
    """
    started = time.monotonic()
    executor = ThreadPoolExecutor(max(1, 2 * len(ranks)), thread_name_prefix="evidence")
    try:
        processes, answers = await asyncio.gather(
            asyncio.gather(*(proc_samples.observe(item.pid, OBSERVED_SECONDS) for item in ranks)),
            asyncio.gather(*(_ask(executor, item, questions) for item in ranks)),
        )
    finally:
        # The threads end by their own deadlines; to wait for them here would block the event loop.
        executor.shutdown(wait=False, cancel_futures=True)
    missing = [
        item.pid if not said.stack and process.process_state not in _NO_MEMORY else 0
        for item, process, said in zip(ranks, processes, answers, strict=True)
    ]
    left = started + TOTAL_SECONDS - time.monotonic()
    # A rank that waits for a process below it has its answer there.
    children = [next((one.pid for one in process.children), 0) for process in processes]
    read = await asyncio.gather(*(_from_memory(pid, left) for pid in (*missing, *children)))
    texts, below = read[: len(ranks)], read[len(ranks) :]
    now_ns = time.time_ns()
    return tuple(
        _evidence(item, _with_stack(process, child), said, text, (world_size, now_ns))
        for item, process, said, text, child in zip(
            ranks, processes, answers, texts, below, strict=True
        )
    )


async def _from_memory(pid: int, seconds: float) -> str:
    """Return the stacks of a process that could not tell them; empty: they cannot be read."""
    if not pid:
        return ""
    try:
        return await stacks.read_memory(pid, seconds)
    except UnreadableError as error:
        log.info("the stacks of process %d are not known: %s", pid, error)
        return ""


def _with_stack(process: RankEvidence, stack: str) -> RankEvidence:
    """Return a process whose first one below has this stack."""
    if not stack:
        return process
    first, *others = process.children
    known = dataclasses.replace(first, stack=cut_stack(stack, MAX_LATER_BYTES))
    return dataclasses.replace(process, children=(known, *others))


def _evidence(
    item: LocalRank, process: RankEvidence, said: _Answers, read: str, world: tuple[int, int]
) -> RankEvidence:
    stack = cut_stack(scripts_own(said.stack or read))
    moved = max(0, process.moved_bytes - said.moved_bytes)
    # The worker server's thread has moved the dumps.
    awaited = process.moved_bytes - process.moved_beside_bytes
    return dataclasses.replace(
        process,
        local_rank=item.local_rank,
        rank=item.rank,
        pid=item.pid,
        # Without a usable record nothing may be concluded from the collectives that it lacks.
        server_answered=said.record is not None,
        gil_free=said.gil_free,
        stack=stack,
        groups=tails(said.record, *world) if said.record else (),
        later_stacks=tuple(
            cut_stack(own, MAX_LATER_BYTES)
            for own in map(scripts_own, said.later)
            if own not in {"", stack}
        ),
        moved_bytes=moved,
        moved_beside_bytes=max(0, moved - awaited),
    )


async def _ask(executor: Executor, item: LocalRank, questions: StackQuestions) -> _Answers:
    """Ask the rank's server for its record and its stack, side by side."""
    if item.pid <= 0:
        return _Answers()
    loop, started = asyncio.get_running_loop(), time.monotonic()
    ask = functools.partial(_stack, questions, item.socket_path)
    record = loop.run_in_executor(executor, _record, WorkerServer(item.socket_path))
    stack = loop.run_in_executor(executor, ask, OBSERVED_SECONDS)
    done, _ = await asyncio.wait(
        (record, stack), timeout=OBSERVED_SECONDS + _MARGIN_SECONDS
    )  # a thread that got no CPU in time has no answer
    gil_free, text = stack.result() if stack in done else (False, "")
    return _Answers(
        record=record.result() if record in done else None,
        gil_free=gil_free,
        stack=text,
        later=await _later_stacks(executor, ask, started + OBSERVED_SECONDS) if text else (),
    )


async def _later_stacks(
    executor: Executor, ask: Callable[[float], tuple[bool, str]], until: float
) -> tuple[str, ...]:
    """Have a rank that can dump its stack do so a few times more, before `until`."""
    found: list[str] = []
    while len(found) < _LATER and until - time.monotonic() > 2 * _LATER_SECONDS:
        await asyncio.sleep(_LATER_SECONDS)
        call = asyncio.get_running_loop().run_in_executor(executor, ask, _LATER_SECONDS)
        _, text = await call
        found.append(text)
        if not text:
            break
    return tuple(found)


def _record(server: WorkerServer) -> FlightRecord | None:
    try:
        return parse_flight_record(server.flight_trace(OBSERVED_SECONDS))
    except WorkerServerError:
        return None


def _stack(questions: StackQuestions, path: Path, seconds: float) -> tuple[bool, str]:
    """Return True if the GIL is free, and the stack.

    Any answer that came in time says that nothing waited for the GIL; only silence is suspicious.
    """
    try:
        return True, questions.traceback(path, seconds)
    except NoAnswerError:
        return False, ""
    except WorkerServerError:
        return True, ""


def tails(record: FlightRecord, world_size: int, now_ns: int) -> tuple[GroupTail, ...]:
    """Return the newest collective of each process group, in the order of the groups' names.

    world_size: Number of ranks of the default group.
    now_ns: Unix time of this node, ns.
    """
    # The newest entry, not the highest number: a group that was made anew counts from 1 again.
    newest = {entry.group: entry for entry in record.entries if not entry.is_p2p}
    return tuple(
        GroupTail(
            group=entry.group,
            ranks=_members(entry, record, world_size),
            sequence=entry.sequence,
            operation=entry.operation,
            sizes=str([list(size) for size in entry.sizes[:_MAX_TENSORS]]),
            dtypes=str(list(entry.dtypes[:_MAX_TENSORS])),
            age_seconds=max(0.0, (now_ns - entry.created_ns) * 1e-9),
        )
        for _, entry in sorted(newest.items())
    )


def _members(entry: FlightEntry, record: FlightRecord, world_size: int) -> tuple[int, ...]:
    everyone = entry.description == _DEFAULT_GROUP
    ranks = range(world_size) if everyone else record.ranks.get(entry.group, ())
    return tuple(ranks) if len(ranks) <= MAX_MEMBERS else ()


def cut_stack(text: str, limit: int = MAX_STACK_BYTES) -> str:
    """Keep the end of a long dump: faulthandler writes the main thread last."""
    return cut(text, limit, whole_lines=True)
