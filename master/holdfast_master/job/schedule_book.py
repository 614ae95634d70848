"""The schedule of checkpoints of the running world, and a new one that its ranks are told.

Belongs here: the record. Does not belong here: what follows from it (`schedules`), and what must
survive the master (`state`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master.decide.interval import Every, Verdict


@dataclasses.dataclass(slots=True, kw_only=True)
class Offered:
    """A schedule that not all ranks are known to have heard of."""

    number: int
    step: int
    """The first step that it is to hold for."""
    every: Every
    tries: int = 0
    passed: int = 0
    """Newest step that a rank had completed when it heard of it."""
    seen: set[int] = dataclasses.field(default_factory=set)
    """Node ranks whose ranks have all heard of it in time."""


@dataclasses.dataclass(slots=True)
class ScheduleBook:
    """What holds in one round."""

    round: int = 0
    now: Every | None = None
    """What every rank follows."""
    unsure: bool = False
    """An earlier master may have told them something else."""
    offer: Offered | None = None
    verdict: Verdict | None = None
    """The newest, of this round."""
