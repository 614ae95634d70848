"""A start from a directory that the job does not save to: `--load` is not `--save`, a finetuning.

Belongs here: the read of one committed step by the storage tier alone, without a checkpoint server.
Does not belong here: the directory that a job goes on from (`holdfast.Checkpointer`).
"""

from __future__ import annotations

from holdfast.environment import Environment
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import ManifestError, newest_of, steps
from holdfast.flash.storage.reader import verify
from holdfast.flash.trainer import arguments
from holdfast.flash.trainer.collectives import all_or_none, from_all, from_rank_0
from holdfast.flash.trainer.holders import Holders, describe, holders_of
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import of_files, stored
from holdfast.flash.trainer.restore import RestoreError, Restorer, idle_cores
from holdfast.flash.trainer.shards import Shards
from holdfast.flash.trainer.state_dict import collect


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
    environment, disk = Environment.read(), PosixDisk()
    place = RankPosition(
        rank=environment.rank,
        world=environment.world_size,
        local_rank=environment.local_rank,
        local_world=environment.local_world_size,
    )
    found = from_rank_0(newest_of(disk, root) if step is None else step, place.world)
    if not found:
        return 0
    path = f"{root}/step_{found}"
    with all_or_none(place.world, RestoreError):
        if found not in steps(disk, root):
            raise RestoreError(f"{root} has no step {found}, only {steps(disk, root)}")
        try:
            verify(disk, path, place.rank, place.world)
        except ManifestError as error:
            raise RestoreError(f"{path} cannot be read: {error}") from error
        parts = arguments.parts(None, None, shards, None, None)
        leaves = collect(parts, place.rank)
    told = from_all(describe(leaves), place.world)
    holders = Holders() if told is None else holders_of(told)
    images = stored(of_files(path), found)
    restorer = Restorer(parts, leaves, place, images, lambda _: None, holders)
    restorer.run(partial=partial, threads=idle_cores(place))
    return found
