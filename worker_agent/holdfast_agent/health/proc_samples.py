"""Samples of a process by the kernel over a second: its state, what it moves, what is below it.

/proc answers for any state of a process. No file of its own is touched: a look at one on storage
that is away would hang as the process does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast_agent.zygote.process_tree import command_line, descendants, stat_fields
from holdfast_wire.messages import ChildEvidence, RankEvidence

SAMPLES: Final = 5
"""Looks at a process during the observation."""
MOST_CHILDREN: Final = 8
"""Processes below a rank that are told."""
_MOST_TREE: Final = 256
"""Processes below a rank that are looked at."""
_STAT_STATE, _STAT_USER, _STAT_SYSTEM = 0, 11, 12
"""Indices in `stat_fields`."""
_LETTERS: Final = {"t": "T", "X": "", "x": ""}
"""Traced and stopped are alike: it does not run. A dead one is gone."""
_MOVED: Final = frozenset({b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:"})
"""Of /proc/PID/io. The last two grow within a long call, the first two at its end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcStat:
    """One look at one process."""

    state: str
    kernel_function: str
    cpu_seconds: float
    wakes: int
    """Times that its main thread slept and woke so far."""


async def observe(pid: int, seconds: float) -> RankEvidence:
    """Watch a process and those below it; return what the kernel tells of them.

    The bytes that they moved include those of its worker server's answers.
    """
    started = time.monotonic()
    samples = [sample(pid)]
    below = _Tree(pid)
    while samples[-1] is not None and len(samples) < SAMPLES:
        await asyncio.sleep(seconds / (SAMPLES - 1))
        samples.append(sample(pid))
    spent = time.monotonic() - started
    seen = [one for one in samples if one is not None]
    if len(seen) < len(samples):
        return RankEvidence(observed_seconds=spent)
    state = usual([one.state for one in seen])
    return below.added_to(
        RankEvidence(
            process_state=state,
            kernel_function=usual([one.kernel_function for one in seen if one.state == state]),
            cpu_seconds=max(0.0, seen[-1].cpu_seconds - seen[0].cpu_seconds),
            observed_seconds=spent,
            wakes=max(0, seen[-1].wakes - seen[0].wakes),
        )
    )


class _Tree:
    """A process and those below it, from the beginning of the observation on."""

    def __init__(self, pid: int) -> None:
        pids = descendants([pid])[:_MOST_TREE] if pid > 0 else []
        self._moved = {one: _moved(Path(f"/proc/{one}")) for one in pids}
        self._main = Path(f"/proc/{pid}/task/{pid}")
        self._main_moved = _moved(self._main)
        self._before = {one: sample(one) for one in pids[1:]}

    def added_to(self, known: RankEvidence) -> RankEvidence:
        """Return the evidence with what they have done since; below, those that did least first."""
        moved = [max(0, _moved(Path(f"/proc/{one}")) - old) for one, old in self._moved.items()]
        main = max(0, _moved(self._main) - self._main_moved)
        looks = ((pid, before, sample(pid)) for pid, before in self._before.items())
        below = [(pid, old, now) for pid, old, now in looks if old is not None and now is not None]
        below.sort(key=lambda one: _activity(*one))
        return dataclasses.replace(
            known,
            moved_bytes=sum(moved),
            moved_beside_bytes=max(0, sum(moved[:1]) - main),
            children=tuple(_child(pid, now) for pid, _, now in below[:MOST_CHILDREN]),
            children_cpu_seconds=sum(
                max(0.0, now.cpu_seconds - old.cpu_seconds) for _, old, now in below
            ),
        )


def _activity(pid: int, old: ProcStat, now: ProcStat) -> tuple[bool, int, float, int]:
    """Return the place of a process among its like: those in D state come first."""
    return now.state != "D", now.wakes - old.wakes, now.cpu_seconds, pid


def _child(pid: int, now: ProcStat) -> ChildEvidence:
    return ChildEvidence(
        pid=pid,
        command=_command(pid, now.state),
        state=now.state,
        kernel_function=now.kernel_function,
    )


def _command(pid: int, state: str) -> str:
    """Return how ps shows a process; the words of one in D state may wait for what it waits for."""
    if state != "D":
        return command_line(pid)
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def usual(values: Sequence[str]) -> str:
    """Return the most frequent value, the newest of equals.

    A read that merely is slow shows as D now and then: D counts only where nothing else was seen.
    """
    counts = Counter(values)
    rare = len(counts) > 1
    return max(
        reversed(list(dict.fromkeys(values))),
        key=lambda value: 0 if rare and value == "D" else counts[value],
    )


def sample(pid: int) -> ProcStat | None:
    """Look at a process once; None: there is none."""
    if pid <= 0:
        return None
    folder, fields = Path("/proc") / str(pid), stat_fields(pid)
    state = _LETTERS.get(fields[_STAT_STATE], fields[_STAT_STATE]) if fields else ""
    if not state:
        return None
    ticks = int(fields[_STAT_USER]) + int(fields[_STAT_SYSTEM])
    return ProcStat(
        state=state,
        kernel_function=_kernel_function(folder),
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        wakes=_wakes(folder / "task" / str(pid)),
    )


def _kernel_function(folder: Path) -> str:
    """Return the function in which the main thread sleeps; empty where the kernel hides it."""
    try:
        name = (folder / "wchan").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if name == "0" else name


def _wakes(task: Path) -> int:
    try:
        lines = (task / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches:"))
    return int(next(found, 0))


def _moved(folder: Path) -> int:
    """Return the bytes that a process, or a thread, has moved; 0 where the kernel does not tell."""
    try:
        pairs = (folder / "io").read_bytes().split()
    except OSError:
        return 0
    return sum(
        int(number) for name, number in zip(pairs[::2], pairs[1::2], strict=False) if name in _MOVED
    )
