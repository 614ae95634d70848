"""Makes main memory slow for the processes that measure some nodes.

With this directory on PYTHONPATH the interpreter imports it at its start. SLOW_COPIES names the
node ranks, with commas. Each copy of memory is made five times there, as on a node whose memory has
a fifth of its bandwidth. Each node has a core of its own, as machines do: one that is done sooner
would leave the other twice the cores.
"""

import ctypes
import os
import sys
from typing import Any

_TIMES = 5
_PROGRAM = "holdfast_agent.health.node_check.program"
_copy = ctypes.memmove


def _slowly(*arguments: Any) -> int:
    for _ in range(_TIMES - 1):
        _copy(*arguments)
    return _copy(*arguments)


_RANK = os.environ.get("HOLDFAST_NODE_RANK", "")
if _PROGRAM in sys.orig_argv and _RANK.isdecimal():
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[int(_RANK) % len(_cores)]})
if _PROGRAM in sys.orig_argv and _RANK in os.environ.get("SLOW_COPIES", "").split(","):
    setattr(ctypes, "memmove", _slowly)  # noqa: B010 - its type is a private one
