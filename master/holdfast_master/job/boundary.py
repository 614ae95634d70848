"""A boundary on its way: all ranks are to save and stop after the same step.

Belongs here: how far it has come. Does not belong here: setting it and what follows (`rescale`).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Boundary:
    """Ranks are on their way to save and stop after the same step."""

    reason: str
    arm_id: int
    step: int
    patience: float
    """How long after the expected time it may take, s."""
    tries: int = 0
    echoed: set[int] = dataclasses.field(default_factory=set)
    passed: int = 0
    """Newest step that a rank had completed when it saw an arm."""
