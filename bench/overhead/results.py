"""Results of the overhead benchmark, and the parser of its results file. Values only."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SdkCost:
    """CPU time of one call of `job.step`, nanoseconds, over the repeats."""

    case: str
    median: float
    p10: float
    p90: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One training run under one launcher."""

    launcher: str
    pair: int
    step_us: float
    """Mean wall time of a step, microseconds."""
    launcher_us: float
    """CPU time per step of the launcher and its helpers (agent and zygote), without the ranks."""
    master_us: float
    """CPU time per step of the job master; 0 under torchrun."""
    cores: int
    load: float
    """Load average of the last minute, at the end."""
    sampling_us: float | None = None
    """CPU time per step of the threads that answer the agent's samples, in the rank with the most.
    The ranks answer at the same time and then wait for each other. None: not measured."""

    def share(self, cpu_us: float) -> float:
        """Return CPU time per step as a share of the step.

        Taken from one rank it delays all of them, so other cores do not make it less.
        """
        return cpu_us / self.step_us


def from_line(line: str) -> SdkCost | Trial:
    """Read a result."""
    fields = json.loads(line)
    return Trial(**fields) if "launcher" in fields else SdkCost(**fields)
