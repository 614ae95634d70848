"""The store process: a TCPStore that survives a frozen or dead agent or worker.

It runs in a child of the zygote. Agent and master decide which round uses it.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from datetime import timedelta
from typing import NoReturn

_CLIENT_TIMEOUT = timedelta(seconds=30)
"""Time-out of the store's own connection to itself; the ranks' clients have their own."""


def check_host(host: str) -> str:
    """Return the reason why a host cannot be listened on, or "": only addresses, no names."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"store host {host!r}: expected an IP address"
    return ""


def listen(host: str) -> socket.socket:
    """Bind a listening socket to a free port of exactly this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(4096)  # a whole world connects at once; the kernel caps it at somaxconn
    return listener


def serve(host: str, report: int) -> NoReturn:
    """Serve a TCPStore on `host` for ever; write its port to descriptor `report` when it listens.

    On an error it writes the reason instead, and exits with status 1.
    """
    try:
        port = _start(host)
    except Exception as error:  # noqa: BLE001 - reported to the agent, whatever it is
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(report, str(port).encode())
    os.close(report)
    while True:
        signal.pause()


_store: object = None


def _start(host: str) -> int:
    global _store  # noqa: PLW0603 - must live as long as the process
    from torch.distributed import TCPStore

    listener = listen(host)
    port: int = listener.getsockname()[1]
    _store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_CLIENT_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    sys.stdout.flush()
    return port
