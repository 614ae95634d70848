"""Loopback address of this machine, for processes that reach each other there.

Does not belong here: addresses for other machines.
"""

from __future__ import annotations

import socket
from typing import Final

IPV4: Final = "127.0.0.1"
IPV6: Final = "::1"


def address() -> str:
    """The loopback address: IPv6's if this machine has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((IPV4, 0))
        except OSError:
            return IPV6
    return IPV4


def bracketed(host: str) -> str:
    """An address as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
