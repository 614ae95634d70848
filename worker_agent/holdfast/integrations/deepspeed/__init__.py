"""DeepSpeed: ZeRO's partitions in the flash checkpoint, for any stage and world.

Belongs here: one module per part of an engine's state. Does not belong here: the border that they
stand on (`holdfast.flash.trainer.shards`).
"""

from holdfast.integrations.deepspeed.checkpointer import Checkpointer
from holdfast.integrations.deepspeed.shards import EngineShards

__all__ = ["Checkpointer", "EngineShards"]
