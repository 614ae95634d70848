"""`holdfast.json`: what a committed step consists of, with the hash of every item.

Reading a checkpoint begins here. The file carries a hash of itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.flash.decide.slots import Version
from holdfast.flash.metadata import file_name
from holdfast.flash.table import NewerTableError, ShardTable, TableError, encode, from_fields

MANIFEST_NAME: Final = "holdfast.json"
METADATA_NAME: Final = ".metadata"
FORMAT: Final = 1


class ManifestError(Exception):
    """A manifest is damaged, or a newer Holdfast wrote it."""


class FormatError(ManifestError):
    """A newer Holdfast wrote it: it is whole, so nothing older may be taken in its place."""

    def __init__(self, file: str, found: int, known: int) -> None:
        """Take the file, the format that it says it has, and the newest one that can be read."""
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
    """Of the byte items."""
    hashes: tuple[int, ...]
    """xxh3-64 of each item's bytes in the image, in the table's order."""

    @property
    def file(self) -> str:
        """Its name in the step's directory."""
        return file_name(self.table.rank)

    @property
    def bytes(self) -> int:
        """Length of its file."""
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
    return b'{"hash":"%016x","checkpoint":%s}\n' % (hash64(text), text)


def _canonical(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


def decode_manifest(content: bytes, file: str = MANIFEST_NAME) -> Manifest:
    """Return the manifest; raises `ManifestError` naming the file, `FormatError` for a newer one.

    What says that it is newer is believed without its hash, which may be of another kind there.
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
    actual = f"{hash64(_canonical(body)):016x}"
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


def _is_one_bit_off(body: Any, stated: Any) -> bool:
    """Tell whether one flipped bit of the number alone makes it a newer format: it is damage."""
    found: int = body["format"]
    as_written = f"{hash64(_canonical({**body, 'format': FORMAT})):016x}"
    return found < 10 and (found ^ FORMAT).bit_count() == 1 and bool(as_written == stated)


def _shard(fields: Any) -> Shard:
    return Shard(
        table=from_fields(fields["table"]),
        lengths=tuple(int(length) for length in fields["lengths"]),
        hashes=tuple(int(number, 16) for number in fields["hashes"]),
    )


def hash64(data: bytes | memoryview) -> int:
    """Return xxh3-64; other threads run meanwhile."""
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(data)


def hash_items(image: memoryview, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the hash of each (begin, length) of an image."""
    return tuple(hash64(image[begin : begin + length]) for begin, length in spans)
