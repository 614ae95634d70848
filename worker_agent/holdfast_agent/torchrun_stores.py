"""The TCPStores of `torchrun --rdzv-backend=holdfast`: those served here, those of other nodes.

Belongs here: which store a round has, reaching it, and whether every torchrun of the round is in
it. Does not belong here: the rounds (`torchrun_handler`). torch is imported inside functions.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast_agent.torchrun_node import Place

log = logging.getLogger(__name__)

KEPT_STORES = 2
"""The running round's and the next one's."""
ANSWER_SECONDS = 60.0
"""For an answer of a store that another node serves."""
CONNECT_SECONDS = 5.0
"""For one try to reach it; between two tries the master is heard."""

_THERE = "holdfast/there/"
_ALL_THERE = "holdfast/all_there"


class TorchrunStores:
    """The stores that this torchrun serves or uses. `serve` may be called in another thread."""

    def __init__(self, own: str) -> None:
        """Nothing is served yet. own: this node's IP."""
        self._own = own
        self._served: OrderedDict[str, Any] = OrderedDict()
        self._reached: dict[int, Any] = {}
        """By round: only the node that serves a store is told its id."""

    def serve(self, store_id: str) -> int:
        """Start a store and return its port."""
        from torch.distributed import TCPStore

        store = TCPStore(self._own, 0, is_master=True, wait_for_workers=False)
        self._served[store_id] = store
        while len(self._served) > KEPT_STORES:
            self._served.popitem(last=False)
        return int(store.port)

    def of(self, place: Place) -> Any:
        """Return the store of a round; raises torch's DistError, a RuntimeError."""
        from torch.distributed import PrefixStore

        return PrefixStore(f"holdfast/{place.round}", self._store(place))

    def all_there(self, place: Place) -> bool:
        """Say that this torchrun is in the round, and return whether all of it are.

        Group rank 0 looks for all, the others for its word: one key for each node in all.
        """
        world = place.assignment
        everyone = [f"{_THERE}{rank}" for rank in range(world.group_world_size)]
        try:
            store = self.of(place)
            store.set(f"{_THERE}{world.group_rank}", b"1")
            there = store.check(everyone if world.group_rank == 0 else [_ALL_THERE])
            if there and world.group_rank == 0:
                store.set(_ALL_THERE, b"1")
        except RuntimeError as error:  # its host has ended, or cannot be reached now
            log.debug("the store of round %d: %s", place.round, error)
            self._reached.clear()
            return False
        return bool(there)

    def _store(self, place: Place) -> Any:
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
