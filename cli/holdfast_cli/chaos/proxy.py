"""A TCP proxy on loopback between one agent and the master, which can be cut in either direction.

Belongs here: bytes and connections. Does not belong here: the time of a cut, and its reason.

Bytes that are held back stay in place, as in a partitioned network: the sender's buffers fill, and
the bytes arrive when the partition heals.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_CONNECT_SECONDS = 5.0
_CHUNK = 65536


class Proxy:
    """Forwards each connection to the address of `target()`; its threads end with the process."""

    def __init__(self, target: Callable[[], tuple[str, int] | None]) -> None:
        """Listen on a free port of 127.0.0.1."""
        self._target = target
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.accepted = 0
        """Number of connections that were forwarded."""
        self._up, self._down = threading.Event(), threading.Event()
        """Set: bytes pass in this direction."""
        self.heal()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="chaos-proxy", daemon=True).start()

    def close(self) -> None:
        """Stop listening and reset every connection."""
        self.heal()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Reset every connection; new ones are accepted."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def refuse(self) -> None:
        """Reset every connection, and refuse new ones until `heal`."""
        self._refuses = True
        self.reset()

    def hold(self, *, up: bool, down: bool) -> None:
        """Hold back bytes up to the master, or down to the agent, until `heal`."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def heal(self) -> None:
        """Let everything through."""
        self._refuses = False
        self._up.set()
        self._down.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._refuses:
                    near.close()
                    continue
                self.accepted += 1
                threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            self._up.wait()
            self._down.wait()
            target = self._target()
            if target is None:
                return
            with socket.create_connection(target, timeout=_CONNECT_SECONDS) as far:
                far.settimeout(None)
                self._join(near, far)

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        with self._lock:
            self._open |= {near, far}
        back = threading.Thread(target=_pump, args=(far, near, self._down), daemon=True)
        back.start()
        _pump(near, far, self._up)
        back.join()
        with self._lock:
            self._open -= {near, far}


def _pump(source: socket.socket, sink: socket.socket, free: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = source.recv(_CHUNK)
            # The end of the stream waits too: a partition hides that as well.
            free.wait()
            if not data:
                break
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
