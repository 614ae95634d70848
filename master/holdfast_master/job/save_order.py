"""A save on its way that somebody asked for: how far it has come.

Does not belong here: setting it and what follows (`saving`).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True, kw_only=True)
class SaveOrder:
    """All ranks are on their way to save after the same step, and to go on."""

    round: int
    """The world that is to save."""
    reason: str
    arm_id: int = 0
    step: int = 0
    tries: int = 0
    passed: int = 0
    """Newest step that a rank had completed when it saw the arm."""
    echoed: set[int] = dataclasses.field(default_factory=set)
    """Node ranks whose ranks have all seen it."""
    requests: dict[int, int] = dataclasses.field(default_factory=dict)
    """Who waits for it, and the newest step that was known to be complete when he asked: a
    checkpoint of any later one is what was wanted."""
