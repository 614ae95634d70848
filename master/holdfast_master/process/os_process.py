"""This process as a whole: parent, files, memory, collector, and gRPC's environment."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4
LARGE_BLOCK_BYTES = 14 * 1024
"""Blocks from this size on get pages of their own: each connection holds two TLS buffers of 17 KB,
of which one page is used, and each of gRPC's log lines takes 15 KB for a moment, which leaves holes
between what stays."""
MOST_LARGE_BLOCKS = 40_000
"""The kernel allows 65,530 mappings: beyond this, large blocks lie among the others again."""
COLLECT_AFTER = (25_000, 20, 20)
"""Allocations between two looks for garbage in cycles, and looks between two at older objects.
Python's 700 has it go through a crowd's sessions several times a second and find nothing."""
FILES_PER_NODE = 2
"""Open files for one agent: its stream, and a second one while it reconnects."""
OTHER_FILES = 200
"""Open files for everything else: users, the journal, gRPC's own."""


def die_with_parent(expected: int = 0) -> bool:
    """Have the kernel kill this process when its parent ends; False where it has ended already.

    expected: the parent's process id; 0: that of the parent now.
    """
    parent = expected or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # Between the start and the call the parent may have ended.
    return os.getppid() == parent


def end_at_signals() -> None:
    """Have SIGTERM and SIGINT end this process with 0, until the event loop takes them over.

    As PID 1 a process without handlers gets no signals at all: the master's pod of a job that is
    deleted while it starts would stay for the whole of its grace.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def spread_large_blocks() -> bool:
    """Have malloc give large blocks pages of their own; False where it cannot be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    given = mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    return bool(given and mallopt(_M_MMAP_MAX, MOST_LARGE_BLOCKS))


def collect_rarely() -> None:
    """Look for garbage less often, and never among what is there already."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def warn_of_file_limit(limit: int, nodes: int) -> bool:
    """Log when `limit` open files are too few for `nodes` agents; return whether they are."""
    needed = nodes * FILES_PER_NODE + OTHER_FILES
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


EXPERIMENTS = "GRPC_EXPERIMENTS"
POLLER = "-event_engine_listener"
"""The thread that waits for calls reads the connections as well. gRPC's newer way, its default
since 1.7x, wakes a thread of a pool for each message, which costs more than the message."""


def choose_poller(environment: MutableMapping[str, str]) -> None:
    """Ask grpc-core, which is yet to be loaded, for the cheaper poller; a user's choice stays."""
    environment.setdefault(EXPERIMENTS, POLLER)
