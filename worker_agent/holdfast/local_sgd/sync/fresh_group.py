"""Process group from a store of its own, beside the default group and across its borders.

Belongs here: the one call of torch's private part that this takes. Does not belong here: who meets
(`members`), and the collectives (`group`).

`torch.distributed.new_group` makes groups of ranks of one default group only. Under elastic local
SGD the default group is a replica's own, and a sync group has ranks of many. So the group is made
by the function that `init_process_group` itself uses, and entered in torch's tables with its rank.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.sync.group import SyncError

if TYPE_CHECKING:
    import torch.distributed as dist

CONNECT: Final = 5.0
"""Seconds in which ranks that have all arrived connect to one another: milliseconds on a quiet
machine, a second or two where cores are oversubscribed."""


def fresh_group(
    store: dist.Store, *, name: str, rank: int, size: int, backend: str, timeout: float
) -> dist.ProcessGroup:
    """Return a group of `size` processes that meet in the store; each calls this.

    Args:
        store: Where they meet; no other group has the same name in it.
        name: Of the group, new in this process.
        rank: Of this process in the group.
        size: Of the group.
        backend: As `init_process_group` takes it.
        timeout: Seconds until a collective has failed.

    Raises:
        SyncError: a process did not come in time, or went while they connected.
        RuntimeError: torch.distributed has no default group.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed has no default group: call init_process_group for the ranks of "
            "this replica first"
        )
    make: Any = c10d._new_process_group_helper  # noqa: SLF001 - new_group stays in one world
    try:
        group, _ = make(
            size, rank, [], backend, store, group_name=name, timeout=timedelta(seconds=CONNECT)
        )
    except RuntimeError as error:
        raise SyncError(
            f"group {name} of {size}: rank {rank} could not connect in {CONNECT:g} s; wait for "
            f"the next roster ({error})"
        ) from error
    tables: Any = c10d._world  # noqa: SLF001 - as above
    tables.pg_group_ranks[group] = {dist.get_rank(): rank}
    set_timeout: Any = c10d._set_pg_timeout  # noqa: SLF001 - connecting has a shorter one
    set_timeout(timedelta(seconds=timeout), group)
    made: dist.ProcessGroup = group
    return made
