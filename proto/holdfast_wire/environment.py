"""All HOLDFAST_* environment variables, and the detection of unknown ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from holdfast_wire import keys

PREFIX = "HOLDFAST_"
KNOWN = frozenset(
    {
        *(value for name, value in vars(keys).items() if name.startswith("ENV_")),
        "HOLDFAST_FORK",
        "HOLDFAST_HOME",
        "HOLDFAST_LOG_LEVEL",
        "HOLDFAST_NOTICES",
        "HOLDFAST_PRELOAD",
    }
)
"""Names that some part reads; a test compares this with the source."""

OPERATORS = "HOLDFAST_OPERATOR_"
"""Prefix of the operator's settings; each is a field of its own parser."""

_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
"""Variables that Kubernetes sets in every pod for a Service called holdfast-…."""


def unknown(names: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each HOLDFAST_* variable that no part reads, with the nearest known name.

    It is a notice and no refusal: a script may have variables of its own with this prefix.
    """
    odd = sorted(
        name
        for name in names
        if name.startswith(PREFIX) and name not in KNOWN and not _is_anothers(name)
    )
    return tuple(
        f"{name} has no effect: Holdfast has no such variable{_hint(name)}" for name in odd
    )


def _is_anothers(name: str) -> bool:
    return name.startswith(OPERATORS) or _SERVICE_LINK.search(name) is not None


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""
