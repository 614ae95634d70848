"""Work that runs beside the training step, and is joined before what it reads may change."""

from __future__ import annotations

import threading
from collections.abc import Callable


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

    def join(self) -> None:
        """Wait for its end; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
