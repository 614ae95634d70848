"""Importing torch so that a process stays forkable: one thread, no CUDA, no stray descriptors."""

from __future__ import annotations

import os
from typing import Final

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read once when OpenMP and OpenBLAS load. Above 1, numpy starts a thread at import, and a
parallel operation before a fork makes every child hang in its first one."""


def import_torch() -> dict[str, str | None]:
    """Import torch single-threaded; return the user's values of the thread variables.

    The agent calls this first of all, before anything else imports torch or numpy, and hands the
    result on in `ZygoteSettings.user_variables`. The variables stay at 1 in this process.
    """
    values = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    import torch  # noqa: F401 - lazily: other parts of the agent work without torch

    return values
