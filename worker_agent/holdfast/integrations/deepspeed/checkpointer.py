"""The `Checkpointer` of a script that trains with DeepSpeed.

Belongs here: what differs from `holdfast.Checkpointer`. Does not belong here: the engine's own
`save_checkpoint` (`checkpoint_engine`).
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from holdfast.flash import checkpointer
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import newest_of, read_manifest_or_none
from holdfast.flash.trainer.collectives import from_rank_0
from holdfast.flash.trainer.committed_step import fill_from
from holdfast.integrations.deepspeed.engine_state import (
    refuse_half_a_step,
    warn_of_another_scheduler,
)
from holdfast.integrations.deepspeed.shards import EngineShards
from holdfast.job import Action


class Checkpointer(checkpointer.Checkpointer):
    """Saves a DeepSpeed engine to memory and storage, and restores it.

    ```python
    engine, *_ = deepspeed.initialize(model=model, config=config, ...)
    flash = holdfast.integrations.deepspeed.Checkpointer("/shared/run", engine)
    for step in range(flash.load(), steps):
        train_step(engine)
        if flash.step(step + 1, samples=n, loss=loss) is holdfast.SAVE_AND_STOP:
            break
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
        beside = (self._parts.extra, self._parts.per_rank)
        warn_of_another_scheduler(engine, [one for part in beside for one in part.values()])
        self._engine = engine

    def step(
        self, step: int, *, samples: int = 0, loss: Any = None, fingerprint: int | None = None
    ) -> Action:
        """Report a completed step, and save it if it is due; see `holdfast.Checkpointer.step`.

        Raises:
            StateError: gradients of micro-batches are accumulated; call it after the
                `engine.step()` that updates the weights.
        """
        refuse_half_a_step(self._engine)  # here, since it is so on all ranks
        return super().step(step, samples=samples, loss=loss, fingerprint=fingerprint)

    def save(self, step: int, *, durable: bool = True, tag: str | None = None) -> None:
        """Save the present state now; see `holdfast.Checkpointer.save`.

        Raises:
            StateError: also while gradients of micro-batches are accumulated.
        """
        refuse_half_a_step(self._engine)
        super().save(step, durable=durable, tag=tag)

    def load_step(self, step: int) -> None:
        """Fill the engine from one committed step of the directory; all ranks call it.

        A later save must have a step above the directory's newest: go on in another directory, or
        delete the newer steps, to train on from an older one.

        Args:
            step: A step whose directory `step_<n>` is there.

        Raises:
            RestoreError: there is no such step, it is damaged, or it does not fit the engine, which
                is unchanged.
        """
        disk, world = PosixDisk(), self._place.world
        self._preparer.meet(again=True)
        notes, self.read = fill_from(self._root, step, self._parts, self._place, self._preparer)
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        newest = from_rank_0(newest_of(disk, self._root), world)
        self._order.begin_at(newest)
        if manifest := read_manifest_or_none(disk, f"{self._root}/step_{newest}"):
            self._lineage = max(self._lineage, manifest.version.lineage + 1)
