"""The committed steps of a directory, and their manifest `holdfast.json`.

A reader of a checkpoint begins here. The manifest lists the files and items of a step, with the
hash of every item and one of itself.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from holdfast.flash.memory.hashes import hash64
from holdfast.flash.memory.shard_table import (
    NewerTableError,
    ShardTable,
    TableError,
    encode,
    from_fields,
)
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.dcp_metadata import file_name
from holdfast.flash.storage.filesystem import Disk

MANIFEST_NAME: Final = "holdfast.json"
METADATA_NAME: Final = ".metadata"
FORMAT: Final = 1
_STEP: Final = re.compile(r"step_(0|[1-9]\d*)", re.ASCII)
_OWN: Final = re.compile(r"__\d+_\d+\.distcp|\.metadata|holdfast\.json")
"""Names of a checkpoint's files, DCP's included."""
_HEAD: Final = b'{"hash":"%016x","checkpoint":'
_TAIL: Final = b"}\n"


class ManifestError(Exception):
    """A manifest is damaged, or a newer Holdfast wrote it."""


class FormatError(ManifestError):
    """A newer Holdfast wrote a whole checkpoint: no older one may be taken in its place."""

    def __init__(self, file: str, found: int, known: int) -> None:
        super().__init__(
            f"{file}: format={found}, this Holdfast reads {known}: a newer one wrote this "
            "checkpoint, and nothing older is taken for it without being told. Update Holdfast, "
            "or move the directory away to start from what is left"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a step, as its agent reports it."""

    table: ShardTable
    lengths: tuple[int, ...]
    """Lengths of the byte items."""
    hashes: tuple[int, ...]
    """xxh3-64 of each item's bytes in the image, in the table's order."""
    sketches: bytes = b""
    """Sketches of data that ranks should have equal (`replica_check`); in no committed step."""

    @property
    def file(self) -> str:
        """Name of the shard's file in the step's directory."""
        return file_name(self.table.rank)

    @property
    def bytes(self) -> int:
        """Length of the shard's file."""
        return self.table.file_bytes(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A committed step."""

    version: Version
    shards: tuple[Shard, ...]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file's content."""
    shards = [
        {
            "file": shard.file,
            "bytes": shard.bytes,
            "lengths": shard.lengths,
            "hashes": [f"{number:016x}" for number in shard.hashes],
            "table": json.loads(encode(shard.table)),
            **({"sketches": b64encode(shard.sketches).decode()} if shard.sketches else {}),
        }
        for shard in manifest.shards
    ]
    body = {
        "format": FORMAT,
        "lineage": manifest.version.lineage,
        "step": manifest.version.step,
        "shards": shards,
    }
    text = _canonical(body)
    return _HEAD % hash64(text) + text + _TAIL


def _canonical(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


def decode_manifest(content: bytes, file: str = MANIFEST_NAME) -> Manifest:
    """Return the manifest; raises `ManifestError` naming the file, `FormatError` for a newer one.

    A newer format number is believed without the file's hash: that format may hash differently.
    """
    try:
        fields = json.loads(content)
        body = fields["checkpoint"]
        stated = fields["hash"]
        found = body["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{file} is damaged: {error!r}") from error
    if isinstance(found, int) and found > FORMAT and not _is_one_bit_off(body, stated):
        raise FormatError(file, found, FORMAT)
    actual = stated if _is_as_written(content, stated) else f"{hash64(_canonical(body)):016x}"
    if actual != stated or found != FORMAT:
        raise ManifestError(f"{file} is damaged: its hash is {actual}, not {stated}")
    try:
        shards = tuple(_shard(shard) for shard in body["shards"])
        version = Version(int(body["lineage"]), int(body["step"]))
    except NewerTableError as error:
        raise FormatError(file, error.found, error.known) from error
    except (KeyError, TypeError, ValueError, TableError) as error:
        raise ManifestError(f"{file}: {error}") from error
    return Manifest(version=version, shards=shards)


def _is_as_written(content: bytes, stated: Any) -> bool:
    """Return True if the file's own bytes have the hash, which saves writing them once more."""
    text = content[len(_HEAD % 0) : -len(_TAIL)]
    number = hash64(text)
    return stated == f"{number:016x}" and content == _HEAD % number + text + _TAIL


def _is_one_bit_off(body: Any, stated: Any) -> bool:
    """Return True if one flipped bit of the number makes it a newer format: then it is damage."""
    found: int = body["format"]
    as_written = f"{hash64(_canonical({**body, 'format': FORMAT})):016x}"
    return found < 10 and (found ^ FORMAT).bit_count() == 1 and bool(as_written == stated)


def _shard(fields: Any) -> Shard:
    return Shard(
        table=from_fields(fields["table"]),
        lengths=tuple(int(length) for length in fields["lengths"]),
        hashes=tuple(int(number, 16) for number in fields["hashes"]),
        sketches=b64decode(fields.get("sketches", "")),
    )


def steps(disk: Disk, root: str) -> list[int]:
    """Return the committed steps, oldest first; empty if there is no directory."""
    found = (_STEP.fullmatch(name) for name in disk.names_if_any(root))
    return sorted(int(match[1]) for match in found if match)


def newest_of(disk: Disk, root: str) -> int:
    """Return the greatest step that Holdfast committed, damaged or not; 0: none."""
    found = (step for step in reversed(steps(disk, root)) if is_own(disk, f"{root}/step_{step}"))
    return next(found, 0)


def is_own(disk: Disk, path: str) -> bool:
    """Return True if a directory is a committed step of Holdfast and nothing else.

    A committed step gets its name with its manifest in it: one without a manifest is foreign.
    """
    try:
        names = disk.names(path)
    except OSError:
        return False
    return MANIFEST_NAME in names and all(_OWN.fullmatch(name) for name in names)


def foreign_names(disk: Disk, path: str) -> list[str]:
    """Return the names in a directory that are no checkpoint's; empty if there is no directory."""
    return sorted(name for name in disk.names_if_any(path) if not _OWN.fullmatch(name))


def read_manifest(disk: Disk, path: str, *, files: bool = True) -> Manifest:
    """Return a committed step's manifest.

    files: check the lengths of its files too. A rank that opens a few of them leaves that to
    `view_of`: a thousand ranks need not look at a thousand files each. Raises `ManifestError` if
    the manifest or a file is missing or damaged, `FormatError` if a newer Holdfast wrote it.
    """
    try:
        file = f"{path}/{MANIFEST_NAME}"
        manifest = decode_manifest(disk.read(file), file)
        for shard in manifest.shards if files else ():
            _check_length(f"{path}/{shard.file}", disk.size(f"{path}/{shard.file}"), shard)
    except OSError as error:
        raise ManifestError(f"{path}: {error}") from error
    return manifest


def view_of(disk: Disk, path: str, shard: Shard) -> memoryview:
    """Return a committed shard's bytes, mapped; raises `ManifestError` unless they are all there.

    path: the step's directory.
    """
    try:
        found = disk.view(f"{path}/{shard.file}")
    except OSError as error:
        raise ManifestError(f"{path}: {error}") from error
    _check_length(f"{path}/{shard.file}", len(found), shard)
    return found


def _check_length(file: str, found: int, shard: Shard) -> None:
    if found != shard.bytes:
        raise ManifestError(f"{file}: {found} bytes, not {shard.bytes}")


def read_manifest_or_none(disk: Disk, path: str) -> Manifest | None:
    """Return the manifest, or None if `read_manifest` raises."""
    try:
        return read_manifest(disk, path)
    except ManifestError:
        return None
