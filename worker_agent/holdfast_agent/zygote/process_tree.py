"""Process trees on Linux: find descendants, kill them all, tie a process's life to another's.

Process groups and the parent-death signal both miss grandchildren. So killing follows parentage
under a subreaper: a process that a worker leaves behind becomes a child of the zygote (after that,
of the agent), and is found.
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
_PR_SET_PTRACER: Final = 0x59616D61
_PF_EXITING: Final = 4
_STAT_PARENT, _STAT_FLAGS, _STAT_EXIT = 1, 6, 49
"""Indices in `stat_fields`."""
_MOST_COMMAND: Final = 200
"""Characters of a command in a message."""
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

    `parent` is the parent's pid at the fork: if it is gone already, this process exits at once.
    """
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(128 + sig)


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` shows (15 bytes at most)."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def allow_reading(pid: int) -> None:
    """Let a process and its children read this one's memory where Yama asks for that.

    A kernel without Yama has no such option, and asks for nothing.
    """
    with suppress(OSError):
        _prctl(_PR_SET_PTRACER, pid)


def children(pid: int) -> list[int]:
    """Return the direct children of a process, zombies included; none if it is gone."""
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
    pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    stats = ((pid, stat_fields(pid)) for pid in pids)
    return {pid: int(fields[_STAT_PARENT]) for pid, fields in stats if fields}


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name, in brackets, may contain anything


def descendants(roots: Iterable[int]) -> list[int]:
    """Return the processes of these trees, roots first."""
    found = list(roots)
    for pid in found:  # grows while it is walked
        found += children(pid)
    return found


def signal_each(pids: Iterable[int], sig: int) -> None:
    """Signal processes; those that are gone are skipped."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sig)


def command_line(pid: int) -> str:
    """Return a process's command on one line, cut to 200 characters; "" if it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        text = b" ".join(filter(None, words)).decode(errors="replace")
        shown = "".join(letter if letter.isprintable() else " " for letter in text)
        return shown if len(shown) <= _MOST_COMMAND else f"{shown[: _MOST_COMMAND - 1]}…"
    return ""


def kill_below(pid: int, spare: Collection[int] = ()) -> list[int]:
    """SIGKILL every descendant of `pid` except the trees of the children in `spare`.

    Returns the killed direct children. This is one pass: a process that forked meanwhile has passed
    its child to the subreaper, so call again until nothing is returned.
    """
    roots = [child for child in children(pid) if child not in spare]
    signal_each(descendants(roots), signal.SIGKILL)
    return roots


def kill_and_reap(spare: Collection[int], deadline_s: float) -> int:
    """Kill and reap this process's descendants except the trees of `spare`; for a subreaper.

    It reaps only what it killed, so that other code may wait for the spared ones. Returns the
    number of reaped direct children; gives up after `deadline_s` on unkillable ones (stuck in the
    kernel).
    """
    reaped = 0
    until = time.monotonic() + deadline_s
    while (roots := kill_below(os.getpid(), spare)) and time.monotonic() < until:
        for root in roots:
            with suppress(ChildProcessError):
                reaped += os.waitpid(root, os.WNOHANG)[0] == root
        time.sleep(0.001)
    return reaped


def reap_adopted(others: Collection[int]) -> dict[int, int]:
    """Reap ended children except `others`, which other code waits for.

    Returns their exit codes by pid, -N for signal N.
    """
    reaped = {}
    for pid in children(os.getpid()):
        if pid not in others:
            with suppress(ChildProcessError):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found == pid:
                    reaped[pid] = os.waitstatus_to_exitcode(status)
    return reaped


def task_count() -> int:
    """Return the number of threads of this process, in the kernel's view."""
    return len(list(Path("/proc/self/task").iterdir()))


def end_of_dying(pid: int, parent: int) -> int | None:
    """Return the end of a child of `parent` that the kernel is taking down: its status, or -N.

    None while it lives (also as another program), if the kernel does not tell, and for a process of
    another parent, which only reuses the number. A process that calls `exec` on a thread, or whose
    main thread alone ends, may look like one that ends with 0.
    """
    fields = stat_fields(pid)
    if not fields or int(fields[_STAT_PARENT]) != parent:
        return None
    if not int(fields[_STAT_FLAGS]) & _PF_EXITING:
        return None
    return os.waitstatus_to_exitcode(int(fields[_STAT_EXIT]))


def catches(pid: int, sig: int) -> bool:
    """Return True if a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (sig - 1) & 1)
