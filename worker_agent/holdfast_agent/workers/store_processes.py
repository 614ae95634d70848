"""Store processes of this node: one that waits for a round, and one of the running round."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable

from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.protocol import (
    PrepareStoreCommand,
    ReleaseStore,
    StoreExited,
    StoreReady,
)
from holdfast_wire.messages import StorePrepared

log = logging.getLogger(__name__)

STORE_SECONDS = 60.0
"""A store takes milliseconds to start, or the import of torch if that is not preloaded."""


@dataclasses.dataclass(slots=True)
class Store:
    """One store process."""

    store_id: str
    prepared: StorePrepared | None
    """Report to the master; None: the store is being started."""
    asked_at: float
    """Monotonic time since which the master waits for a store, s."""


class NodeStores:
    """At most one waiting store and one in use."""

    def __init__(
        self,
        process: Zygote,
        host: str,
        report: Callable[[StorePrepared], None],
        lost: Callable[[str, str], None],
    ) -> None:
        """Let stores listen on this node's IP `host`.

        lost: Called with the id of a store that ended by itself, and the reason.
        """
        self._process = process
        self._host = host
        self._report, self._lost = report, lost
        self._waiting: Store | None = None
        self._used: Store | None = None
        self._has_zygote = True

    @property
    def prepared(self) -> StorePrepared | None:
        """Store that waits for a round, for the hello."""
        return self._waiting.prepared if self._waiting is not None else None

    def prepare(self, store_id: str) -> None:
        """Start a store process, or report again the one that exists."""
        waiting = self._waiting
        if waiting is not None and waiting.store_id == store_id:
            if waiting.prepared is not None:
                self._report(waiting.prepared)
            return
        asked_at = time.monotonic()
        if waiting is not None:
            self._release(waiting.store_id)
            asked_at = asked_at if waiting.prepared else waiting.asked_at
        self._waiting = Store(store_id, None, asked_at)
        if self._has_zygote:
            self._process.send(PrepareStoreCommand(store_id, self._host))

    def use(self, store_id: str, linger_seconds: float) -> bool:
        """Begin a round on this store; release the store of the round before a little later.

        store_id: empty if another agent hosts the round's store.

        Returns False if this node is to host a store that has ended.
        """
        used, self._used = self._used, None
        if used is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(linger_seconds, self._release, used.store_id)
        if self._waiting is not None and self._waiting.store_id == store_id:
            self._used, self._waiting = self._waiting, None
        return not store_id or self._used is not None

    def stuck(self, now: float, ready_at: float) -> str:
        """Return why the zygote, ready since `ready_at`, is stuck; empty: it is not (`now`: s)."""
        waiting = self._waiting
        if waiting is None or waiting.prepared is not None:
            return ""
        late = now - max(waiting.asked_at, ready_at) > STORE_SECONDS
        return f"the zygote has not started store {waiting.store_id}" if late else ""

    def _release(self, store_id: str) -> None:
        if self._has_zygote:
            self._process.send(ReleaseStore(store_id))

    def on_zygote_lost(self, reason: str) -> None:
        """Note that the zygote is gone with its stores; a store that was ordered is still owed."""
        self._has_zygote = False
        for store in (self._waiting, self._used):
            if store is not None and store.prepared is not None:
                self.on_exited(StoreExited(store.store_id, reason))

    def on_zygote_restarted(self) -> None:
        """Note that another zygote takes commands."""
        self._has_zygote = True
        if self._waiting is not None:
            self._process.send(PrepareStoreCommand(self._waiting.store_id, self._host))

    def on_ready(self, event: StoreReady) -> None:
        """Note that a store process listens."""
        waiting = self._waiting
        if waiting is None or waiting.store_id != event.store_id:
            return
        waiting.prepared = StorePrepared(store_id=event.store_id, host=self._host, port=event.port)
        self._report(waiting.prepared)

    def on_exited(self, event: StoreExited) -> None:
        """Note that a store process is gone; report it with its reason, unless it was released."""
        if event.reason:
            log.error("store %s ended: %s", event.store_id, event.reason)
            gone = StorePrepared(store_id=event.store_id, host=self._host, error=event.reason)
            self._report(gone)
            self._lost(event.store_id, event.reason)
        if self._waiting is not None and self._waiting.store_id == event.store_id:
            self._waiting = None
        if self._used is not None and self._used.store_id == event.store_id:
            self._used = None
