"""Counts since this master began, for its metrics. No decision and no journal has them."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter

from holdfast_wire.messages import Tier


class SaveOutcome(enum.Enum):
    """How a save of one step to one tier ended."""

    COMPLETE = "complete"
    """Every node has it in memory, or it is committed on storage."""
    FAILED = "failed"
    """It could not be written or committed."""


@dataclasses.dataclass(slots=True)
class Counts:
    """Counts since this master began."""

    samples: int = 0
    """Samples (or tokens) that ranks reported with their steps."""
    saves: Counter[tuple[Tier, SaveOutcome]] = dataclasses.field(default_factory=Counter)
    """Steps by tier and outcome."""
    stored_bytes: int = 0
    """Size of the newest committed step, bytes; 0: none was committed."""
    restores: Counter[Tier] = dataclasses.field(default_factory=Counter)
    """Starts of worlds or replicas from a checkpoint, by the tier that it was read from."""
