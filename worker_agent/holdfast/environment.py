"""What a training process is told by its environment, parsed once; the SDK reads it nowhere else.

The names of ranks and counts are torchrun's; they are there under a plain torchrun too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_wire.keys import (
    ENV_ARENA,
    ENV_KEEP,
    ENV_PAGE,
    ENV_ROUND,
    ENV_SCHEDULE,
    ENV_STEP_LOG,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """This process's place in the job."""

    rank: int = 0
    """RANK; 0 outside a launcher."""
    world_size: int = 1
    """WORLD_SIZE; 1 outside a launcher."""
    round: int = 0
    """HOLDFAST_ROUND, the world's number; 0 without an agent."""
    restart_count: int = 0
    """TORCHELASTIC_RESTART_COUNT, equal on all ranks."""
    step_log: str = ""
    """HOLDFAST_STEP_LOG, a directory that each rank writes its steps to; empty: nothing is
    written."""
    local_rank: int = 0
    """Slot of HOLDFAST_PAGE, for LOCAL_RANK is 0 everywhere with --virtual-local-rank; without an
    agent LOCAL_RANK; 0 outside a launcher."""
    local_world_size: int = 1
    """LOCAL_WORLD_SIZE; 1 outside a launcher."""
    arena: str = ""
    """HOLDFAST_ARENA, the socket of this node's keeper; empty: each rank starts one of its own."""
    schedule: str = ""
    """HOLDFAST_SCHEDULE, `memory:storage`, the steps between saves that the master has set; empty:
    no master sets any."""
    keep: str = ""
    """HOLDFAST_KEEP, `last:every`, the committed checkpoints that stay by the job's file; empty: it
    says nothing."""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Environment:
        """Parse the variables; raises ValueError naming one that is not a whole number."""
        return cls(
            rank=_number(variables, "RANK", 0),
            world_size=_number(variables, "WORLD_SIZE", 1),
            round=_number(variables, ENV_ROUND, 0),
            restart_count=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0),
            step_log=variables.get(ENV_STEP_LOG, ""),
            local_rank=_slot(variables, _number(variables, "LOCAL_RANK", 0)),
            local_world_size=_number(variables, "LOCAL_WORLD_SIZE", 1),
            arena=variables.get(ENV_ARENA, ""),
            schedule=variables.get(ENV_SCHEDULE, ""),
            keep=variables.get(ENV_KEEP, ""),
        )


def _slot(variables: Mapping[str, str], default: int) -> int:
    slot = variables.get(ENV_PAGE, "").partition(":")[2]
    return int(slot) if slot.isdecimal() else default


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r}: expected a whole number ≥ 0")
    return int(text)
