"""The process that keeps a trainer's arena where there is no agent: `python -m …keeping`.

It ends when its trainer has ended and what was to be written is written. With --listen it serves
every trainer of a node that connects, until it is told to stop.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import subprocess
import sys
from typing import Final

from holdfast import faults
from holdfast.flash.keeper import Keeper
from holdfast.flash.link import Link
from holdfast.flash.service import Service
from holdfast.flash.sockets import listen

log: Final = logging.getLogger(__name__)


def start() -> tuple[Link, subprocess.Popen[bytes]]:
    """Start a keeper for this process alone; return the connection to it.

    It is in a session of its own: Ctrl-C ends the trainer, and the keeper only after its work.
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
    return Link(mine), process


def main() -> int:
    """Serve until there is nobody left to serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="a connected socket")
    where.add_argument("--listen", help="path of a socket to make")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper()
    listener = listen(arguments.listen) if arguments.listen else None
    service = Service(keeper, listener)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    if listener is None:
        service.add(Link(socket.socket(fileno=arguments.fd)))
    service.run()
    keeper.close()
    faults.say(log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
