"""Whose a directory of checkpoints is: the job's that was the last to begin to save there.

    owners/<n>.<job>    an empty file for each; the greatest number has the directory

A job that goes on where an older one ended adds its file with its first commit. From then on the
older one, should it still live, commits nothing there and starts from nothing there: each of them
would replace the other's steps, and take them for its own, and both would be told that all is well.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from holdfast.flash.commit import CommitError
from holdfast.flash.disk import Disk

FOLDER: Final = "owners"
_NAME: Final = re.compile(r"(\d{1,9})\.(.+)")
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]")
_MOST: Final = 64
"""Jobs that are remembered: one that so many have followed is not alive any more."""


def take(disk: Disk, root: str, owner: str) -> None:
    """Have the directory belong to the job `owner`, durably, if it is new there.

    Of two that come at once one has it, and both know which.
    Raises `CommitError`: a newer job has the directory, or the disk failed.
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
    """Return why the job `owner` has no business in the directory any more; empty: it has.

    Raises OSError.
    """
    return _superseded(root, _known(disk, root), _plain(owner))


def _enter(disk: Disk, root: str, known: list[tuple[int, str]], name: str) -> None:
    folder, number = f"{root}/{FOLDER}", known[-1][0] + 1 if known else 1
    with contextlib.suppress(FileExistsError):
        disk.make_dir(folder)
    disk.sync_dir(root)
    with contextlib.suppress(FileExistsError):  # of this very job: its name is in it
        disk.close(disk.create(f"{folder}/{number}.{name}", direct=False))
    disk.sync_dir(folder)
    for at, old in known[: 1 - _MOST]:
        with contextlib.suppress(OSError):  # one that stays costs nothing
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
        found = (_NAME.fullmatch(name) for name in disk.names(folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise NotADirectoryError(
            f"{folder} is a file: whose the checkpoints are is noted there; move it away"
        ) from None
    return sorted((int(match[1]), match[2]) for match in found if match)


def _plain(owner: str) -> str:
    return _ODD.sub("_", owner)[:128]
