"""One measured call of one system, as a line of the results file."""

from __future__ import annotations

import json
from dataclasses import dataclass

FLASH = "Holdfast"
COPY = "streaming copy of the rank's shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One call; of several ranks the slowest counts."""

    case: str
    """What was done, such as "ZeRO-2, 4 ranks: save"."""
    system: str
    turn: int
    """Calls of one turn follow each other in one world."""
    seconds: float
    mib: float
    """Of the state, all ranks together, MiB."""
    collectives: int = -1
    """Of all process groups during the call; -1: not counted."""
    load: float = 0.0
    """Load average of the last minute."""


def from_line(line: str) -> Timed:
    """Read a result."""
    return Timed(**json.loads(line))
