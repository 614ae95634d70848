"""Fills a state from one committed step that the caller names, by the step's files alone.

Belongs here: the checks that a start from storage gets from the checkpoint server, and the refusal
on all ranks if one refuses. Does not belong here: the choice of the step that a world starts from
(`holdfast.Checkpointer.load`).
"""

from __future__ import annotations

from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import ManifestError, steps
from holdfast.flash.storage.reader import verify
from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import BytesRead, Stored, of_files, stored
from holdfast.flash.trainer.restore import RestoreError, Restorer, idle_cores
from holdfast.flash.trainer.save import Preparer
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

    Args:
        root: Directory of the checkpoints.
        step: A committed step.
        parts: The state.
        place: This rank's position.
        preparer: The state's, after `Preparer.meet(again=True)`.
        partial: Load the parts that fit, and leave the rest as it is.

    Returns:
        Notes for the user, and the bytes that were read.

    Raises:
        RestoreError: there is no such step, a file is missing or damaged, or the state does not
            fit; on all ranks if on one. Nothing was changed.
        StateError: the state has a part that cannot be filled.
    """
    disk, path = PosixDisk(), f"{root}/step_{step}"

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

    restorer = Restorer(parts, place, source, lambda _: None, preparer.holders)
    return restorer.run(partial=partial, threads=idle_cores(place)), restorer.read
