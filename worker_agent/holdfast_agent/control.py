"""Commands to the zygote from inside the event loop, where its loss must not raise.

The loss itself arrives as a `ZygoteExited` event and ends the agent; a command that crosses it is
logged and dropped here, in one place.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator

from holdfast_agent import zygote

log = logging.getLogger(__name__)


class Control:
    """The zygote's commands, without ZygoteError."""

    def __init__(self, process: zygote.Zygote) -> None:
        """Wrap a started zygote."""
        self._process = process
        self.dropped = 0
        """Commands that found no zygote."""

    def spawn(self, spawn_round: zygote.SpawnRound) -> None:
        """Start a round's workers."""
        with self._guard("spawn"):
            self._process.spawn(spawn_round)

    def kill_round(
        self, number: int, sig: int = signal.SIGKILL, grace_seconds: float = 0.0
    ) -> None:
        """End a round's processes."""
        with self._guard("kill"):
            self._process.kill_round(number, sig, grace_seconds)

    def dump_stacks(self, number: int) -> None:
        """Have the stacks of a round written."""
        with self._guard("dump stacks"):
            self._process.dump_stacks(number)

    def prepare_store(self, store_id: str, host: str) -> None:
        """Start a store process."""
        with self._guard("prepare store"):
            self._process.prepare_store(store_id, host)

    def release_store(self, store_id: str) -> None:
        """End a store process."""
        with self._guard("release store"):
            self._process.release_store(store_id)

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except zygote.ZygoteError as error:
            self.dropped += 1
            log.warning("%s: no zygote: %s", what, error)
