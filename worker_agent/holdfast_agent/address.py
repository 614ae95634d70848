"""Which address of this machine other nodes reach: asks the kernel's routes, sends nothing."""

from __future__ import annotations

import ipaddress
import socket

DISCARD_PORT = 9
LOOPBACK = "127.0.0.1"


def towards(endpoint: str) -> str:
    """Return the local IP that a connection to `endpoint` (host:port) would come from.

    Falls back to the loopback address where there is no route or no such name.
    """
    host = endpoint.rpartition(":")[0].strip("[]") or LOOPBACK
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def resolve(name: str) -> str:
    """Return `name` as an IP; an IP stays as it is. Raises OSError for an unknown name."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
