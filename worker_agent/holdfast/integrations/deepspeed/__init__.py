"""DeepSpeed: ZeRO's partitions in the flash checkpoint, for any stage and world.

Belongs here: one module per part of an engine's state.
"""

from holdfast.integrations.deepspeed.checkpointer import EngineCheckpointer as Checkpointer
from holdfast.integrations.deepspeed.checkpointer import plug_in
from holdfast.integrations.deepspeed.shards import EngineShards

__all__ = ["Checkpointer", "EngineShards", "plug_in"]
