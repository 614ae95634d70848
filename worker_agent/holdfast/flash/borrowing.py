"""Reads other nodes' memory for a keeper's service, beside everything else that it does.

Belongs here: the threads that wait for other nodes, and when what was read is given up. Does not
belong here: what is read and how it is verified (`gathering`), who starts from it (`led`).
All methods run on the service's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from holdfast.flash.decide.slots import Version
from holdfast.flash.gathering import Gatherer, GatherError, Lent, Source
from holdfast.flash.labour import failure_of

Then = Callable[[str], None]
"""Hears on the service's thread why it failed; empty: it did not."""


class Borrower:
    """What one node reads of others, one round after another."""

    def __init__(self, gatherer: Gatherer, post: Callable[[Callable[[], None]], None]) -> None:
        """Take who reads, and what has something done by the service's thread."""
        self._gatherer, self._post = gatherer, post
        self.under_way = 0
        """Threads that read other nodes' memory."""

    @property
    def lent(self) -> Mapping[int, Lent]:
        """What was described, by rank."""
        return self._gatherer.lent

    def has(self, number: int, version: Version) -> bool:
        """Tell whether a round's parts of a version are described."""
        return self._gatherer.has(number, version)

    def describe(
        self, number: int, version: Version, sources: Iterable[Source], then: Then
    ) -> None:
        """Learn what the parts consist of."""
        self._beside(lambda: self._gatherer.describe(number, version, sources), then)

    def fetch(self, items: Iterable[tuple[int, int]], then: Then) -> None:
        """Have items read, by rank and index in its table."""
        self._beside(lambda: self._gatherer.fetch(items), then)

    def _beside(self, work: Callable[[], None], then: Then) -> None:
        """Do on a thread of its own what waits for other nodes.

        The labour's thread may be what the other node waits for.
        """

        def end(error: str) -> None:
            self.under_way -= 1
            then(error)

        def run() -> None:
            error = failure_of("reading other nodes' memory", work, GatherError)
            self._post(lambda: end(error))

        self.under_way += 1
        threading.Thread(target=run, name="holdfast-gather", daemon=True).start()

    def give_up(self) -> None:
        """Let go of what was read, unless something is being read; ranks keep what they mapped."""
        if not self.under_way:
            self._gatherer.close()
