"""Reaper of adopted children: an agent is a subreaper, and in a container also PID 1."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from holdfast_agent.zygote.process_tree import children


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
