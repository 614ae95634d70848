"""All HOLDFAST_* environment variables, and the detection of unknown ones."""

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
        "HOLDFAST_CHECKPOINT",
        "HOLDFAST_EPOCH",
        "HOLDFAST_FORK",
        "HOLDFAST_GRACE_SECONDS",
        "HOLDFAST_HOME",
        "HOLDFAST_JOB",
        "HOLDFAST_JOB_UID",
        "HOLDFAST_JOURNAL_DIR",
        "HOLDFAST_LOG_LEVEL",
        "HOLDFAST_MASTER",
        "HOLDFAST_NNODES",
        "HOLDFAST_NODE_RANK",
        "HOLDFAST_NOTICES",
        "HOLDFAST_NPROC_PER_NODE",
        "HOLDFAST_OUTER_ROSTER",
        "HOLDFAST_PAGE",
        "HOLDFAST_POD_UID",
        "HOLDFAST_PRELOAD",
        "HOLDFAST_REPLICA",
        "HOLDFAST_ROUND",
        "HOLDFAST_SCHEDULE",
        "HOLDFAST_STARTS_DIR",
        "HOLDFAST_STEP_LOG",
        "HOLDFAST_SYNC_CHOICES",
        "HOLDFAST_TLS_DIR",
        "HOLDFAST_TOPOLOGY",
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
