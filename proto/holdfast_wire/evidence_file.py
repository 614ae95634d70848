"""Files with the evidence of incidents: names and content, for the master and for tools."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Final

from holdfast_wire import codec
from holdfast_wire.messages import IncidentEvidence

DIRECTORY: Final = "evidence"
"""Below a master's journal directory."""
_NAME: Final = re.compile(r"(i[0-9]+\.[0-9]+)\.evidence")
_MOST_BYTES: Final = 256 * 1024 * 1024
"""Of a file's content: more was written by nobody of ours."""


class EvidenceFileError(Exception):
    """A file that holds no evidence; the text names the file and the fault."""


def path_of(directory: Path, incident_id: str) -> Path | None:
    """The path of an incident's evidence; None: no incident has such an id."""
    path = directory / f"{incident_id}.evidence"
    return path if _NAME.fullmatch(path.name) and path.parent == directory else None


def listing(directory: Path) -> dict[str, int]:
    """The ids of the incidents whose evidence is there, with bytes, oldest first.

    Raises:
        OSError: the directory cannot be read; one that is absent is empty.
    """
    found: list[tuple[int, str, int]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    found.append((about.st_mtime_ns, match[1], about.st_size))
    except FileNotFoundError:
        return {}
    return {name: size for _, name, size in sorted(found)}


def pack(evidence: IncidentEvidence) -> bytes:
    """The content of a file: stacks repeat themselves, and shrink to a tenth."""
    return zlib.compress(codec.encode(evidence), level=1)


def unpack(data: bytes) -> IncidentEvidence:
    """The evidence in a file's content.

    Raises:
        EvidenceFileError: there is none, or it is damaged.
    """
    opened = zlib.decompressobj()
    try:
        whole = opened.decompress(data, _MOST_BYTES)
        if not opened.eof:
            raise EvidenceFileError("it is damaged (its end is missing)")
        return codec.decode(IncidentEvidence, whole)
    except (zlib.error, codec.WireError) as error:
        raise EvidenceFileError(f"it is damaged ({error})") from error


def read(directory: Path, incident_id: str) -> IncidentEvidence | None:
    """The evidence of an incident; None: none is kept.

    Raises:
        EvidenceFileError: it cannot be read, or is damaged.
    """
    path = path_of(directory, incident_id)
    if path is None:
        return None
    try:
        return unpack(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, EvidenceFileError) as error:
        raise EvidenceFileError(f"{path} cannot be used: {error}; remove it") from error
