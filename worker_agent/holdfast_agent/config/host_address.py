"""Address of this machine for other nodes: asks the kernel's routes, sends nothing."""

from __future__ import annotations

import ipaddress
import socket

from holdfast_agent.errors import InputError
from holdfast_wire import loopback

DISCARD_PORT = 9
LOCAL_ADDR_FLAG = "--local-addr"


def towards(endpoint: str) -> str:
    """Return the local IP that a connection to `endpoint` (host:port) would come from.

    Falls back to the loopback address where there is no route or no such name.
    """
    host = endpoint.rpartition(":")[0].strip("[]") or loopback.IPV4
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return loopback.address()


def resolve(name: str) -> str:
    """Return `name` as an IP; an IP stays as it is. Raises OSError for an unknown name."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])


def of_this_machine(name: str, source: str) -> str:
    """Return `name` as an IP that this machine can listen on.

    name: A host's name, or an IP.
    source: Flag or variable that it came from.

    Raises InputError: the name is unknown, or is another machine's.
    """
    try:
        address = resolve(name)
        kind, _, _, _, target = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.bind(target)
    except OSError as error:
        why = error.strerror or str(error)
        expected = f"an address of this machine ({why}); leave it out, and it is found out"
        raise InputError(source, name, expected) from error
    return address
