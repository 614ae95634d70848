"""One measured call of one system, as a line of the results file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLASH: Final = "Holdfast"
STORED: Final = "Holdfast, until it is on storage"
COPY: Final = "warm copy of each rank's own shard"
TORCH: Final = "torch.save / torch.load of each rank's shard"
WEIGHTS: Final = "torch.load of each rank's shard and of the weights"
DCP: Final = "dcp.load of the same step"
GATHERED: Final = "gather on rank 0 (gloo), without a file"
GATHER: Final = "gather on rank 0 (gloo), then torch.save"
BUCKETS: Final = "dist_checkpointing, dp_reshardable"
RESHARDABLE: Final = "dist_checkpointing, fully_reshardable"
ENGINE: Final = "engine.save_checkpoint / load_checkpoint"
UNIVERSAL: Final = "ds_to_universal, then load_checkpoint"

SYNC: Final = "Megatron's own gather of the weights, a part of Holdfast's load"

SAVE: Final = "save"
LOAD: Final = "load from storage, fresh processes"
RESTART: Final = "load from memory, restart in place"
FRESH: Final = "load from memory, restart in place, no moments yet"
RESHAPE: Final = "load as "
"""Begin of the act; the world that loads follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One call; of several ranks the slowest counts."""

    state: str
    """Framework and world that saves, such as "ZeRO-2, 4 ranks"."""
    act: str
    system: str
    turn: int
    """Calls of one turn are compared."""
    seconds: float
    mib: float
    """Of the state, all ranks together, MiB."""
    collectives: int
    """Of torch.distributed in the call, on the rank that has most."""
    load: float = 0.0
    """Load average of the last minute."""
