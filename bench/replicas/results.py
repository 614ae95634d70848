"""One measured run of one way, as a line of the results file, and the names of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LOSSES: Final = "losses"
"""One kill -9; where a replica comes back without a restart of the others, its join too."""
FROZEN: Final = "frozen"
"""One kill -STOP: the process stays, and its connections."""
STEPS: Final = "steps"
MEMORY: Final = "memory"
JOINS: Final = "joins"
GOODPUT: Final = "goodput"
SIMULATED: Final = "simulated"
ROWS: Final = (LOSSES, FROZEN, STEPS, MEMORY, JOINS, GOODPUT, SIMULATED)

REPLICAS: Final = "Holdfast, replicas"
RESTART: Final = "Holdfast, restarted"
TORCHRUN: Final = "torchrun, tuned"
TORCHRUN_ONE: Final = "torchrun, tuned, one agent"
TORCHFT: Final = "torchft 0.2.0"
NIGHTLY: Final = "torchft nightly"
WAYS: Final = (REPLICAS, RESTART, TORCHRUN, TORCHRUN_ONE, TORCHFT, NIGHTLY)
PLAIN: Final = "torch"
"""DDP or HSDP as torch has it."""

FOUR: Final = "4 × 1"
TWO: Final = "2 × 2"
SHAPES: Final[Mapping[str, tuple[int, int]]] = {FOUR: (4, 1), TWO: (2, 2)}
"""Replicas, and ranks of each."""
MICRO_BATCHES: Final[Mapping[str, int]] = {FOUR: 12, TWO: 2}
"""Of a step of jobs that are killed. One under FSDP2 takes four ranks 0.1 s on two cores: of twelve
a step took 0.6 s, and the pause of any recovery was little beside it."""

TOTAL: Final = "kill → next whole step, ms"
STOPPED: Final = "stop → next whole step of the others, s"
ORDINARY: Final = "ordinary step, ms"
BEYOND: Final = "beyond the step and the recomputed share, ms"
BEGUN_AGAIN: Final = "survivors begun again"
REDONE: Final = "steps redone"
DISCARDED: Final = "steps thrown away"
PAUSE: Final = "pause of the others, ms"
GIVEN: Final = "transfer of the state, ms"
UNCOVERED: Final = "pause beyond what of the transfer a step does not cover, ms"
AWAY: Final = "kill → whole world, ms"
WALL: Final = "ms a step"
CPU: Final = "CPU ms a step, all ranks"
PEAK: Final = "peak MB of a rank"
GRADIENT: Final = "MB of a rank's gradient"
SHARE: Final = "goodput"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRun:
    """One run."""

    row: str
    """One of `ROWS`."""
    group: str
    """Runs of one group and turn are compared: shape and model, or a simulated world."""
    way: str
    turn: int
    values: Mapping[str, float]
    load: float = 0.0
    """Load average of the last minute."""
    reason: str = ""
    """Says why a run has no values."""
