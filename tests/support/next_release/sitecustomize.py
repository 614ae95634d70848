"""Makes a process of this tree speak as one of the next minor release, by PYTHONPATH.

It says what this release does not know: a field in every message and in every status, a status in
three that is a message of a new kind, and one whose phase has a new number. SAYS_NEW names a file
that gets a line for each kind of news, so that a test knows that it was said.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from holdfast_wire import codec
from holdfast_wire.messages import JobStatus, SyncRequest, SyncResponse, WatchJobResponse

FIELD: Final = b"\xc2\x3e\x05later"
"""Field 1000, a text."""
PHASE: Final = b"\x18\x63"
"""JobStatus.phase is 99."""
_STATUS: Final = b"\x0a"
"""Field 1 of SyncResponse; said again it is merged into what was said before."""

_encode = codec.encode
_turns = itertools.count()
_told: set[str] = set()


def _tell(kind: str) -> None:
    if kind not in _told:
        _told.add(kind)
        with Path(os.environ["SAYS_NEW"]).open("a") as file:
            file.write(f"{kind}\n")


def _more(message: bytes, addition: bytes) -> bytes:
    return message + _STATUS + bytes([len(addition)]) + addition


def encode(twin: object) -> bytes:
    """The bytes of a message, with news."""
    data = _encode(twin)
    if isinstance(twin, SyncResponse) and isinstance(twin.message, JobStatus):
        match next(_turns) % 3:
            case 0:
                _tell("message")
                return FIELD
            case 1:
                _tell("phase")
                return _more(data, PHASE)
            case _:
                data = _more(data, FIELD)
    if isinstance(twin, (SyncRequest, SyncResponse, WatchJobResponse)):
        _tell("field")
        data += FIELD
    return data


codec.encode = encode
