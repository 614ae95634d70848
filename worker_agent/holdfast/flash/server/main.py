"""Checkpoint server as a process, without an agent: `python -m holdfast.flash.server.main`.

It ends when its trainer has ended and all writes are done. With --listen it serves every trainer of
a node that connects, until a signal stops it.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import subprocess
import sys
from typing import Final

from holdfast import loop_errors
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.local_commit import local_service
from holdfast.flash.server.protocol import ServerLink, listen

log: Final = logging.getLogger(__name__)


def start() -> tuple[ServerLink, subprocess.Popen[bytes]]:
    """Start a checkpoint server for this process alone; return the connection to it.

    The server has a session of its own: Ctrl-C ends the trainer, and the server ends after its
    work.
    """
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, "--fd", str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        its.close()
    return ServerLink(mine), process


def main() -> int:
    """Serve until no trainer is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="a connected socket")
    where.add_argument("--listen", help="path of a socket to make")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arenas = ArenaStore()
    listener = listen(arguments.listen) if arguments.listen else None
    service = local_service(arenas, listener)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    if listener is None:
        service.add(ServerLink(socket.socket(fileno=arguments.fd)))
    service.run()
    arenas.close()
    loop_errors.say(log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
