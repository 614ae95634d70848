"""A boundary on its way: all ranks are to save and stop after the same step.

Belongs here: how far it has come. Does not belong here: setting it and what follows (`stopping`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(slots=True)
class Boundary:
    """Ranks are on their way to save and stop after the same step."""

    reason: str
    arm_id: int
    """0: an earlier master set it, and what became of that is found out from the members."""
    step: int
    patience: float
    """How long after the expected time it may take, s."""
    tries: int = 0
    echoed: set[int] = dataclasses.field(default_factory=set)
    found: dict[int, int] = dataclasses.field(default_factory=dict)
    """Node rank to the arm of an earlier master that its ranks have seen."""
    passed: int = 0
    """Newest step that a rank had completed when it saw an arm."""

    def is_apart(self, running: Iterable[int]) -> bool:
        """Whether these nodes' ranks have not all seen the same arm of an earlier master."""
        seen = {self.found.get(rank, 0) for rank in running}
        return 0 in seen or len(seen) > 1
