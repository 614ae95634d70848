"""Process group from a store of its own, beside the default group and across its borders.

Belongs here: the calls of torch's private part that this takes. Does not belong here: who meets
(`members`), and the collectives (`group`).

`torch.distributed.new_group` makes groups of ranks of one default group only. Under elastic local
SGD the default group is a replica's own, and a sync group has ranks of many. So the group is made
by the function that `init_process_group` itself uses, and entered in torch's tables with its rank.

"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.sync.group import SyncError

if TYPE_CHECKING:
    import torch.distributed as dist

_log: Final = logging.getLogger("holdfast")
POLL: Final = 0.002
"""Seconds between two looks while a rank waits for others to meet: far below the 50 ms that a lost
replica may cost the others, and a few per cent of a core."""
CONNECT: Final = 5.0
"""Seconds in which ranks that have all arrived connect to one another: milliseconds on a quiet
machine, a second or two where cores are oversubscribed."""


class ChangingGroup:
    """The group that a rank has with whoever is there: another one after each change.

    torch ends a gloo group when all its collectives have ended, and one that waits for a frozen
    rank ends at its deadline. Then each connection takes up to 10 ms, since gloo's loop looks that
    often. So each old group ends in a thread of its own, and no change waits for it.
    """

    def __init__(self, backend: str) -> None:
        """Take the backend, as `init_process_group` does."""
        self._backend = backend
        self._group: Any = None

    def form(
        self, store: dist.Store, *, name: str, rank: int, size: int, timeout: float
    ) -> dist.ProcessGroup:
        """Return a group of `size` processes that meet in the store; each calls this.

        Args:
            store: Where they meet; no other group has the same name in it.
            name: Of the group, new in this process.
            rank: Of this process in the group.
            size: Of the group.
            timeout: Seconds until a collective has failed.

        Raises:
            SyncError: a process did not come in time, or went while they connected.
        """
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        self.leave()
        make: Any = c10d._new_process_group_helper  # noqa: SLF001 - new_group stays in one world
        limit = timedelta(seconds=CONNECT)
        try:
            group, _ = make(size, rank, [], self._backend, store, group_name=name, timeout=limit)
            c10d._world.pg_group_ranks[group] = {dist.get_rank(): rank}  # noqa: SLF001 - as above
        except RuntimeError as error:
            raise SyncError(
                f"group {name} of {size}: rank {rank} could not connect in {CONNECT:g} s; wait for "
                f"the next roster ({error})"
            ) from error
        _set_timeout(group, timeout)
        self._group = group
        made: dist.ProcessGroup = group
        return made

    def leave(self) -> None:
        """End the group: ranks that wait for this one in a collective fail, once its own have."""
        if self._group is None:
            return
        left = [self._group]
        self._group = None
        # A daemon: what a frozen rank holds must not hold this process's end.
        threading.Thread(target=_end, args=(left,), name="holdfast-close", daemon=True).start()


def watched_store(store: dist.Store, is_lost: Callable[[], bool]) -> dist.Store:
    """Return the store for ranks that connect: a wait for one that is lost ends at once.

    Args:
        store: Where they meet.
        is_lost: Asked while a rank waits for another's address.
    """
    made: dist.Store = _watched_class()(store, is_lost)
    return made


@functools.cache
def _watched_class() -> Any:
    import torch.distributed as dist

    class WatchedStore(dist.Store):
        """A store that passes calls on, and whose waits look at the members."""

        def __init__(self, store: Any, is_lost: Callable[[], bool]) -> None:
            super().__init__()
            self._store, self._is_lost = store, is_lost

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            deadline = time.monotonic() + (timeout.total_seconds() if timeout else CONNECT)
            while not self._store.check(keys):
                if self._is_lost() or time.monotonic() > deadline:
                    raise SyncError(f"{keys}: a rank did not come, or is lost")
                time.sleep(POLL)

    def passing(name: str) -> Callable[..., Any]:
        return lambda self, *given: getattr(self._store, name)(*given)

    for name in ("set", "get", "check", "add", "compare_set", "delete_key", "multi_get"):
        setattr(WatchedStore, name, passing(name))
    return WatchedStore


def _end(left: list[Any]) -> None:
    """End a group, whose last reference is in the list: its destructor waits for collectives."""
    import torch.distributed as dist

    try:
        dist.destroy_process_group(left.pop())
    except (RuntimeError, ValueError) as error:
        _log.warning("local SGD: a group that has failed was not ended: %s", error)


def _set_timeout(group: Any, seconds: float) -> None:
    """Set the deadline of collectives; that of connecting is shorter."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    limit, public = timedelta(seconds=seconds), getattr(dist, "set_timeout", None)
    if public is not None:
        public(limit, group)
        return
    private: Any = c10d._set_pg_timeout  # noqa: SLF001 - torch before 2.15 has no other
    private(limit, group)
