"""Sources of notices about this node's end, as HOLDFAST_NOTICES names them.

Belongs here: reading that variable. Does not belong here: asking the sources (`notices`).
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast_agent.errors import InputError

ENV_NOTICES: Final = "HOLDFAST_NOTICES"
"""Sources, comma-separated: `gce`, `aws`, `azure`, each perhaps with `@URL`, and `file:PATH`."""


class NoticeService(enum.Enum):
    """A kind of source."""

    GCE = "gce"
    AWS = "aws"
    AZURE = "azure"
    FILE = "file"


@dataclasses.dataclass(frozen=True, slots=True)
class NoticeSource:
    """One source."""

    service: NoticeService
    where: str
    """Base URL of a metadata service, without a slash at its end; path of a file."""


_DEFAULTS: Final = {
    NoticeService.GCE: "http://metadata.google.internal",
    NoticeService.AWS: "http://169.254.169.254",
    NoticeService.AZURE: "http://169.254.169.254",
}
_EXPECTED: Final = "gce, aws, azure (each perhaps followed by @URL) or file:/PATH, comma-separated"
_RANK: Final = "{node_rank}"
"""Stands for the node rank in a file's path: nodes on one machine have a file each."""


def parse(text: str, node_rank: int = 0) -> tuple[NoticeSource, ...]:
    """Return the sources in a text; an empty one has none.

    Raises InputError: it names an unknown source, or the same one twice.
    """
    found = tuple(
        _source(text, item.strip(), node_rank) for item in text.split(",") if item.strip()
    )
    services = [source.service for source in found]
    if len(set(services)) < len(services):
        raise InputError(ENV_NOTICES, text, "each source once")
    return found


def _source(text: str, item: str, node_rank: int) -> NoticeSource:
    if item.startswith("file:"):
        path = item.removeprefix("file:").replace(_RANK, str(node_rank))
        if not Path(path).is_absolute():
            raise InputError(ENV_NOTICES, text, "an absolute path after file:")
        return NoticeSource(NoticeService.FILE, path)
    name, separator, url = item.partition("@")
    service = next((one for one in _DEFAULTS if one.value == name), None)
    if service is None:
        raise InputError(ENV_NOTICES, text, _EXPECTED)
    if not separator:
        return NoticeSource(service, _DEFAULTS[service])
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InputError(ENV_NOTICES, text, f"a URL after {name}@, for example http://10.0.0.1:80")
    return NoticeSource(service, url.rstrip("/"))
