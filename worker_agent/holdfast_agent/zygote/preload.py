"""Imports torch and the preload list so that the process stays forkable, and checks that.

Forkable means: one thread, no CUDA, no unknown descriptors.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from holdfast.page_layout import MEMFD_NAME
from holdfast_agent.zygote import import_time_variables
from holdfast_agent.zygote.process_tree import task_count

THREAD_VARIABLES: Final = (
    import_time_variables.OMP_THREADS,
    import_time_variables.OPENBLAS_THREADS,
)
"""Read once when OpenMP and OpenBLAS load. Above 1, numpy starts a thread at import, and a
parallel operation before a fork makes every child hang in its first one."""


class ZygoteError(Exception):
    """The zygote cannot be started or no longer takes commands."""


def import_torch() -> dict[str, str | None]:
    """Import torch single-threaded; return the user's values of the thread variables.

    The agent calls this first, before anything else imports torch or numpy, and passes the result
    on in `ZygoteSettings.user_variables`. The variables stay at 1 in this process. Raises
    `ZygoteError` if torch cannot be imported.
    """
    values = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    try:
        with _without_collections():
            import torch  # noqa: F401 - lazily: other parts of the agent work without torch
    except ImportError as error:
        raise ZygoteError(
            f"torch cannot be imported: {error}; install it for {sys.executable}"
        ) from error
    settle()
    return values


def import_all(names: Iterable[str]) -> list[str]:
    """Import the modules; return one line for each that failed, with its reason.

    A preload list is a hint: a script that needs such a module will report the error itself.
    """
    failed = []
    for name in names:
        try:
            with _without_collections():
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a module may raise anything at import
            failed.append(f"preload of {name} skipped: {type(error).__name__}: {error}")
    return failed


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Import without the garbage collector, which takes a seventh of the time to find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def settle() -> None:
    """Hide the imported objects from the garbage collector.

    A collection in a child would write to every such object and so copy its pages. None comes
    first: it takes 0.3 s, to find one object of 35 (torch 2.15 with the default list).
    """
    gc.freeze()


def why_not_forkable(known: Collection[int]) -> str:
    """Return the reason why this process must not fork workers, or "" if it may.

    known: descriptors that may be open; those of the shared page are always known.
    """
    return _threads() or _cuda() or _descriptors(known)


def _threads(patience_s: float = 0.1) -> str:
    """Return the fault if there is a second thread; an ended one stays listed for a moment."""
    until = time.monotonic() + patience_s
    while (tasks := task_count()) > 1:
        if time.monotonic() > until:
            return f"{tasks} threads are running after the preload"
        time.sleep(0.005)
    return ""


def _cuda() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the preload has initialised CUDA"
    return ""


def _descriptors(known: Collection[int]) -> str:
    unknown = [f"{fd} ({target})" for fd, target in _unknown(known)]
    return f"the preload has left descriptors open: {', '.join(unknown)}" if unknown else ""


def _unknown(known: Collection[int]) -> list[tuple[int, str]]:
    """Return the descriptors above 2, with targets, but the `known` and the shared page's."""
    return [
        (fd, target)
        for fd, target in open_descriptors().items()
        if fd > 2 and fd not in known and not target.startswith(f"/memfd:{MEMFD_NAME}")
    ]


def open_descriptors() -> dict[int, str]:
    """Return the open descriptors of this process and their targets."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return found


def close_unknown(known: Collection[int]) -> None:
    """Close all descriptors above 2 but the `known` and the shared page's.

    They belong to objects that this process has inherited and will never use or free.
    """
    for fd, _ in _unknown(known):
        os.close(fd)
