"""The `Checkpointer` of a script that trains with DeepSpeed.

Belongs here: what differs from `holdfast.Checkpointer`. Does not belong here: the engine's own
`save_checkpoint` (`checkpoint_engine`).
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.flash import checkpointer
from holdfast.integrations.deepspeed.shards import EngineShards


class Checkpointer(checkpointer.Checkpointer):
    """Saves a DeepSpeed engine to memory and storage, and restores it.

    ```python
    engine, *_ = deepspeed.initialize(model=model, config=config, ...)
    flash = holdfast.integrations.deepspeed.Checkpointer("/shared/run", engine)
    for step in range(flash.load(), steps):
        train_step(engine)
        flash.step(step + 1, samples=n, loss=loss)
    flash.close()
    ```

    A save gathers nothing and calls no collective: each rank copies its own partitions. Any world
    and any of the stages 1, 2 and 3 loads what another one saved, and so do DDP and FSDP2 with
    `holdfast.Checkpointer`. A step is one `engine.step()` that updates the weights.
    """

    def __init__(self, path: str | os.PathLike[str] | None, engine: Any, **options: Any) -> None:
        """Take the directory and the engine; nothing is copied yet.

        Args:
            path: As in `holdfast.Checkpointer`.
            engine: What `deepspeed.initialize` returned first.
            options: `extra`, `per_rank`, `schedule` and the others of `holdfast.Checkpointer`. The
                engine's LR scheduler is no part of `extra`: it is saved with the engine.
        """
        super().__init__(path, shards=EngineShards(engine), **options)
