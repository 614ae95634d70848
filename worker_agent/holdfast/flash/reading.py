"""Finds the committed step to start from: the newest whose every item has its hash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.flash.commit import read_manifest, steps
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk
from holdfast.flash.manifest import FormatError, Manifest, ManifestError, Shard

_PIECE: Final = 2**20
"""Bytes that are read and hashed at once: they stay in a core's cache in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A step that verifies."""

    path: str
    manifest: Manifest


def verify(disk: Disk, path: str, share: int = 0, shares: int = 1) -> Manifest:
    """Return the manifest of a committed step after comparing every item's hash.

    share, shares: look at one file in so many only, as others look at the rest.
    Raises `ManifestError` naming the file and the item that differ.
    """
    manifest = read_manifest(disk, path)
    _compare(disk, path, manifest.shards[share::shares])
    return manifest


def _compare(disk: Disk, path: str, shards: Iterable[Shard]) -> None:
    for shard in shards:
        file = f"{path}/{shard.file}"
        try:
            handle = disk.open(file)
            try:
                _compare_items(disk, handle, file, shard)
            finally:
                disk.close(handle)
        except OSError as error:
            raise ManifestError(f"{file}: {error}") from error


def _compare_items(disk: Disk, handle: int, file: str, shard: Shard) -> None:
    """Compare by reading: of a mapping what the disk cannot read is a SIGBUS, to an agent too."""
    table, buffer = shard.table, memoryview(bytearray(_PIECE))
    for item, (begin, length), stated in zip(
        table.items, table.spans(shard.lengths), shard.hashes, strict=True
    ):
        if not item.tail and _hash_of(disk, handle, begin, length, buffer) != stated:
            raise ManifestError(f"{file}: {item.name} at byte {begin} is damaged")


def _hash_of(disk: Disk, handle: int, begin: int, length: int, buffer: memoryview) -> int:
    from xxhash import xxh3_64

    digest, at, end = xxh3_64(), begin, begin + length
    while at < end:
        done = disk.read_at(handle, at, buffer[: end - at])
        if not done:
            break  # it is shorter than a moment ago: the hash is another
        digest.update(buffer[:done])
        at += done
    return digest.intdigest()


def newest(disk: Disk, root: str, above: Version | None = None) -> tuple[Found | None, list[str]]:
    """Return the newest step that verifies, and a line for each newer one that does not.

    above: only a later version is of interest; of older ones nothing but the manifest is read.
    Raises `FormatError` for a step of a newer Holdfast that would be passed over.
    """
    notes: list[str] = []
    for step in reversed(steps(disk, root)):
        path = f"{root}/step_{step}"
        try:
            manifest = _named(disk, path, step)
            if above is not None and manifest.version <= above:
                continue
            _compare(disk, path, manifest.shards)
            return Found(path=path, manifest=manifest), notes
        except FormatError:
            raise
        except ManifestError as error:
            notes.append(f"step {step} was passed over: {error}")
    return None, notes


def committed(disk: Disk, root: str, most: int) -> list[Version]:
    """Return the versions of the newest committed steps whose manifests can be read.

    Raises `FormatError` for one of them that a newer Holdfast wrote.
    """
    found: list[Version] = []
    for step in reversed(steps(disk, root)):
        if len(found) == most:
            break
        try:
            found.append(_named(disk, f"{root}/step_{step}", step).version)
        except FormatError:
            raise
        except ManifestError:
            continue
    return sorted(found, reverse=True)


def _named(disk: Disk, path: str, step: int) -> Manifest:
    """Return the manifest of the step that a directory is named for: a copy may be an older one."""
    manifest = read_manifest(disk, path)
    if manifest.version.step != step:
        raise ManifestError(f"{path} holds step {manifest.version.step}, not the one of its name")
    return manifest
