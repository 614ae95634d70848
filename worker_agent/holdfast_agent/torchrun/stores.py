"""TCPStores of `torchrun --rdzv-backend=holdfast`: its own, and those of other nodes.

Belongs here: the store of a round, the connection to it, and the check that every torchrun of the
round is in it. Does not belong here: the rounds (`handler`). torch is imported inside functions.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast_agent.torchrun.node import RoundAssignment

log = logging.getLogger(__name__)

KEPT_STORES = 2
"""Stores kept: the running round's and the next one's."""
ANSWER_SECONDS = 60.0
"""Seconds for an answer of another node's store."""
CONNECT_SECONDS = 5.0
"""Seconds for one try to reach it; between two tries the master's messages are handled."""

_THERE = "holdfast/there/"
_ALL_THERE = "holdfast/all_there"


class TorchrunStores:
    """Stores that this torchrun serves or uses. `serve` may be called on another thread."""

    def __init__(self, own: str) -> None:
        """Serve nothing yet. own: this node's IP."""
        self._own = own
        self._served: OrderedDict[str, Any] = OrderedDict()
        self._reached: dict[int, Any] = {}
        """Round → store; only the node that serves a store knows its id."""

    def serve(self, store_id: str) -> int:
        """Start a store and return its port."""
        from torch.distributed import TCPStore

        store = TCPStore(self._own, 0, is_master=True, wait_for_workers=False)
        self._served[store_id] = store
        while len(self._served) > KEPT_STORES:
            self._served.popitem(last=False)
        return int(store.port)

    def of(self, place: RoundAssignment) -> Any:
        """Return the store of a round; raises torch's DistError, a RuntimeError."""
        from torch.distributed import PrefixStore

        return PrefixStore(f"holdfast/{place.round}", self._store(place))

    def all_there(self, place: RoundAssignment) -> bool:
        """Announce this torchrun in the round; return True if all torchruns of the round are there.

        Group rank 0 checks all, the others wait for its result: one key per node in all.
        """
        world = place.assignment
        everyone = [f"{_THERE}{rank}" for rank in range(world.group_world_size)]
        try:
            store = self.of(place)
            store.set(f"{_THERE}{world.group_rank}", b"1")
            there = store.check(everyone if world.group_rank == 0 else [_ALL_THERE])
            if there and world.group_rank == 0:
                store.set(_ALL_THERE, b"1")
        except RuntimeError as error:  # its host has ended, or is not reachable now
            log.debug("the store of round %d: %s", place.round, error)
            self._reached.clear()
            return False
        return bool(there)

    def _store(self, place: RoundAssignment) -> Any:
        from torch.distributed import TCPStore

        world = place.assignment
        known = self._served.get(world.store_id) or self._reached.get(place.round)
        if known is not None:
            return known
        limit = timedelta(seconds=CONNECT_SECONDS)
        made = TCPStore(world.store_host, world.store_port, is_master=False, timeout=limit)
        made.set_timeout(timedelta(seconds=ANSWER_SECONDS))
        self._reached = {place.round: made}
        return made
