"""Process trees on Linux: find descendants, kill them all, tie a process's life to another's.

Process groups and the parent-death signal both miss grandchildren, so killing goes by parentage
under a subreaper: whatever a worker leaves behind becomes a child of the zygote (of the agent,
after that), and is found. Nothing here knows about rounds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_PF_EXITING: Final = 4
_STAT_PARENT, _STAT_FLAGS, _STAT_EXIT = 1, 6, 49
"""Places in /proc/PID/stat, counted from the one behind the name."""
_CHILDREN_FILES: Final = Path("/proc/thread-self/children").exists()


def _prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {argument!r}): {os.strerror(number)}")


def become_subreaper() -> None:
    """Adopt orphaned descendants of this process instead of leaving them to init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, sig: int = signal.SIGKILL) -> None:
    """Have `sig` sent to this process when the thread that forked it ends.

    `parent` is the pid that the parent had at the fork: when it is gone already, exits at once.
    """
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(128 + sig)


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` shows (15 bytes at most)."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def children(pid: int) -> list[int]:
    """Return the direct children of a process, zombies included; none when it is gone."""
    if not _CHILDREN_FILES:
        return [child for child, parent in _parents().items() if parent == pid]
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - half the time of iterdir
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def _parents() -> dict[int, int]:
    """Return each process's parent, for kernels built without CONFIG_PROC_CHILDREN."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name, in brackets, may hold spaces and brackets itself.
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def descendants(roots: Iterable[int]) -> list[int]:
    """Return the processes of these trees, roots first."""
    found = list(roots)
    for pid in found:  # grows while it is walked
        found += children(pid)
    return found


def signal_each(pids: Iterable[int], sig: int) -> None:
    """Signal processes; ones that are gone do not matter."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sig)


def signal_group(leader: int, sig: int) -> None:
    """Signal a process group, or its leader alone when that has not opened the group yet."""
    try:
        os.killpg(leader, sig)
    except ProcessLookupError:
        signal_each([leader], sig)


def kill_below(pid: int, spare: Collection[int] = ()) -> list[int]:
    """SIGKILL every descendant of `pid` except the trees of the children in `spare`.

    Returns the direct children concerned. One pass: a process that forked meanwhile has handed its
    child to the subreaper, so call again until nothing is returned.
    """
    roots = [child for child in children(pid) if child not in spare]
    signal_each(descendants(roots), signal.SIGKILL)
    return roots


def kill_and_reap(spare: Collection[int], deadline_s: float) -> int:
    """Kill and reap this process's descendants except the trees of `spare`; for a subreaper.

    Reaps only what it killed, so that others may wait for the spared. Returns how many direct
    children were reaped; gives up on unkillable ones (stuck in the kernel) after `deadline_s`.
    """
    reaped = 0
    until = time.monotonic() + deadline_s
    while (roots := kill_below(os.getpid(), spare)) and time.monotonic() < until:
        for root in roots:
            with suppress(ChildProcessError):
                reaped += os.waitpid(root, os.WNOHANG)[0] == root
        time.sleep(0.001)
    return reaped


def task_count() -> int:
    """Return the number of threads of this process, the kernel's view."""
    return len(list(Path("/proc/self/task").iterdir()))


def end_of_dying(pid: int, parent: int) -> int | None:
    """Return how a child of `parent` that the kernel is taking down ends: its exit status, -N.

    None while it lives (another program that it became lives, too), where the kernel does not say,
    and for a process of another parent, which only has the number of one that is gone. A process
    that `exec`s from a thread, or whose main thread alone ends, may look like one that ends with 0.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name, in brackets, may hold anything
    if int(fields[_STAT_PARENT]) != parent or not int(fields[_STAT_FLAGS]) & _PF_EXITING:
        return None
    return os.waitstatus_to_exitcode(int(fields[_STAT_EXIT]))


def catches(pid: int, sig: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (sig - 1) & 1)
