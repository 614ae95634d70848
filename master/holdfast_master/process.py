"""This process as the operating system sees it: its parent's death, its open files, its files.

Belongs here: calls to the kernel. Does not belong here: signals that asyncio handles.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
FILES_PER_NODE = 2
"""Open files for one agent: its stream, and a second one while it reconnects."""
FILES_BESIDE = 200
"""Open files for everything else: users, the journal, gRPC's own."""


def die_with_parent(expected: int = 0) -> bool:
    """Have the kernel kill this process when its parent ends; False where it has ended already.

    Args:
        expected: the parent's process id; 0: whoever is the parent now.
    """
    parent = expected or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # Between the start and the call the parent may have ended.
    return os.getppid() == parent


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def warn_of_file_limit(limit: int, nodes: int) -> bool:
    """Log when `limit` open files are too few for `nodes` agents; return whether they are."""
    needed = nodes * FILES_PER_NODE + FILES_BESIDE
    if limit >= needed:
        return False
    log.warning(
        "the limit of open files is lower than %d nodes may need: raise it (ulimit -Hn, "
        "LimitNOFILE) or agents beyond it cannot connect",
        nodes,
        extra={"limit": limit, "needed": needed},
    )
    return True


def write_private_json(path: Path, document: dict[str, object]) -> None:
    """Write `document` whole, 0600: a reader sees all of it or no file.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
    temporary.replace(path)


def own_pid() -> int:
    """Return this process's id."""
    return os.getpid()
