"""Run a command that dies with its parent: `python dies_with_parent.py PARENT COMMAND [ARG …]`.

Standard library only: it starts in 10 ms.
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
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # It died before the request: nobody would end this process any more.
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
