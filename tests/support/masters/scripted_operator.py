"""An operator of one job: sends a spec and what it sees of pods, keeps what it is told."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from holdfast_wire import codec
from holdfast_wire.messages import SyncRequest, SyncResponse
from house.patience import patience


class ScriptedOperator:
    """One Sync stream."""

    def __init__(self, made: grpc.Channel) -> None:
        """Open the stream; the first `send` must be a spec."""
        self.told: list[Any] = []
        self.error: grpc.RpcError | None = None
        self.over = False
        self._sending: queue.Queue[bytes | None] = queue.Queue()
        stub: Any = made.stream_stream("/holdfast.v1.OperatorService/Sync")
        self._call: Any = stub(self._requests())
        self._thread = threading.Thread(target=self._read, name="operator", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """Send one message."""
        self._sending.put(codec.encode(SyncRequest(message=message)))

    def of(self, kind: type) -> list[Any]:
        """Return what was told so far of one kind."""
        return [message for message in self.told if isinstance(message, kind)]

    def wait_for(self, look: Callable[[], Any], seconds: float = 20.0 * patience()) -> Any:
        """Return what `look()` gives once it is true."""
        end = time.monotonic() + seconds
        while not (seen := look()):
            assert time.monotonic() < end, f"not within {seconds} s; got {self.told[-5:]}"
            time.sleep(0.005)
        return seen

    def close(self) -> None:
        """Vanish."""
        self._sending.put(None)
        self._call.cancel()
        self._thread.join(timeout=10)

    def _requests(self) -> Iterator[bytes]:
        while (data := self._sending.get()) is not None:
            yield data

    def _read(self) -> None:
        try:
            for data in self._call:
                self.told.append(codec.decode(SyncResponse, data).message)
        except grpc.RpcError as error:
            self.error = error
        finally:
            self._sending.put(None)  # or gRPC's thread for this stream waits for ever
        self.over = True
