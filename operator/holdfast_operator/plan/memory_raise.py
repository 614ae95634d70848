"""More memory for the next pod of a worker that ran out of it: `failurePolicy.memory`. Pure.

A limit follows from the one that was too small, and is never lowered. So the same incident, told
again or after a restart of the operator, raises nothing twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast_operator.plan.inputs import Look
from holdfast_operator.plan.pods import PodSlot, Role
from holdfast_operator.spec.job import MemoryPolicy
from holdfast_operator.spec.quantities import MEBIBYTE, in_mebibytes, to_bytes

FIELD: Final = "raisedMemory"
"""Name of the list in the status."""
_WHOLE: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RaisedMemory:
    """The memory limit of the next pod of a node rank, with the one that was too small."""

    node_rank: int
    too_small: int
    """Bytes."""
    limit: int
    """Bytes."""
    exhausted: bool = False
    """True: a pod with the most that is allowed ran out of it, too."""


def after(
    known: RaisedMemory | None, node_rank: int, ran_out_at: Iterable[int], policy: MemoryPolicy
) -> RaisedMemory | None:
    """Return the limit of a node rank's next pod; None: its template's.

    `ran_out_at`: limits, in bytes, with which a pod of it ran out of memory; in any order and as
    often as they are told.
    """
    for limit in sorted(filter(None, ran_out_at)):
        raised = min(_more(limit, policy.raise_percent), policy.most_bytes)
        if raised <= limit:
            known = known or RaisedMemory(node_rank=node_rank, too_small=limit, limit=limit)
            known = dataclasses.replace(known, exhausted=True)
        elif known is None or raised > known.limit:
            known = RaisedMemory(node_rank=node_rank, too_small=limit, limit=raised)
    return known


def _more(limit: int, percent: int) -> int:
    """Return so much more, in whole MiB: the kernel rounds a limit down to pages."""
    mebibytes = -(-limit // MEBIBYTE)
    return -(-mebibytes * (_WHOLE + percent) // _WHOLE) * MEBIBYTE


def next_limit(look: Look, slot: PodSlot) -> int:
    """Return the memory limit of a place's next pod, bytes; 0: its template's."""
    policy = look.job.spec.memory
    if policy is None or slot.role is not Role.WORKER:
        return 0
    known = _stored(look.job.status, slot.index).get(slot.index)
    found = after(known, slot.index, _ran_out_at(look, slot), policy)
    # What was raised before stays in the status, and may be more than is allowed now.
    return 0 if found is None else min(found.limit, policy.most_bytes)


def raised(look: Look) -> list[dict[str, Any]]:
    """Return the list for the status: the next plan's memory, and people's."""
    policy = look.job.spec.memory
    if policy is None:
        return []
    stored = _stored(look.job.status)
    ranks = {slot.index for slot in look.pods if slot.role is Role.WORKER}
    told = look.master.status.memory_shortages if look.master.status else ()
    found = (
        after(stored.get(rank), rank, _ran_out_at(look, PodSlot("worker", rank)), policy)
        for rank in sorted(ranks | stored.keys() | {one.node_rank for one in told})
    )
    return [_entry(one) for one in found if one is not None]


def _ran_out_at(look: Look, slot: PodSlot) -> Iterator[int]:
    """Yield the limits that were too small: of its pods here, and as its master heard of ranks."""
    for pod in look.pods.get(slot, ()):
        if pod.ran_out_of_memory:
            yield pod.memory_limit
    if look.master.status is not None:
        for one in look.master.status.memory_shortages:
            if one.node_rank == slot.index:
                yield one.limit_bytes


def _stored(status: Mapping[str, Any], only: int | None = None) -> dict[int, RaisedMemory]:
    """Return the last status, of all node ranks or of one."""
    return {
        one["nodeRank"]: RaisedMemory(
            node_rank=one["nodeRank"],
            too_small=to_bytes(one["tooSmall"]) or 0,
            limit=to_bytes(one["limit"]) or 0,
            exhausted=one["exhausted"],
        )
        for one in status.get(FIELD, ())
        if only in (None, one["nodeRank"])
    }


def _entry(one: RaisedMemory) -> dict[str, Any]:
    return {
        "nodeRank": one.node_rank,
        "tooSmall": in_mebibytes(one.too_small),
        "limit": in_mebibytes(one.limit),
        "exhausted": one.exhausted,
    }
