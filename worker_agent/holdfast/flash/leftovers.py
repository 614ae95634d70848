"""Attempts that nobody will commit any more: which those are, and their end.

A job leaves some in all good order: a step that a rank was too late for, what a world started from
and was being written beside when the job ended. Belongs here: what may go at which moment. Does not
belong here: committed steps (`retaining`), how something is deleted (`commit`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Set as AbstractSet
from typing import Final

from holdfast.flash.commit import attempts, sweep
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk
from holdfast.flash.manifest import MANIFEST_NAME, ManifestError, decode_manifest

_DESCRIPTION: Final = re.compile(r"\.shard\.(\d+)\.json")


def left_behind(disk: Disk, root: str, token: str) -> frozenset[str]:
    """Return the folders of attempts that earlier worlds than this one left half done."""
    with contextlib.suppress(OSError):
        found = attempts(disk, root)
        return frozenset(one.folder for one in found if not one.number.startswith(token))
    return frozenset()


def clear_up(disk: Disk, root: str, folders: AbstractSet[str]) -> None:
    """Delete what was left behind; raises OSError.

    What others have begun since it was looked for is not touched, however late this comes.
    """
    with contextlib.suppress(FileNotFoundError):
        sweep(disk, root, lambda one: one.folder not in folders)


def pass_over(disk: Disk, root: str, attempt: str, committed: Version) -> None:
    """Delete the older versions of this attempt that lack parts, now that one is committed.

    Whoever writes does so in order: what a rank or a node has not written before it wrote a newer
    version, it never will. One with all parts may be granted still.
    """
    with contextlib.suppress(OSError):  # what stays costs room, not safety
        sweep(
            disk,
            root,
            lambda one: (
                one.number != attempt
                or one.version >= committed
                or is_whole(disk, f"{root}/{one.folder}")
            ),
        )


def leave_nothing(
    disk: Disk, root: str, begun: AbstractSet[str], own: AbstractSet[str], *, first: bool
) -> None:
    """Delete what a keeper began, now that the job is over and nobody commits; raises OSError.

    begun: names of the attempts that it wrote parts of. own: those that it took to commit them.
    first: it keeps rank 0. Whose is that also deletes what has all parts, and no other does: grants
    go to its node, so what was granted in the last moment is committed by now.
    """
    with contextlib.suppress(FileNotFoundError):
        sweep(
            disk,
            root,
            lambda one: (
                one.number not in own
                and (
                    one.number not in begun
                    or (not first and is_whole(disk, f"{root}/{one.folder}"))
                )
            ),
        )


def is_whole(disk: Disk, folder: str) -> bool:
    """Tell whether an attempt's directory has the parts of all ranks, each with its description."""
    with contextlib.suppress(OSError, ManifestError):
        names = disk.names(folder)
        if MANIFEST_NAME in names:
            return True
        described = sorted(name for name in names if _DESCRIPTION.fullmatch(name))
        if described:
            (shard,) = decode_manifest(disk.read(f"{folder}/{described[0]}")).shards
            return len(described) == shard.table.world
    return False
