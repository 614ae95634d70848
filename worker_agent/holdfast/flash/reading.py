"""Finds the committed step to start from: the newest whose every item has its hash."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.flash.commit import read_manifest, steps
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk
from holdfast.flash.manifest import FormatError, Manifest, ManifestError, hash64


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
    for shard in manifest.shards[share::shares]:
        table, file = shard.table, f"{path}/{shard.file}"
        try:
            view = disk.view(file)
        except OSError as error:
            raise ManifestError(f"{file}: {error}") from error
        for item, (begin, length), stated in zip(
            table.items, table.spans(shard.lengths), shard.hashes, strict=True
        ):
            if not item.tail and hash64(view[begin : begin + length]) != stated:
                raise ManifestError(f"{file}: {item.name} at byte {begin} is damaged")
    return manifest


def newest(disk: Disk, root: str, above: Version | None = None) -> tuple[Found | None, list[str]]:
    """Return the newest step that verifies, and a line for each newer one that does not.

    above: only a later version is of interest; of older ones nothing but the manifest is read.
    Raises `FormatError` for a step of a newer Holdfast that would be passed over.
    """
    notes: list[str] = []
    for step in reversed(steps(disk, root)):
        path = f"{root}/step_{step}"
        try:
            if above is not None and read_manifest(disk, path).version <= above:
                continue
            return Found(path=path, manifest=verify(disk, path)), notes
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
            found.append(read_manifest(disk, f"{root}/step_{step}").version)
        except FormatError:
            raise
        except ManifestError:
            continue
    return sorted(found, reverse=True)
