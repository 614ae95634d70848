"""Sources of notices about this node's end, as HOLDFAST_NOTICES names them.

Belongs here: reading that variable. Does not belong here: asking the sources (`notices`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast_agent.errors import InputError

ENV_NOTICES: Final = "HOLDFAST_NOTICES"
"""Sources, comma-separated: `gce`, `aws`, `azure`, each perhaps with `@URL`, and `file:PATH`."""


GCE: Final = "gce"
AWS: Final = "aws"
AZURE: Final = "azure"
FILE: Final = "file"
_DEFAULTS: Final = {
    GCE: "http://metadata.google.internal",
    AWS: "http://169.254.169.254",
    AZURE: "http://169.254.169.254",
}
_EXPECTED: Final = "gce, aws, azure (each perhaps followed by @URL) or file:/PATH, comma-separated"
_RANK: Final = "{node_rank}"
"""Stands for the node rank in a file's path: nodes on one machine have a file each."""


def parse(text: str, node_rank: int = 0) -> dict[str, str]:
    """Return the sources in a text, by their kind; an empty one has none.

    Of a file the path is returned, of a metadata service the base URL, without a slash at its end.

    Raises InputError: it names an unknown source, or the same one twice.
    """
    found = [_source(text, item.strip(), node_rank) for item in text.split(",") if item.strip()]
    by_kind = dict(found)
    if len(by_kind) < len(found):
        raise InputError(ENV_NOTICES, text, "each source once")
    return by_kind


def _source(text: str, item: str, node_rank: int) -> tuple[str, str]:
    if item.startswith("file:"):
        path = item.removeprefix("file:").replace(_RANK, str(node_rank))
        if not Path(path).is_absolute():
            raise InputError(ENV_NOTICES, text, "an absolute path after file:")
        return FILE, path
    name, separator, url = item.partition("@")
    if name not in _DEFAULTS:
        raise InputError(ENV_NOTICES, text, _EXPECTED)
    if not separator:
        return name, _DEFAULTS[name]
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InputError(ENV_NOTICES, text, f"a URL after {name}@, for example http://10.0.0.1:80")
    return name, url.rstrip("/")
