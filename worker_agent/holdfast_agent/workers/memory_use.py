"""Host memory of the container, read at a round's start and after a failure. Blocks shortly."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from holdfast_agent.config.cgroups import ROOT, GroupFolder, folders, text
from holdfast_wire.messages import MemoryUse

UNIFIED: Final = ("memory.max", "memory.peak", "memory.current", "memory.events")
LEGACY: Final = (
    "memory.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.usage_in_bytes",
    "memory.oom_control",
)
"""Names of the files with limit, peak, present use and kills, in this order."""
_NO_LIMIT: Final = 1 << 62
"""Version 1 writes the largest number of pages where there is no limit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """Memory of one control group. None: the group does not say."""

    limit: int | None = None
    """bytes; None also where there is no limit."""
    peak: int | None = None
    current: int | None = None
    oom_kills: int | None = None
    """Processes that the kernel ended for lack of memory, since the group was made."""


def _read(group: GroupFolder) -> GroupMemory:
    """Return the numbers in a group's files, of which any may be missing."""
    names = UNIFIED if group.unified else LEGACY
    limit, peak, current, kills = (text(group.path / name) for name in names)
    bound = _number(limit)
    return GroupMemory(
        limit=None if bound is None or bound >= _NO_LIMIT else bound,
        peak=_number(peak),
        current=_number(current),
        oom_kills=_count(kills),
    )


def _number(text: str) -> int | None:
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() else None


def _count(text: str) -> int | None:
    """Return the number in the line `oom_kill N`; the line is missing before Linux 4.13."""
    words = (line.split() for line in text.splitlines())
    return next((_number(two[1]) for two in words if len(two) == 2 and two[0] == "oom_kill"), None)


_KEPT_ROUNDS: Final = 4
"""An end may be reported after the next round has begun."""


def group_memory(root: Path = ROOT) -> GroupMemory:
    """Return the memory of this process's control group, under the tightest limit of those above.

    root: Directory with /proc, and with the mounts that /proc names.
    """
    groups = [_read(folder) for folder in folders(root, "memory")]
    own = next((group for group in groups if group.current is not None), GroupMemory())
    limits = [group.limit for group in groups if group.limit is not None]
    return dataclasses.replace(own, limit=min(limits, default=None))


class MemoryWatch:
    """The kernel's kills for lack of memory, counted from each round's start."""

    def __init__(self, root: Path = ROOT) -> None:
        """See `group_memory` for `root`."""
        self._root = root
        self._before: dict[int, int] = {}
        """Kills before a round began."""

    def begin(self, round_number: int) -> None:
        """Note that a round is about to begin."""
        self._before[round_number] = group_memory(self._root).oom_kills or 0
        for number in sorted(self._before)[:-_KEPT_ROUNDS]:
            del self._before[number]

    def use(self, round_number: int) -> MemoryUse | None:
        """Return the memory now, with the kills in a round; None: there is no such group."""
        found = group_memory(self._root)
        if found.current is None:
            return None
        before = self._before.get(round_number)
        kills = 0 if found.oom_kills is None or before is None else found.oom_kills - before
        return MemoryUse(
            limit_bytes=found.limit or 0,
            peak_bytes=found.peak or 0,
            current_bytes=found.current,
            oom_kills=max(0, kills),
        )
