"""What is to be saved out of memory before its nodes go, or go apart; and for how long to wait.

Belongs here: the rules, with nodes named by rank and agent. Does not belong here: messages,
deadlines that run, what is held where (`job.checkpoint_book`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection

from holdfast_wire.messages import CheckpointVersion as Version

Holder = tuple[int, str]
"""Node rank and agent: memory ends with the agent."""


class Step(enum.Enum):
    """What is to be done now."""

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
    """Who has all that any world needs, alone."""
    partial: bool = False
    """Parts of it are nowhere: a world may start from it, but it cannot be written to storage."""
    named: bool = True
    """It is known which world saved each part, so nodes lend them to each other."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What there is of checkpoints."""

    memory: Copy | None = None
    committed: Version | None = None
    """The newest that was announced durable."""
    whole: Collection[Version] = ()
    """All of their parts are on storage, and nobody has committed them yet."""
    failed: Collection[Version] = ()
    """They could not be written or committed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be done, and why."""

    step: Step
    version: Version | None = None
    reason: str


def decide(stock: Stock, present: Collection[Holder]) -> Verdict:
    """Decide on the newest version that is not on storage yet.

    present: agents that are connected and were not told to leave.
    """
    floor, memory = stock.committed, stock.memory
    fresh = [one for one in stock.whole if one not in stock.failed and _newer(one, floor)]
    whole = max(fresh, default=None)
    awaits = Verdict(step=Step.AWAIT, version=whole, reason="its parts are on storage")
    if memory is None or not _newer(memory.version, floor):
        if whole is not None:
            return awaits
        return Verdict(step=Step.NOTHING, reason="memory has nothing newer than storage")
    version = memory.version
    if whole is not None and whole >= version:
        return awaits
    problem = _problem(memory, stock, present)
    if not problem:
        reason = "every node of its world has it in memory"
        return Verdict(step=Step.SAVE, version=version, reason=reason)
    if whole is not None:
        return awaits
    return Verdict(step=Step.LOST, version=version, reason=problem)


def _newer(version: Version, floor: Version | None) -> bool:
    return floor is None or version > floor


def _problem(memory: Copy, stock: Stock, present: Collection[Holder]) -> str:
    """Why it cannot be saved; empty: it can."""
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
    """Tell whether the world to come cannot start from memory, because its nodes differ.

    Where all holders are among them, or one who has everything, the others read their memory.

    candidates: nodes that could be in it. members: those that will be, in rank order, none: too
    few are there, so it is not known yet. most: as in `checkpoints.origin`.
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


def patience(
    stock: Stock, step_seconds: float, *, least: float, unknown: float, most: float
) -> float:
    """Return how long a world may be held up for the sake of memory, s; 0: it is not worth it.

    As long as the steps take that would be redone without: whatever becomes of it, no more than
    twice the time is lost that the better choice would have cost.

    step_seconds: a usual step; 0: not known. least: less work than this is simply redone. unknown:
    where the time of a step is not known. most: never longer.
    """
    memory, floor = stock.memory, stock.committed
    if memory is None:
        return most
    if step_seconds <= 0:
        return min(unknown, most)
    steps = memory.version.step - (floor.step if floor is not None else 0)
    redo = max(0, steps) * step_seconds
    return 0.0 if redo < least else min(redo, most)
