"""Fills a state from one committed step that the caller names, by the step's files alone.

Belongs here: the checks that a start from storage gets from the checkpoint server, and the refusal
on all ranks if one refuses.
"""

from __future__ import annotations

import warnings

from holdfast.environment import Environment
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import ManifestError, newest_of, steps
from holdfast.flash.storage.reader import verify
from holdfast.flash.trainer import arguments
from holdfast.flash.trainer.collectives import from_rank_0
from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import BytesRead, Stored, of_files, stored
from holdfast.flash.trainer.restore import RestoreError, idle_cores, restore
from holdfast.flash.trainer.save import Preparer
from holdfast.flash.trainer.shards import Shards
from holdfast.flash.trainer.state_dict import Parts


def fill_from(
    root: str,
    step: int,
    parts: Parts,
    place: RankPosition,
    preparer: Preparer,
    *,
    partial: bool = False,
) -> tuple[list[str], BytesRead]:
    """Fill a state from a step of a directory, whatever world saved it; all ranks call it.

    preparer: the state's, after `Preparer.meet(again=True)`. partial: load the parts that fit, and
    leave the rest as it is. Returns notes for the user, and the bytes that were read. Raises
    `RestoreError` if there is no such step, a file is missing or damaged, or the state does not
    fit; on all ranks if on one, and nothing was changed. Raises `StateError` for a part that cannot
    be filled.
    """
    disk, path = Disk(), f"{root}/step_{step}"

    def source() -> tuple[Leaves, Stored]:
        there = steps(disk, root)
        if step not in there:
            raise RestoreError(f"{root} has no step {step}, only {there}")
        try:
            verify(disk, path, place.rank, place.world)
            found = stored(of_files(path), step)
        except (ManifestError, OSError) as error:
            raise RestoreError(f"{path} cannot be read: {error}; load another step") from error
        return preparer.listed_by_all(), found

    threads = idle_cores(place)
    return restore(
        parts, place, preparer.holders, source, lambda _: None, partial=partial, threads=threads
    )


def load_from(root: str, shards: Shards, *, step: int | None = None, partial: bool = False) -> int:
    """Fill a state from a step of a directory, as `fill_from`; all ranks call it.

    step: None: the newest one. Returns the step; 0: the directory has none, nothing was changed.
    """
    place = RankPosition.of(Environment.read())
    found = from_rank_0(newest_of(Disk(), root) if step is None else step, place.world)
    if not found:
        return 0
    parts = arguments.parts(None, None, shards, None, None)
    preparer = Preparer(parts, place)
    preparer.meet(again=True)
    notes, _ = fill_from(root, found, parts, place, preparer, partial=partial)
    for note in notes:
        warnings.warn(note, RuntimeWarning, stacklevel=4)
    return found
