"""The store processes of this node: one that waits for a round to come, one of the running round.

What a store process is, is `zygote.store`; when one is needed is the master's decision.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from holdfast_agent import zygote
from holdfast_agent.control import Control
from holdfast_wire.messages import StorePrepared

log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Store:
    """One store process."""

    store_id: str
    prepared: StorePrepared | None = None
    """What was told to the master; None: it is being started."""


class Stores:
    """At most one waiting store and one in use."""

    def __init__(
        self, control: Control, host: str, report: Callable[[StorePrepared], None]
    ) -> None:
        """Stores listen on the IP `host`; `report` tells the master."""
        self._control = control
        self._host = host
        self._report = report
        self._waiting: Store | None = None
        self._used: Store | None = None

    @property
    def prepared(self) -> StorePrepared | None:
        """The store that waits for a round, for the hello."""
        return self._waiting.prepared if self._waiting is not None else None

    def prepare(self, store_id: str) -> None:
        """Start a store process, or tell again of the one that is there."""
        waiting = self._waiting
        if waiting is not None and waiting.store_id == store_id:
            if waiting.prepared is not None:
                self._report(waiting.prepared)
            return
        if waiting is not None:
            self._control.release_store(waiting.store_id)
        self._waiting = Store(store_id)
        self._control.prepare_store(store_id, self._host)

    def use(self, store_id: str, linger_seconds: float) -> None:
        """A round on this store begins; the one of the round before is released a little later.

        store_id: empty where another agent hosts the round's store.
        """
        used, self._used = self._used, None
        if used is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(linger_seconds, self._control.release_store, used.store_id)
        if self._waiting is not None and self._waiting.store_id == store_id:
            self._used, self._waiting = self._waiting, None

    def on_ready(self, event: zygote.StoreReady) -> None:
        """A store process listens."""
        waiting = self._waiting
        if waiting is None or waiting.store_id != event.store_id:
            return
        waiting.prepared = StorePrepared(store_id=event.store_id, host=self._host, port=event.port)
        self._report(waiting.prepared)

    def on_exited(self, event: zygote.StoreExited) -> None:
        """A store process is gone: news where there is a reason, else it was released."""
        if event.reason:
            log.error("store %s ended: %s", event.store_id, event.reason)
            gone = StorePrepared(store_id=event.store_id, host=self._host, error=event.reason)
            self._report(gone)
        if self._waiting is not None and self._waiting.store_id == event.store_id:
            self._waiting = None
        if self._used is not None and self._used.store_id == event.store_id:
            self._used = None
