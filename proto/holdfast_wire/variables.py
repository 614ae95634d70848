"""Every HOLDFAST_* environment variable, whichever part reads it, and what looks like one.

Belongs here: telling a name that nobody reads, and the nearest one that somebody does. Does not
belong here: what a variable means (the part that reads it).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

PREFIX = "HOLDFAST_"
KNOWN = frozenset(
    {
        "HOLDFAST_ARENA",
        "HOLDFAST_ARENA_DIR",
        "HOLDFAST_ARENA_SOCKET",
        "HOLDFAST_EPOCH",
        "HOLDFAST_FORK",
        "HOLDFAST_GRACE_SECONDS",
        "HOLDFAST_HOME",
        "HOLDFAST_JOB",
        "HOLDFAST_JOB_UID",
        "HOLDFAST_JOURNAL_DIR",
        "HOLDFAST_KEEP",
        "HOLDFAST_LOG_LEVEL",
        "HOLDFAST_MASTER",
        "HOLDFAST_NNODES",
        "HOLDFAST_NODE_RANK",
        "HOLDFAST_NPROC_PER_NODE",
        "HOLDFAST_PAGE",
        "HOLDFAST_POD_UID",
        "HOLDFAST_PRELOAD",
        "HOLDFAST_ROUND",
        "HOLDFAST_SCHEDULE",
        "HOLDFAST_STARTS_DIR",
        "HOLDFAST_STEP_LOG",
        "HOLDFAST_TLS_DIR",
        "HOLDFAST_TOPOLOGY",
    }
)
"""A test compares this with the source."""

OPERATORS = "HOLDFAST_OPERATOR_"
"""The operator's settings begin so; each is a field of its own parser."""

_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
"""What Kubernetes sets in every pod for a Service called holdfast-…."""


def unknown(names: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each HOLDFAST_* variable that nothing reads.

    A notice and no refusal: a script may have variables of its own that begin so.
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
