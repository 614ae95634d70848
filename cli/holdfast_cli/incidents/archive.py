"""A zip file with one incident, to pass on.

Belongs here: its files. Does not belong here: getting the incident (`command`).
"""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast_cli.errors import BadInputError
from holdfast_cli.render import to_json, to_plain
from holdfast_cli.terminal_text import clean
from holdfast_wire.messages import GetIncidentResponse

_OLDEST: Final = (1980, 1, 1, 0, 0, 0)
"""Earliest time that a zip file can name."""


def save(path: Path, answer: GetIncidentResponse) -> int:
    """Write the file, 0600, and return the number of stacks in it.

    Raises:
        BadInputError: `path` exists, or cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadInputError(
            f"--save is {path}, which exists and stays as it is; name another file, or remove it"
        ) from None
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        with os.fdopen(file, "wb") as target, zipfile.ZipFile(target, "w") as zipped:
            for name, text in _files(answer):
                about = zipfile.ZipInfo(name, _date(answer))
                about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
                zipped.writestr(about, text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritten(path, error) from error
    return sum(bool(rank.stack) for rank in answer.evidence.ranks) if answer.evidence else 0


def _unwritten(path: Path, error: OSError) -> BadInputError:
    return BadInputError(
        f"--save is {path}, which cannot be written ({error.strerror}); name a file in a directory "
        "that exists, may be written and has room"
    )


def _date(answer: GetIncidentResponse) -> tuple[int, int, int, int, int, int]:
    opened = answer.incident.opened_unix if answer.incident else 0.0
    local = time.localtime(opened)
    return max(_OLDEST, (*local[:5], local.tm_sec))


def _files(answer: GetIncidentResponse) -> Iterator[tuple[str, str]]:
    """Yield names and texts; a name has nothing in it that a job has chosen."""
    plain = to_plain(answer)
    ranks = plain["evidence"]["ranks"] if plain["evidence"] else []
    for rank in ranks:
        stack, number = rank.pop("stack"), f"{rank['rank']:05}"
        if stack:
            yield f"stacks/rank-{number}.txt", f"{clean(stack, lines=True).rstrip()}\n"
        yield f"recorder/rank-{number}.json", to_json(rank["groups"])
    yield "incident.json", to_json(plain)
