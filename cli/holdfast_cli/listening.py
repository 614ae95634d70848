"""Reading a gRPC stream on a thread of its own, so that Ctrl-C cannot break gRPC's locks.

Python raises KeyboardInterrupt in the main thread between any two of its instructions, also just
after gRPC has taken a lock there and before it knows so. The lock is then held for good, and
closing the channel waits for it for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any, Final

import grpc

_AHEAD: Final = 64
"""Messages that are read before they are asked for; beyond them the server has to wait."""
_LOOK_S: Final = 0.2
_END_S: Final = 1.0


class Listening:
    """The messages of one call, in order. Close it."""

    def __init__(self, call: Any) -> None:
        """Begin to read; `call` is what a stub's method returned."""
        self._call = call
        self._heard: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True, name="listening")
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        """Yield messages until the server ends the stream; raises `grpc.RpcError`."""
        while (message := self._heard.get()) is not None:
            if isinstance(message, grpc.RpcError):
                raise message
            yield message

    def close(self) -> None:
        """End the call, from either side."""
        self._closed.set()
        self._call.cancel()
        self._thread.join(_END_S)

    def _read(self) -> None:
        try:
            for message in self._call:
                self._hand_over(message)
        except grpc.RpcError as error:
            self._hand_over(error)
        else:
            self._hand_over(None)

    def _hand_over(self, message: Any) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._heard.put(message, timeout=_LOOK_S)
                return
