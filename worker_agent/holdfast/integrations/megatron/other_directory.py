"""A start from a directory that the job does not save to: `--load` is not `--save`, a finetuning.

Belongs here: the choice of the step there.
Does not belong here: the directory that a job goes on from (`holdfast.Checkpointer`).
"""

from __future__ import annotations

import warnings

from holdfast.environment import Environment
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import newest_of
from holdfast.flash.trainer import arguments
from holdfast.flash.trainer.collectives import from_rank_0
from holdfast.flash.trainer.committed_step import fill_from
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.save import Preparer
from holdfast.flash.trainer.shards import Shards


def load_from(root: str, shards: Shards, *, step: int | None = None, partial: bool = False) -> int:
    """Fill a state from a step of a directory, whatever world saved it; all ranks call it.

    Args:
        root: Directory of Holdfast's checkpoints.
        shards: The state.
        step: The step; None: the newest one.
        partial: Load the parts that fit, and leave the rest as it is.

    Returns:
        The step; 0: the directory has none, nothing was changed.

    Raises:
        RestoreError: there is no such step, it is damaged, or it does not fit.
    """
    environment = Environment.read()
    place = RankPosition(
        rank=environment.rank,
        world=environment.world_size,
        local_rank=environment.local_rank,
        local_world=environment.local_world_size,
    )
    found = from_rank_0(newest_of(PosixDisk(), root) if step is None else step, place.world)
    if not found:
        return 0
    parts = arguments.parts(None, None, shards, None, None)
    preparer = Preparer(parts, place)
    preparer.meet(again=True)
    notes, _ = fill_from(root, found, parts, place, preparer, partial=partial)
    for note in notes:
        warnings.warn(note, RuntimeWarning, stacklevel=4)
    return found
