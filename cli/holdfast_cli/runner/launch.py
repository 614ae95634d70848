"""Run a command that dies with its parent: `python launch.py PARENT_PID COMMAND [ARG …]`.

A script of its own, because the death signal has to be set between fork and exec, and code there
can hang in a process with gRPC threads. Standard library only: it starts in 10 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGKILL at the parent's death, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # The parent died before the request: no process would end this one.
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"holdfast: {command[0]!r} cannot be started: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
