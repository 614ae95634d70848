"""One measured run of one way, as a line of the results file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BYTES: Final = "bytes"
LINKS: Final = "links"
SLOW: Final = "slow"
LOSS: Final = "loss"
ROBUST: Final = "robust"
ELASTIC: Final = "elastic"
ROWS: Final = (BYTES, LINKS, SLOW, LOSS, ROBUST, ELASTIC)

SENT: Final = "bytes a step"
"""Of a rank, as its network interface counts them."""
SECONDS: Final = "seconds a step"
ALL_STEPS: Final = "steps/s of all replicas"
FAST_STEPS: Final = "steps/s of a fast replica"
VALIDATION: Final = "validation loss"
AFTER_STEPS: Final = "validation loss after {} steps"
BEFORE: Final = "loss before"
AFTER: Final = "loss after"
FINITE: Final = "finite"
"""1: all weights of all replicas are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    row: str
    """One of `ROWS`."""
    group: str
    """Runs of one group and turn are compared: ranks and link, or the disturbance."""
    way: str
    turn: int
    values: Mapping[str, float]
    load: float = 0.0
    """Load average of the last minute."""
