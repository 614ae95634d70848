"""The port of a job's metrics, with real connections: few clients, and none for long."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from holdfast_master.metrics import http_server
from holdfast_master.metrics.http_server import MOST_CLIENTS, MetricsServer


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[MetricsServer]:
    """A server with one counter."""
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    made = MetricsServer(request.param, 0, registry)
    yield made
    made.close()


def _address(server: MetricsServer) -> tuple[str, int]:
    return str(server.server_address[0]), server.server_port


def _connect(server: MetricsServer, words: bytes = b"") -> socket.socket:
    made = socket.create_connection(_address(server), timeout=5.0)
    made.sendall(words)
    return made


def _hung_up(client: socket.socket) -> bool:
    """Return True if the server ends a connection within 5 s."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def _scrape(server: MetricsServer) -> str:
    asking = http.client.HTTPConnection(*_address(server), timeout=5.0)
    asking.request("GET", "/metrics")
    text = asking.getresponse().read().decode()
    asking.close()
    return text


@pytest.mark.parametrize("words", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
def test_a_client_that_says_nothing_more_is_hung_up_on(
    server: MetricsServer,
    words: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It would keep a thread and a file of the master for ever. No line is written for it."""
    assert http_server._Handler.timeout == http_server.CLIENT_SECONDS <= 10.0
    monkeypatch.setattr(http_server._Handler, "timeout", 0.2)
    before = threading.active_count()
    with _connect(server, words) as client:
        assert _hung_up(client)
    assert "things_total 1.0" in _scrape(server)
    _until_threads(before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("server", ["127.0.0.1"], indirect=True)
def test_many_clients_that_say_nothing_keep_no_scrape_out(server: MetricsServer) -> None:
    """The oldest has to go for each one more: threads and files have a bound."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_connect(server)) for _ in range(3 * MOST_CLIENTS)]
        assert all(_hung_up(one) for one in clients[: 2 * MOST_CLIENTS])
        _until_threads(before + MOST_CLIENTS)
        assert "things_total 1.0" in _scrape(server)
        assert _hung_up(clients[2 * MOST_CLIENTS]), "it made room for the scrape"
        newest = clients[-1]
        newest.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert newest.recv(12) == b"HTTP/1.0 200", "the others are served"
    _until_threads(before)


def _until_threads(most: int) -> None:
    """Wait until there are at most so many threads."""
    deadline = time.monotonic() + 5.0
    while threading.active_count() > most:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)
