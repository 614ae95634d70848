"""Turns shards into a committed step of a directory, and removes what dead processes left there.

The order of operations is the guarantee: a name becomes visible only when all that it stands on is
durable. `filesystem` does the operations. The master decides on the commit, or without a master the
checkpoint server.

    step_<n>.tmp.<lineage>.<attempt>/   being written; nobody reads it
    step_<n>/                           committed
    .trash.<id>/                        being deleted
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.flash.ids import unique
from holdfast.flash.memory import replica_check
from holdfast.flash.memory.shard_table import holes
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.dcp_metadata import metadata_pickle
from holdfast.flash.storage.filesystem import DIRECT_ALIGN, Disk
from holdfast.flash.storage.manifest import (
    MANIFEST_NAME,
    METADATA_NAME,
    FormatError,
    Manifest,
    ManifestError,
    Shard,
    decode_manifest,
    encode_manifest,
    foreign_names,
    is_own,
    read_manifest,
    read_manifest_or_none,
)

_TEMPORARY: Final = re.compile(r"step_(\d+)\.tmp\.(\d+)\.(\w+)", re.ASCII)
DESCRIPTION: Final = re.compile(r"\.shard\.\d+\.json")
"""Name of the file in which a rank's shard describes itself, before the step is committed."""
_TRASH: Final = ".trash."
_CHUNK: Final = 16 * 2**20
"""Bytes of one write: large enough for a direct one to run at the disk's speed."""
_TRIES: Final = 3
"""Files that a shard may be written to. A failed fsync may have dropped pages that a second fsync
reports as durable, so each try is a new file."""


_SHOWN: Final = 3
_UNLIKE: Final = (
    "Equal names stand for equal values on all ranks, of which each is stored once. Give the "
    "modules of each stage names of their own (a ModuleDict by layer number), pass what is each "
    "rank's own in per_rank, or make it equal. Of a model that DDP wraps pass the DDP: buffers are "
    "rank 0's then. Copies of one parameter (tied embeddings, norms under tensor parallelism) part "
    "where its gradients are not summed over all its ranks: mend that, go on from an earlier step"
)
log: Final = logging.getLogger(__name__)
_left_alone: Final = set[str]()
"""Attempts of a newer Holdfast that the log has named already."""


class CommitError(Exception):
    """A step could not be committed. Earlier committed steps are unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to commit a step; each try has a directory of its own."""

    version: Version
    number: str = "0"
    """Letters and digits; different for each coordinator."""

    @property
    def folder(self) -> str:
        """Name of the attempt's directory."""
        return f"step_{self.version.step}.tmp.{self.version.lineage}.{self.number}"


def open_attempt(disk: Disk, root: str, attempt: Attempt) -> str:
    """Make the attempt's directory durable and return its path; the directory may exist already."""
    path = f"{root}/{attempt.folder}"
    with contextlib.suppress(FileExistsError):
        disk.make_dir(path)
    disk.sync_dir(root)
    return path


def write_shard(disk: Disk, folder: str, shard: Shard, image: memoryview) -> None:
    """Write a rank's file into an attempt's directory, durably, from the image of its slot.

    Raises `CommitError` if there is no room, or every try failed.
    """
    for left in reversed(range(_TRIES)):
        try:
            write_whole(disk, folder, shard.file, image, shard.bytes)
        except OSError as error:
            full = error.errno in (28, 122)  # ENOSPC, EDQUOT: another try needs as much room
            if full or not left or not _exists(disk, folder):
                raise CommitError(
                    f"{folder}/{shard.file}: {shard.bytes} bytes were not written: {error}"
                ) from error
        else:
            return


