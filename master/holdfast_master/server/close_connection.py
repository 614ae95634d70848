"""Ending a call whose peer may have stopped reading.

gRPC for asyncio cannot cancel a write: the status that is to follow is refused as one operation too
many, and the call stays open for ever. So a write under way is waited for, and where the peer does
not take it, its connection is closed below gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from pathlib import Path
from urllib.parse import unquote

from holdfast_master.server.rpc import Context

log = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
"""How long a write that is under way may take once its call is to end."""
_PEER = re.compile(r"ipv[46]:\[?([^\]]+?)\]?:(\d+)")

Address = tuple[str, int]


async def finish_writing(write: asyncio.Future[None], context: Context) -> None:
    """Wait for the end of a write whose source has run dry.

    Raises:
        asyncio.CancelledError: the peer did not read: connection closed, the call is over.
    """
    try:
        done, _ = await asyncio.wait({write}, timeout=WRITE_SECONDS)
        if done:
            return
        peer = context.peer()
        closed = await asyncio.to_thread(cut, peer)
        log.warning(
            "the peer does not read: connection closed", extra={"peer": peer, "found": closed}
        )
        await asyncio.wait({write}, timeout=WRITE_SECONDS)
    finally:
        write.cancel()
    raise asyncio.CancelledError


def cut(peer: str) -> bool:
    """Close the connection from `peer`, as gRPC names it; return whether there was one."""
    match = _PEER.fullmatch(unquote(peer))
    if match is None:
        return False
    wanted = _address(match[1], int(match[2]))
    found = False
    for name in Path("/proc/self/fd").iterdir():
        # Most are no sockets, and one may be closed while this runs.
        with (
            contextlib.suppress(OSError),
            socket.fromfd(int(name.name), socket.AF_INET6, socket.SOCK_STREAM) as connection,
        ):
            other = connection.getpeername()
            if isinstance(other, tuple) and _address(other[0], other[1]) == wanted:
                connection.shutdown(socket.SHUT_RDWR)
                found = True
    return found


def _address(host: str, port: int) -> Address:
    # A socket that listens on both families names IPv4 peers as IPv6 ones.
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port
