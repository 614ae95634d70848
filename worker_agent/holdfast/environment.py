"""Parses the environment of a training process, once; the SDK reads it nowhere else.

The names of ranks and counts are torchrun's. A plain torchrun sets them too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast_wire.keys import (
    ENV_ARENA,
    ENV_CHECKPOINT,
    ENV_DATA,
    ENV_JOB_UID,
    ENV_PAGE,
    ENV_REPLICA,
    ENV_ROUND,
    ENV_SCHEDULE,
    ENV_STEP_LOG,
)
from holdfast_wire.messages.spec import CheckpointPolicy
from holdfast_wire.proto_json import JsonError, from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """This process's place in the job."""

    rank: int = 0
    """RANK; 0 outside a launcher."""
    world_size: int = 1
    """WORLD_SIZE; 1 outside a launcher."""
    job_uid: str = ""
    """HOLDFAST_JOB_UID; empty without a master."""
    round: int = 0
    """HOLDFAST_ROUND, the world's number; 0 without an agent."""
    restart_count: int = 0
    """TORCHELASTIC_RESTART_COUNT, equal on all ranks."""
    step_log: str = ""
    """HOLDFAST_STEP_LOG, a directory that each rank writes its steps to; empty: nothing is
    written."""
    local_rank: int = 0
    """Slot of HOLDFAST_PAGE. With --virtual-local-rank LOCAL_RANK is 0 in all ranks, so the slot
    has its own number. Without an agent: LOCAL_RANK; 0 outside a launcher."""
    local_world_size: int = 1
    """LOCAL_WORLD_SIZE; 1 outside a launcher."""
    arena: str = ""
    """HOLDFAST_ARENA, the socket of this node's checkpoint server; empty: each rank starts its own.
    """
    replica: int = 0
    """HOLDFAST_REPLICA, the number of this rank's replica; 0: the world is one."""
    data: str = ""
    """HOLDFAST_DATA, the agent's socket for readers of shards; empty: nobody leases any."""
    schedule: str = ""
    """HOLDFAST_SCHEDULE, `memory:storage`: the steps between saves that the master has set. Empty:
    no master sets them."""
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    """HOLDFAST_CHECKPOINT, JSON: what the job's file says of checkpoints. Empty: nothing."""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Environment:
        """Parse the environment of a process; missing and empty variables have their defaults.

        Raises ValueError naming a variable that is no whole number ≥ 0, or not its JSON.
        """
        return cls(
            rank=_number(variables, "RANK", 0),
            world_size=_number(variables, "WORLD_SIZE", 1),
            job_uid=variables.get(ENV_JOB_UID, ""),
            round=_number(variables, ENV_ROUND, 0),
            restart_count=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0),
            step_log=variables.get(ENV_STEP_LOG, ""),
            local_rank=_slot(variables, _number(variables, "LOCAL_RANK", 0)),
            local_world_size=_number(variables, "LOCAL_WORLD_SIZE", 1),
            arena=variables.get(ENV_ARENA, ""),
            replica=_number(variables, ENV_REPLICA, 0),
            data=variables.get(ENV_DATA, ""),
            schedule=variables.get(ENV_SCHEDULE, ""),
            checkpoint=_policy(variables.get(ENV_CHECKPOINT, "")),
        )


def _policy(text: str) -> CheckpointPolicy:
    try:
        return from_json(CheckpointPolicy, text or "{}")
    except JsonError as error:
        raise ValueError(
            f'{ENV_CHECKPOINT}={text!r}: {error}; expected JSON such as {{"keepLast": 3}}'
        ) from error


def _slot(variables: Mapping[str, str], default: int) -> int:
    slot = f"{variables.get(ENV_PAGE, '')}:".split(":")[1]
    return int(slot) if slot.isdecimal() else default


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r}: expected a whole number ≥ 0")
    return int(text)