def write_whole(disk: Disk, folder: str, name: str, data: memoryview, size: int) -> None:
    """Write `size` bytes under a temporary name, and rename the file once it is durable."""
    private = f"{folder}/.{name}.{unique()}"
    padded = -(-size // DIRECT_ALIGN) * DIRECT_ALIGN
    direct = len(data) >= padded
    handle = disk.create(private, direct=direct)
    try:
        try:
            for at in range(0, padded if direct else size, _CHUNK):
                disk.write(handle, data[at : min(at + _CHUNK, padded if direct else size)])
            disk.truncate(handle, size)
            disk.sync(handle)
        finally:
            disk.close(handle)
        disk.rename(private, f"{folder}/{name}")
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(private)
        raise
    disk.sync_dir(folder)


def _exists(disk: Disk, folder: str) -> bool:
    try:
        disk.names(folder)
    except OSError:
        return False
    return True


def commit(
    disk: Disk,
    root: str,
    attempt: Attempt,
    shards: Iterable[Shard],
    own: str | None = None,
    final: str = "",
) -> str:
    """Commit the step whose shards lie durable in the attempt's directory; return its path.

    own: this coordinator's attempt number. The directory is renamed to it first, so that a
        coordinator that was thought dead finds nothing to rename.
    final: the path for the checkpoint, in the same directory; empty: the step's own path. Only a
        checkpoint may be there already: it is replaced as a whole.

    Raises `CommitError` if a shard is missing or short, tensors are not covered, or the disk
    failed.
    """
    parts = sorted(shards, key=_rank)
    _check(attempt.version.step, parts)
    manifest = Manifest(
        version=attempt.version, shards=tuple(replace(part, sketches=b"") for part in parts)
    )
    mine = Attempt(version=attempt.version, number=own or unique())
    folder, given = f"{root}/{mine.folder}", bool(final)
    final = final or f"{root}/step_{attempt.version.step}"
    try:
        disk.rename(f"{root}/{attempt.folder}", folder)
        for shard in manifest.shards:
            found = disk.size(f"{folder}/{shard.file}")
            if found != shard.bytes:
                raise CommitError(f"{folder}/{shard.file}: {found} bytes, not {shard.bytes}")
        metadata = metadata_pickle((shard.table, shard.lengths) for shard in manifest.shards)
        for name, content in (
            (METADATA_NAME, metadata),
            (MANIFEST_NAME, encode_manifest(manifest)),
        ):
            write_whole(disk, folder, name, memoryview(content), len(content))
        _tidy(disk, folder)  # only now: a successor without a manifest needs the descriptions
        _publish(disk, root, folder, final, manifest, replaces=given)
    except OSError as error:
        raise CommitError(f"{final} was not committed: {error}") from error
    return final


def _tidy(disk: Disk, folder: str) -> None:
    """Remove the files that are no part of the checkpoint: descriptions, and unfinished writes.

    If one of them stayed in the step, also after a power cut, retention would take the step for a
    foreign one, and no job could replace it.
    """
    names = foreign_names(disk, folder)
    for name in names:
        with contextlib.suppress(OSError):
            disk.unlink(f"{folder}/{name}")
    if names:
        disk.sync_dir(folder)


def _rank(shard: Shard) -> int:
    return shard.table.rank


def _check(step: int, shards: Sequence[Shard]) -> None:
    tables = [shard.table for shard in shards]
    ranks = [table.rank for table in tables]
    if not tables or ranks != list(range(tables[0].world)):
        raise CommitError(f"step {step}: shards of ranks {ranks} are no world")
    wrong = holes(tables)
    if wrong:
        raise CommitError(f"step {step} is incomplete: {'; '.join(wrong[:10])}")
    if mixed := _mixed(shards):
        more = f" and {len(mixed) - _SHOWN} more" if len(mixed) > _SHOWN else ""
        raise CommitError(f"{'; '.join(mixed[:_SHOWN])}{more}. {_UNLIKE}")


def _mixed(shards: Sequence[Shard]) -> list[str]:
    """Return the names under which ranks have different values, by their sketches."""
    found = list(replica_check.unlike({_rank(shard): shard.sketches for shard in shards}))
    names: dict[int, str] = {}
    if found:
        names = {
            replica_check.hash_of(name): name for shard in shards for name in shard.table.paths
        }
    return sorted(
        f"{names.get(name, 'a value')} on rank {one} is another than on rank {other}"
        for name, one, other in found
    )


def _publish(
    disk: Disk, root: str, folder: str, final: str, manifest: Manifest, *, replaces: bool
) -> None:
    """Give the checkpoint its name. replaces: replace a foreign checkpoint of that name too."""
    try:
        disk.rename_new(folder, final)
    except FileExistsError:
        if read_manifest_or_none(disk, final) == manifest:
            discard(disk, root, folder)  # an earlier commit succeeded; only its answer was lost
            return
        # The same step of a lineage that the job has rolled back, or a name used again.
        foreign = foreign_names(disk, final)
        if foreign:
            raise CommitError(
                f"{final} holds what is no part of a checkpoint ({', '.join(foreign[:3])}): "
                "give each checkpoint a directory of its own"
            ) from None
        if newer := _newer(disk, final):
            raise CommitError(newer) from None
        if not replaces and not is_own(disk, final):
            raise CommitError(
                f"{final} was not written by Holdfast: move it away, or give the Checkpointer "
                "a directory of its own"
            ) from None
        disk.exchange(folder, final)
        disk.sync_dir(root)
        discard(disk, root, folder)
        return
    disk.sync_dir(root)


def _newer(disk: Disk, path: str) -> str:
    """Return the reason not to replace a checkpoint: a newer Holdfast wrote it; empty: none."""
    try:
        read_manifest(disk, path)
    except FormatError as error:
        return str(error)
    except ManifestError:
        pass
    return ""


def discard(disk: Disk, root: str, path: str) -> None:
    """Delete a directory; rename it first, so that a half-deleted one is never read."""
    trash = f"{root}/{_TRASH}{unique()}"
    disk.rename(path, trash)
    disk.sync_dir(root)
    disk.remove_tree(trash)


def attempts_of(disk: Disk, root: str, attempt: Attempt) -> list[Attempt]:
    """Return the attempts with a number that begins with this one's, the shortest first."""
    found = [one for one in attempts(disk, root) if one.folder.startswith(attempt.folder)]
    return sorted(found, key=lambda one: (len(one.number), one.number))


def attempts(disk: Disk, root: str) -> list[Attempt]:
    """Return all attempts in a directory."""
    matches = (_TEMPORARY.fullmatch(name) for name in disk.names(root))
    return [_attempt(match) for match in matches if match]


def _attempt(match: re.Match[str]) -> Attempt:
    return Attempt(version=Version(int(match[2]), int(match[1])), number=match[3])


def sweep(disk: Disk, root: str, keep: Callable[[Attempt], bool]) -> None:
    """Delete unfinished work: trash, and the attempts that `keep` does not accept as alive.

    An attempt that a newer Holdfast has described stays too: its meaning is not known here.
    """
    for name in sorted(disk.names_if_any(root)):
        path, match = f"{root}/{name}", _TEMPORARY.fullmatch(name)
        with contextlib.suppress(FileNotFoundError):  # another node deletes it too
            if name.startswith(_TRASH):
                disk.remove_tree(path)
            elif match and not keep(_attempt(match)) and not _is_newer(disk, path):
                discard(disk, root, path)


def _is_newer(disk: Disk, folder: str) -> bool:
    """Return True if a newer Holdfast described an attempt, and log so once."""
    for name in sorted(disk.names(folder)):
        if name != MANIFEST_NAME and not DESCRIPTION.fullmatch(name):
            continue
        try:
            decode_manifest(disk.read(f"{folder}/{name}"), f"{folder}/{name}")
        except FormatError as error:
            if folder not in _left_alone:
                _left_alone.add(folder)
                log.warning("%s is left alone: %s", folder, error)
            return True
        except (ManifestError, OSError):
            continue
        return False
    return False
