"""Hold a pod's namespaces: `python pause.py PARENT HOSTNAME`. Prints a line once they are there.

Standard library only. It becomes `sleep`, so that a pod costs one megabyte and not ten.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
_NEWUTS, _NEWIPC, _NEWNET = 0x4000000, 0x8000000, 0x40000000


def main() -> None:
    """Make the namespaces, and wait for ever."""
    parent, hostname = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    if libc.unshare(_NEWNET | _NEWUTS | _NEWIPC):
        sys.exit(f"pause: no namespaces: {os.strerror(ctypes.get_errno())}")
    socket.sethostname(hostname)
    os.write(1, b"ready\n")
    os.execvp("sleep", ["sleep", "infinity"])


if __name__ == "__main__":
    main()
