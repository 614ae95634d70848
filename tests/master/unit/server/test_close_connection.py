"""Closing a connection below gRPC: exactly the one that was named."""

from __future__ import annotations

import socket

import pytest

from holdfast_master.server.close_connection import cut


@pytest.mark.parametrize(
    ("listen", "dial", "prefix"),
    [("127.0.0.1", "127.0.0.1", "ipv4:"), ("::", "127.0.0.1", "ipv4:"), ("::1", "::1", "ipv6:")],
    ids=["IPv4", "IPv4 on a socket for both", "IPv6"],
)
def test_one_connection_is_closed_and_its_neighbour_stays(
    listen: str, dial: str, prefix: str
) -> None:
    """Whatever family the listening socket has."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    both = listen == "::"
    with socket.create_server((listen, 0), family=family, dualstack_ipv6=both) as server:
        port = server.getsockname()[1]
        with (
            socket.create_connection((dial, port), timeout=5) as client,
            server.accept()[0] as accepted,
            socket.create_connection((dial, port), timeout=5) as neighbour,
            server.accept()[0] as kept,
        ):
            host = f"%5B{dial}%5D" if ":" in dial else dial
            assert cut(f"{prefix}{host}:{client.getsockname()[1]}")
            assert client.recv(1) == b""
            assert accepted.recv(1) == b""
            kept.sendall(b"x")
            assert neighbour.recv(1) == b"x"


@pytest.mark.parametrize("peer", ["", "unix:/x", "ipv4:127.0.0.1:1", "ipv4:nonsense"])
def test_a_peer_that_is_not_there_changes_nothing(peer: str) -> None:
    """It may have left meanwhile, or not be on TCP at all."""
    assert not cut(peer)
