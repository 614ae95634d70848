"""Host memory of the container, read at a round's start and after a failure.

Belongs here: reading the files, and the kills since a round began. Does not belong here: their
meaning (`policies.memory_files`), finding the groups (`config.cgroups`). Blocks for small files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast_agent.config.cgroups import ROOT, folders, text
from holdfast_agent.policies import memory_files
from holdfast_agent.policies.memory_files import LEGACY, UNIFIED, GroupMemory
from holdfast_wire.messages import MemoryUse

_KEPT_ROUNDS: Final = 4
"""An end may be reported after the next round has begun."""


def group_memory(root: Path = ROOT) -> GroupMemory:
    """Return the memory of this process's control group.

    Args:
        root: Directory with /proc, and with the mounts that /proc names.
    """
    groups = [
        memory_files.read(
            {name: text(folder.path / name) for name in (UNIFIED if folder.unified else LEGACY)},
            unified=folder.unified,
        )
        for folder in folders(root, "memory")
    ]
    return memory_files.effective(groups)


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
