"""Temporary directories that know their owner, so that what a killed agent left can be removed.

Belongs here: making such a directory, keeping it on purpose, sweeping those of dead agents. Does
not belong here: what lies in them (`logs`, `standalone`). No descriptor stays open: the zygote,
which is started later, must not inherit one.
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

PREFIX = "holdfast_"
OWNER = ".owner"
"""JSON: pid and start of the process that made the directory, and where that pid means something.

A directory without this file is nobody's business: being made, or kept on purpose."""
LOGS = "logs"
"""Folder with the output of ranks. A killed agent could not say where it is, so what is in it
stays; the rest goes."""
_MOST = 10_000
"""Bytes that an owner file may have."""


def make(kind: str = "") -> Path:
    """Return a new directory, 0700, that this process owns."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}"))
    (folder / f"{OWNER}.new").write_text(json.dumps(_who(os.getpid())))
    (folder / f"{OWNER}.new").rename(folder / OWNER)
    return folder


def keep(folder: Path) -> None:
    """Give the directory up: it stays until a person removes it."""
    (folder / OWNER).unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove the directory with all that is in it."""
    _empty(folder, but=frozenset())
    with suppress(OSError):
        folder.rmdir()


def sweep() -> None:
    """Remove the directories of agents that are dead. Several sweeps at once do no harm."""
    for folder in _entries(Path(tempfile.gettempdir())):
        if folder.name.startswith(PREFIX) and _is_ours(folder) and _is_abandoned(folder):
            if _has_content(folder / LOGS):
                _empty(folder, but=frozenset({LOGS}))
            else:
                remove(folder)


def _empty(folder: Path, but: frozenset[str]) -> None:
    """Remove what is in it; the owner file last, so that a sweep can take over at any point."""
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
    """Whether the owner is known to be dead; what cannot be known counts as alive."""
    owner = _read(folder / OWNER)
    pid = owner.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return False
    here = _who(pid)
    # Another namespace's, machine's or boot's process ids say nothing here.
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
    """What tells a process from all others, as seen from here; start -1: there is none."""
    return {
        "pid": pid,
        "start": _start(pid),
        "pids": _namespace(),
        "boot": _boot(),
    }


def _namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _start(pid: int) -> int:
    """When it started, in ticks since boot; -1: it does not live, though nobody may have waited."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if state in {"Z", "X"} else int(fields[18])
