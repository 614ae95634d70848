"""Meaning of the memory files of control groups, versions 1 and 2.

Belongs here: turning their texts into numbers. Does not belong here: reading them
(`workers.memory_use`), the cause of a worker's end (the master's).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

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


def read(files: Mapping[str, str], *, unified: bool) -> GroupMemory:
    """Return the numbers in a group's files.

    Args:
        files: Texts by the name of the file; a missing file is empty or absent.
        unified: True: version 2.
    """
    limit, peak, current, kills = UNIFIED if unified else LEGACY
    bound = _number(files.get(limit, ""))
    return GroupMemory(
        limit=None if bound is None or bound >= _NO_LIMIT else bound,
        peak=_number(files.get(peak, "")),
        current=_number(files.get(current, "")),
        oom_kills=_count(files.get(kills, "")),
    )


def effective(groups: Sequence[GroupMemory]) -> GroupMemory:
    """Return the memory of the first group under the tightest limit of all of them.

    Args:
        groups: A process's group and those above it, the nearest first.
    """
    own = next((group for group in groups if group.current is not None), GroupMemory())
    limits = [group.limit for group in groups if group.limit is not None]
    return dataclasses.replace(own, limit=min(limits, default=None))


def _number(text: str) -> int | None:
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() else None


def _count(text: str) -> int | None:
    """Return the number in the line `oom_kill N`; the line is missing before Linux 4.13."""
    words = (line.split() for line in text.splitlines())
    return next((_number(two[1]) for two in words if len(two) == 2 and two[0] == "oom_kill"), None)
