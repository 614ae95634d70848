"""HTTP server of a job's metrics, which anybody may connect to: few connections, none for long.

prometheus-client's own keeps a thread and a file for each client, however long it says nothing.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

_log = logging.getLogger(__name__)
CLIENT_SECONDS: Final = 10.0
"""Longest wait for a client's next bytes, s: Prometheus sends its request at once."""
MOST_CLIENTS: Final = 16
"""Connections at once; one more takes the place of the oldest."""
_ROOM_SECONDS: Final = 0.2
"""Longest wait for the end of the oldest connection, s."""


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log nothing: a scrape is no news."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry from a thread of its own, and each client from another."""

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Begin to serve; port 0: any.

        Raises:
            OSError: The port cannot be had.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._open: dict[Any, None] = {}
        """Connections, the oldest first."""
        self._changed = threading.Condition()
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; blocks for up to half a second."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a new thread, or hang up on it if there is no room."""
        with self._changed:
            if len(self._open) >= MOST_CLIENTS:
                with contextlib.suppress(OSError):
                    next(iter(self._open)).shutdown(socket.SHUT_RDWR)
                self._changed.wait_for(lambda: len(self._open) < MOST_CLIENTS, _ROOM_SECONDS)
            room = len(self._open) < MOST_CLIENTS
            if room:
                self._open[request] = None
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note a client that said nothing in time, or went: its own matter."""
        _log.debug("metrics: %s", client_address, exc_info=True)
