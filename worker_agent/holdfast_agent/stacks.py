"""Collects the stack dumps of a round's ranks for the master.

The zygote makes the workers write; here the files are awaited, read, cut and labelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast_agent.rounds import Round
from holdfast_wire.messages import RankStack

MAX_BYTES = 256 * 1024
"""Of all ranks together."""
SETTLE_SECONDS = 0.1
"""A file that has not grown for this long is complete."""
DEADLINE_SECONDS = 2.0
POLL_SECONDS = 0.02


def sizes(current: Round) -> dict[int, int]:
    """Return the length of each rank's file now: earlier dumps are skipped later."""
    return {rank: _size(files.stacks) for rank, files in current.logs.files.items()}


async def collect(
    current: Round, before: Mapping[int, int], missing: tuple[int, ...]
) -> tuple[RankStack, ...]:
    """Return what each rank has written since `before`.

    missing: local ranks that cannot dump (not Python, or their handler was replaced).
    """
    waited = [rank for rank in current.logs.files if rank not in missing]
    deadline = time.monotonic() + DEADLINE_SECONDS
    seen, since = sizes(current), time.monotonic()
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
        now = sizes(current)
        if now != seen:
            seen, since = now, time.monotonic()
        grown = all(seen[rank] > before.get(rank, 0) for rank in waited)
        if grown and time.monotonic() - since >= SETTLE_SECONDS:
            break
    share = MAX_BYTES // max(1, current.size)
    return tuple(
        _stack(current, rank, before.get(rank, 0), share, missing=rank in missing)
        for rank in sorted(current.logs.files)
    )


def _stack(current: Round, rank: int, start: int, share: int, *, missing: bool) -> RankStack:
    text = "" if missing else _read(current.logs.files[rank].stacks, start, share)
    if not text:
        reason = "it is not Python, or the script replaced the signal's handler"
        text = f"no stack: {reason if missing else 'the process wrote none in time'}"
    return RankStack(
        local_rank=rank,
        rank=current.assignment.base_rank + rank,
        pid=current.pids.get(rank, 0),
        text=text,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, limit: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""
