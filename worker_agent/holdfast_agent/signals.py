"""Signals of this process as its parent has set them up, and the check that SIGTERM reaches it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from holdfast_agent.zygote.process_tree import catches, stat_fields

_SHELLS: Final = frozenset({"ash", "bash", "busybox", "dash", "ksh", "mksh", "sh", "zsh"})
_INIT: Final = 1
_STAT_TERMINAL: Final = 4
"""Index in `stat_fields`."""


def ignored() -> frozenset[int]:
    """Return the signals that are ignored now: under `nohup` SIGHUP is ignored from the start."""
    numbers = signal.valid_signals()
    return frozenset(n for n in numbers if signal.getsignal(n) is signal.SIG_IGN)


def notes() -> tuple[str, ...]:
    """Return a line for people if this container's SIGTERM ends at a shell.

    The kernel delivers to the first process of a container only signals that it has a handler for,
    and a shell passes none on. A shell at a terminal is excluded: a person uses it to try things.
    """
    if os.getppid() != _INIT or catches(_INIT, signal.SIGTERM):
        return ()
    name = Path(f"/proc/{_INIT}/comm").read_text().strip()
    if name not in _SHELLS or stat_fields(_INIT)[_STAT_TERMINAL] != "0":
        return ()
    text = (
        f"the first process of this container is {name}, which passes no SIGTERM on: nothing is "
        "saved before the container ends, unless the operator tells the job master; begin the "
        "command with `exec`"
    )
    return (text,)
