"""Flush policy: the checkpoints written to storage before nodes leave, and the time it may take."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection

from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import CheckpointVersion as Version

Holder = tuple[int, str]
"""Node rank and agent: memory ends with the agent."""


class FlushStep(enum.Enum):
    """The next step of a flush."""

    NOTHING = "nothing"
    """Nothing is newer than what is on storage, or nothing can be done about it."""
    AWAIT = "await"
    """Every part is on storage already: the commit is to come."""
    SAVE = "save"
    """Every node is to write its part."""
    LOST = "lost"
    """It is newer than what is on storage, and cannot be had any more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The newest version that was in the memory of every node of its world."""

    version: Version
    holders: tuple[Holder, ...]
    """In rank order."""
    ranks: int = 0
    """That it consists of; 0: not known."""
    whole: Collection[Holder] = ()
    """Nodes that alone have all that any world needs."""
    partial: bool = False
    """Parts of it are nowhere: a world may start from it, but it cannot be written to storage."""
    memory_only: bool = False
    """Ranks of it named no directory for checkpoints: nobody expects it on storage."""
    named: bool = True
    """It is known which world saved each part, so nodes lend them to each other."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """The checkpoints that exist, and those that failed."""

    memory: Copy | None = None
    committed: Version | None = None
    """The newest that was announced durable."""
    whole: Collection[Version] = ()
    """All of their parts are on storage, and nobody has committed them yet."""
    failed: Collection[Version] = ()
    """They could not be written or committed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlushVerdict:
    """The next step of a flush, with its version and the reason."""

    step: FlushStep
    version: Version | None = None
    reason: str


def decide(stock: Stock, present: Collection[Holder]) -> FlushVerdict:
    """Decide on the newest version that is not on storage yet.

    present: agents that are connected and were not told to leave.
    """
    floor, memory = stock.committed, stock.memory
    fresh = [one for one in stock.whole if one not in stock.failed and _newer(one, floor)]
    whole = max(fresh, default=None)
    awaits = FlushVerdict(step=FlushStep.AWAIT, version=whole, reason="its parts are on storage")
    if memory is None or not _newer(memory.version, floor):
        if whole is not None:
            return awaits
        return FlushVerdict(step=FlushStep.NOTHING, reason="memory has nothing newer than storage")
    version = memory.version
    if whole is not None and whole >= version:
        return awaits
    problem = _problem(memory, stock, present)
    if not problem:
        reason = "every node of its world has it in memory"
        return FlushVerdict(step=FlushStep.SAVE, version=version, reason=reason)
    if whole is not None:
        return awaits
    return FlushVerdict(step=FlushStep.LOST, version=version, reason=problem)


def _newer(version: Version, floor: Version | None) -> bool:
    return floor is None or version > floor


def _problem(memory: Copy, stock: Stock, present: Collection[Holder]) -> str:
    """Return why the version in memory cannot be saved; empty: it can be saved."""
    if memory.memory_only:
        return "the ranks named no directory for checkpoints"
    if memory.version in stock.failed:
        return "it could not be written or committed before"
    if memory.partial:
        return "a part of it was lost with its node"
    gone = [rank for rank, agent in memory.holders if (rank, agent) not in present]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        return f"node {gone[0]}{more} had a part of it, and is gone"
    return ""


def goes_apart(
    memory: Copy | None, candidates: Collection[Holder], members: tuple[Holder, ...], most: int
) -> bool:
    """Whether the world to come cannot start from memory, because its nodes differ.

    Where nodes may read each other's memory, all holders in the world suffice, or one holder that
    has everything.

    candidates: nodes that could be in the world. members: the nodes that will be in it, in rank
    order; empty where too few nodes are there to know. most: as in `checkpoints.origin`.
    """
    if memory is None:
        return False
    most = most if memory.named else 0
    if most and not set(members or candidates).isdisjoint(memory.whole):
        return False
    if members and 0 < memory.ranks <= most:
        return not set(members) >= set(memory.holders)
    if members:
        return members != memory.holders
    return any(holder not in candidates for holder in memory.holders)


def patience(stock: Stock, step_seconds: float, settings: CoreSettings) -> float:
    """Return how long a world may be held up for the sake of memory, s; 0: it is not worth it.

    The wait is as long as the steps take that the world would redo without memory. However the wait
    ends, the job loses at most twice the time that the better choice would have cost.

    step_seconds: a usual step; 0: not known, and the wait is that of a barrier.
    """
    memory, floor, most = stock.memory, stock.committed, settings.rescue_seconds
    if memory is None:
        return most
    if step_seconds <= 0:
        return min(settings.barrier_seconds, most)
    steps = memory.version.step - (floor.step if floor is not None else 0)
    redo = max(0, steps) * step_seconds
    return 0.0 if redo < settings.rescue_least_seconds else min(redo, most)
