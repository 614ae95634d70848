"""Children that this process did not start: an agent is a subreaper, in a container also PID 1."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from holdfast_agent.zygote.tree import children


def reap_adopted(others: Collection[int]) -> int:
    """Reap ended children except `others`, for which somebody else waits; return how many."""
    reaped = 0
    for pid in children(os.getpid()):
        if pid not in others:
            with suppress(ChildProcessError):
                reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped
