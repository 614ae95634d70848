"""Loopback address of this machine, for processes that reach each other there.

Does not belong here: addresses for other machines.
"""

from __future__ import annotations

import socket
from typing import Final

IPV4: Final = "127.0.0.1"
IPV6: Final = "::1"


def address() -> str:
    """Return the loopback address: IPv6's if this machine has no other.

    Returns:
        `127.0.0.1` or `::1`.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((IPV4, 0))
        except OSError:
            return IPV6
    return IPV4


def bracketed(host: str) -> str:
    """Return an address as it stands before a port.

    Args:
        host: An IPv4 or IPv6 address, or a name.

    Returns:
        The address, in brackets if it is IPv6.
    """
    return f"[{host}]" if ":" in host else host
