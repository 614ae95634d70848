"""Collects the stack dumps of a round's ranks for the master.

The zygote makes the workers write; this module waits for the files, reads, cuts and labels them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast_agent.workers.rounds import Round
from holdfast_wire.messages import RankStack

MAX_BYTES = 256 * 1024
"""Limit for all ranks together."""
SETTLE_SECONDS = 0.1
"""A file that has not grown for this long is complete."""
DEADLINE_SECONDS = 2.0
POLL_SECONDS = 0.02
_RUNS_THE_SCRIPT: Final = re.compile(r'  File ".*/holdfast_agent/zygote/script\.py", line ')
"""A line of faulthandler, most recent call first: the lines below it are not the script's."""


def sizes(current: Round) -> dict[int, int]:
    """Return the length of each rank's file now: a later read skips earlier dumps."""
    return {rank: _size(files.stacks) for rank, files in current.logs.files.items()}


async def collect(
    current: Round, before: Mapping[int, int], missing: tuple[int, ...]
) -> tuple[RankStack, ...]:
    """Return the output of each rank since `before`.

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
    text = "" if missing else scripts_own(_read(current.logs.files[rank].stacks, start, share))
    if not text:
        reason = "it is not Python, or the script replaced the signal's handler"
        text = f"no stack: {reason if missing else 'the process wrote none in time'}"
    return RankStack(
        local_rank=rank,
        rank=current.assignment.base_rank + rank,
        pid=current.pids.get(rank, 0),
        text=text,
    )


def scripts_own(text: str) -> str:
    """Return faulthandler's dump without this package's frames below the script's first one.

    They are the same for every rank, and three times as many as the script's.
    """
    kept: list[str] = []
    cut = False
    for line in text.splitlines():
        is_frame = line.startswith("  ")
        first = not kept or not kept[-1].startswith("  ")
        cut = is_frame and (cut or (not first and bool(_RUNS_THE_SCRIPT.match(line))))
        if not cut:
            kept.append(line)
    return "\n".join(kept)


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
