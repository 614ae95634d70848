"""Copy that overlaps with training, and is joined before its source may change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any


class Beside:
    """A copy on a thread of its own, during forward and backward."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Start the thread."""
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-copy")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self._error = error

    @property
    def is_done(self) -> bool:
        """True when `join` need not wait."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the copy; raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class Overlap:
    """At most one copy at a time, joined before the next step of any optimizer."""

    def __init__(self, waited: Callable[[int], None]) -> None:
        """Take the function that gets the nanoseconds for which training waited."""
        self._waited = waited
        self._copying: Beside | None = None
        self._hook: Any = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin a copy; the one before was joined."""
        self._watch_optimizers()
        self._copying = Beside(work)

    def _watch_optimizers(self) -> None:
        if self._hook is None:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._hook = register_optimizer_step_pre_hook(lambda *_: self.join())

    def join(self) -> None:
        """Wait for the copy, if one runs; raises its error."""
        copying, self._copying = self._copying, None
        if copying is not None:
            began = monotonic_ns()
            copying.join()
            self._waited(monotonic_ns() - began)

    def close(self) -> None:
        """Stop watching the optimizers."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
