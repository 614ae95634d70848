"""Watch over the local runner: an agent that a wrapper has started does not outlive it.

Belongs here: finding the runner's process. Does not belong here: the reaction to its end
(`lifecycle`), the use of the socket (`holdfast.flash.memory.fdstore_backend`).

The kernel ends the processes that the runner started itself. A shell that waits for its agent ends
with the runner, and without this watch the agent would train on alone.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid and gid, in SO_PEERCRED's form."""


class RunnerGoneError(Exception):
    """The runner has ended already."""


def open_runner(arena_socket: int) -> int:
    """Return a pidfd of the runner, readable when it has ended; -1: no runner is known.

    Args:
        arena_socket: Inherited descriptor of HOLDFAST_ARENA_SOCKET; it stays open.

    Raises:
        RunnerGoneError: The runner has ended.
    """
    try:
        with socket.socket(fileno=os.dup(arena_socket)) as other_end:
            if (other_end.family, other_end.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                return -1  # by now the number is another process's
            size = _CREDENTIALS.size
            made_by = other_end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = _CREDENTIALS.unpack(made_by)
        return os.pidfd_open(pid) if pid not in (0, os.getpid()) else -1
    except ProcessLookupError as error:
        raise RunnerGoneError("the runner ended before its agent began") from error
    except OSError:
        return -1  # a wrapper has closed it, or it is no socket
