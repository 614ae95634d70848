"""Temporary directories with an owner, so that those of a killed agent can be removed.

No descriptor stays open: the zygote, which is started later, must not inherit one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast_agent.zygote.process_tree import stat_fields

PREFIX = "holdfast_"
OWNER = ".owner"
"""JSON: pid and start of the process that made the directory, and the namespace of that pid.

A directory without this file is never removed: it is being made, or is kept on purpose."""
LOGS = "logs"
"""Folder with the output of ranks. The user may not know of a killed agent's folder, so its content
stays; the rest is removed."""
_MOST = 10_000
"""Longest owner file, bytes."""


def make(kind: str = "") -> Path:
    """Return a new directory, 0700, that this process owns."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}"))
    (folder / f"{OWNER}.new").write_text(json.dumps(_who(os.getpid())))
    (folder / f"{OWNER}.new").rename(folder / OWNER)
    return folder


def keep_logs(folder: Path) -> bool:
    """Give the directory up, with only its logs: it stays until a person removes it.

    Returns False, and removes it, if it has no logs.
    """
    if not _has_content(folder / LOGS):
        remove(folder)
        return False
    _empty(folder, but=frozenset({LOGS}))
    return True


def remove(folder: Path) -> None:
    """Remove the directory with its content."""
    _empty(folder, but=frozenset())
    with suppress(OSError):
        folder.rmdir()


def sweep() -> None:
    """Remove the directories of agents that are dead. Several sweeps at once do no harm."""
    for folder in _entries(Path(tempfile.gettempdir())):
        if folder.name.startswith(PREFIX) and _is_ours(folder) and _is_abandoned(folder):
            keep_logs(folder)


def _empty(folder: Path, but: frozenset[str]) -> None:
    """Remove its content; the owner file last, so that a sweep can take over at any point."""
    for path in _entries(folder):
        if path.name in but | {OWNER}:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            _unlink(path)
    _unlink(folder / OWNER)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _has_content(folder: Path) -> bool:
    with suppress(OSError):
        return any(path.is_file() and path.stat().st_size > 0 for path in folder.rglob("*"))
    return False


def _is_ours(folder: Path) -> bool:
    with suppress(OSError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def _is_abandoned(folder: Path) -> bool:
    """Return True if the owner is known to be dead; an unknown owner counts as alive."""
    owner = _read(folder / OWNER)
    pid = owner.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return False
    here = _who(pid)
    # A process id of another namespace, machine or boot means nothing here.
    same_place = all(here[name] and here[name] == owner.get(name) for name in ("boot", "pids"))
    return same_place and here["start"] != owner.get("start")


def _read(path: Path) -> dict[str, Any]:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        found = json.loads(os.read(opened, _MOST))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(opened)
    return found if isinstance(found, dict) else {}


def _who(pid: int) -> dict[str, Any]:
    """Return the identity of a process as seen from here; start -1: there is no such process."""
    return {"pid": pid, "start": _start(pid), "pids": _namespace(), "boot": _boot()}


def _namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _start(pid: int) -> int:
    """Return a process's start in clock ticks since boot; -1: it is dead, perhaps a zombie."""
    fields = stat_fields(pid)
    return -1 if not fields or fields[0] in {"Z", "X"} else int(fields[19])
