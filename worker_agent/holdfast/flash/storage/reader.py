"""Finds the committed step to start from: the newest one whose hashes all match."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.flash.memory.hashes import on_threads
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import (
    FormatError,
    Manifest,
    ManifestError,
    Shard,
    read_manifest,
    steps,
)

_PIECE: Final = 2**20
"""Bytes read and hashed at once: they stay in a core's cache in between."""


def verify(disk: Disk, path: str, share: int = 0, shares: int = 1) -> Manifest:
    """Return the manifest of a committed step after comparing every item's hash.

    share, shares: verify only part `share` of so many parts of the files, in the order of ranks;
    others verify the rest. So a node reads the files first that its own ranks will read next.
    Raises `ManifestError` naming the file and the item that differ.
    """
    manifest = read_manifest(disk, path)
    count = len(manifest.shards)
    _compare(disk, path, manifest.shards[count * share // shares : count * (share + 1) // shares])
    return manifest


@dataclass(frozen=True, slots=True)
class _Stated:
    """One item of a file, and the hash that the manifest states."""

    file: str
    name: str
    begin: int
    length: int
    hash: int


def _compare(disk: Disk, path: str, shards: Iterable[Shard]) -> None:
    """Compare the items of some files, on several threads; the first that differs is named."""
    items = [item for shard in shards for item in _stated(f"{path}/{shard.file}", shard)]
    on_threads(items, lambda item: item.length, lambda run: _compare_items(disk, run))


def _stated(file: str, shard: Shard) -> Iterable[_Stated]:
    table = shard.table
    for item, (begin, length), stated in zip(
        table.items, table.spans(shard.lengths), shard.hashes, strict=True
    ):
        if not item.tail:
            yield _Stated(file, item.name, begin, length, stated)


def _compare_items(disk: Disk, items: Iterable[_Stated]) -> None:
    """Compare by reading: an unreadable byte of a mapping would end an agent with SIGBUS."""
    buffer = memoryview(bytearray(_PIECE))
    for file, own in itertools.groupby(items, lambda item: item.file):
        try:
            handle = disk.open(file)
            try:
                for item in own:
                    if _hash_of(disk, handle, item, buffer) != item.hash:
                        raise ManifestError(f"{file}: {item.name} at byte {item.begin} is damaged")
            finally:
                disk.close(handle)
        except OSError as error:
            raise ManifestError(f"{file}: {error}") from error


def _hash_of(disk: Disk, handle: int, item: _Stated, buffer: memoryview) -> int:
    from xxhash import xxh3_64

    digest, at, end = xxh3_64(), item.begin, item.begin + item.length
    while at < end:
        done = disk.read_at(handle, at, buffer[: end - at])
        if not done:
            break  # the file is shorter than a moment ago: the hash will differ
        digest.update(buffer[:done])
        at += done
    return digest.intdigest()


def newest(
    disk: Disk, root: str, above: Version | None = None
) -> tuple[Manifest | None, list[str]]:
    """Return the newest step that verifies, and a line for each newer step that does not.

    above: only newer versions are verified; of others only the manifest is read.
    Raises `FormatError` if a step of a newer Holdfast would be passed over.
    """
    notes: list[str] = []
    for step in reversed(steps(disk, root)):
        path = f"{root}/step_{step}"
        try:
            manifest = _named(disk, path, step)
            if above is not None and manifest.version <= above:
                continue
            _compare(disk, path, manifest.shards)
            return manifest, notes
        except FormatError:
            raise
        except ManifestError as error:
            notes.append(f"step {step} was passed over: {error}")
    return None, notes


def committed(disk: Disk, root: str, most: int) -> list[Version]:
    """Return the versions of the newest committed steps whose manifests can be read.

    Raises `FormatError` if a newer Holdfast wrote one of them.
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
    """Return the manifest if its step is that of the directory's name: a copy may be older."""
    manifest = read_manifest(disk, path)
    if manifest.version.step != step:
        raise ManifestError(f"{path} holds step {manifest.version.step}, not the one of its name")
    return manifest
