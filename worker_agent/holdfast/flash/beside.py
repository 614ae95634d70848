"""Work that runs beside the training step, and is joined before what it reads may change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any


class Beside:
    """A copy that runs beside forward and backward."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Begin."""
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
        """Wait for its end; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class Overlap:
    """At most one copy beside the training, joined before any optimizer's next step."""

    def __init__(self, waited: Callable[[int], None]) -> None:
        """Take what hears for how many nanoseconds training stood."""
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
        """Wait for the copy that runs, if one does; raises what it raised."""
        copying, self._copying = self._copying, None
        if copying is not None:
            began = monotonic_ns()
            copying.join()
            self._waited(monotonic_ns() - began)

    def close(self) -> None:
        """Watch the optimizers no longer."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
