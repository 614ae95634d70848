"""Owner of a checkpoint directory: the job that began to save there last.

    owners/<n>.<job>    an empty file for each job; the greatest number has the directory

A job that continues where an older one ended adds its file with its first commit. From then on the
older job, should it still live, neither commits there nor starts from there. Otherwise each job
would replace the other's steps and take them for its own, and neither would notice.

Belongs here too: finding the attempts that no job will commit any more, and deleting them. Even a
job without a failure leaves some: a step that a rank was too late for, or a copy of the start's
checkpoint that was still being written at the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Set as AbstractSet
from typing import Final

from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import DESCRIPTION, CommitError, attempts, sweep
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import MANIFEST_NAME, ManifestError, decode_manifest

FOLDER: Final = "owners"
_NAME: Final = re.compile(r"(\d{1,9})\.(.+)")
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]")
_MOST: Final = 64
"""Jobs that are remembered: a job with so many successors is dead."""


def take(disk: Disk, root: str, owner: str) -> None:
    """Give the directory to the job `owner`, durably, if the job is new there.

    If two jobs come at once, one of them has it, and both know which.
    Raises `CommitError` if a newer job has the directory, or the disk failed.
    """
    try:
        known = _known(disk, root)
        if not any(name == _plain(owner) for _, name in known):
            _enter(disk, root, known, _plain(owner))
            known = _known(disk, root)
        if reason := _superseded(root, known, _plain(owner)):
            raise CommitError(reason)
    except OSError as error:
        raise CommitError(f"whose {root} is could not be noted: {error}") from error


def superseded(disk: Disk, root: str, owner: str) -> str:
    """Return the reason why the job `owner` must not use the directory any more; empty: it may.

    Raises OSError.
    """
    return _superseded(root, _known(disk, root), _plain(owner))


def _enter(disk: Disk, root: str, known: list[tuple[int, str]], name: str) -> None:
    folder, number = f"{root}/{FOLDER}", known[-1][0] + 1 if known else 1
    with contextlib.suppress(FileExistsError):
        disk.make_dir(folder)
    disk.sync_dir(root)
    with contextlib.suppress(FileExistsError):  # made by this very job: its name is in it
        disk.close(disk.create(f"{folder}/{number}.{name}", direct=False))
    disk.sync_dir(folder)
    for at, old in known[: 1 - _MOST]:
        with contextlib.suppress(OSError):  # a file that stays costs nothing
            disk.unlink(f"{folder}/{at}.{old}")


def _superseded(root: str, known: list[tuple[int, str]], name: str) -> str:
    newest = known[-1] if known else (0, name)
    if newest[1] == name or not any(old == name for _, old in known):
        return ""
    return (
        f"{root} belongs to job {newest[1]}, which began to save there after this one, {name}: "
        "give each job a directory of its own. To have this one go on here, end the other and "
        f"delete {root}/{FOLDER}/{newest[0]}.{newest[1]}"
    )


def _known(disk: Disk, root: str) -> list[tuple[int, str]]:
    """Return number and name of all jobs that have saved there, the newest last."""
    folder = f"{root}/{FOLDER}"
    try:
        found = (_NAME.fullmatch(name) for name in disk.names_if_any(folder))
    except NotADirectoryError:
        raise NotADirectoryError(
            f"{folder} is a file: whose the checkpoints are is noted there; move it away"
        ) from None
    return sorted((int(match[1]), match[2]) for match in found if match)


def _plain(owner: str) -> str:
    return _ODD.sub("_", owner)[:128]


def left_behind(disk: Disk, root: str, token: str) -> frozenset[str]:
    """Return the directories of attempts that earlier worlds left unfinished."""
    with contextlib.suppress(OSError):
        found = attempts(disk, root)
        return frozenset(one.folder for one in found if not one.number.startswith(token))
    return frozenset()


def clear_up(disk: Disk, root: str, folders: AbstractSet[str]) -> None:
    """Delete unfinished attempts; raises OSError.

    An attempt that began after they were listed is not touched, however late this call comes.
    """
    sweep(disk, root, lambda one: one.folder not in folders)


def pass_over(disk: Disk, root: str, attempt: str, committed: Version) -> None:
    """Delete older, incomplete versions of this attempt, now that a version is committed.

    Each rank and node writes in order: a part that it had not written before a newer version will
    never come. An attempt with all parts may still be granted.
    """
    with contextlib.suppress(OSError):  # a directory that stays costs room, not safety
        sweep(
            disk,
            root,
            lambda one: (
                one.number != attempt
                or one.version >= committed
                or is_whole(disk, f"{root}/{one.folder}")
            ),
        )


def discard_attempt(disk: Disk, root: str, attempt: str, version: Version) -> None:
    """Delete a version's attempt, under whatever coordinator's name it lies; raises OSError."""
    sweep(disk, root, lambda one: one.version != version or not one.number.startswith(attempt))


def leave_nothing(
    disk: Disk, root: str, begun: AbstractSet[str], own: AbstractSet[str], *, first: bool
) -> None:
    """Delete a checkpoint server's attempts when the job is over; raises OSError.

    begun: names of the attempts that it wrote parts of. own: attempts that it took to commit.
    first: it serves rank 0. Only that server also deletes attempts with all parts: the master gives
    grants to its node, so a last grant is carried out by now.
    """
    sweep(
        disk,
        root,
        lambda one: (
            one.number not in own
            and (one.number not in begun or (not first and is_whole(disk, f"{root}/{one.folder}")))
        ),
    )


def is_whole(disk: Disk, folder: str) -> bool:
    """Return True if an attempt's directory has the parts of all ranks and their descriptions."""
    with contextlib.suppress(OSError, ManifestError):
        names = disk.names(folder)
        if MANIFEST_NAME in names:
            return True
        described = sorted(name for name in names if DESCRIPTION.fullmatch(name))
        if described:
            (shard,) = decode_manifest(disk.read(f"{folder}/{described[0]}")).shards
            return len(described) == shard.table.world
    return False
