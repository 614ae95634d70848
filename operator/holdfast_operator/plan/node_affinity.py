"""Node affinity of a pod: writes and reads the nodes that it must not run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

HOSTNAME: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def avoided_by(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes that every alternative of a pod's node affinity excludes by name."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
    named = [_named(term) for term in terms]
    return tuple(sorted(set.intersection(*named))) if named else ()


def _named(term: Mapping[str, Any]) -> set[str]:
    return {
        node
        for one in term.get("matchExpressions") or ()
        if (one["key"], one["operator"]) == (HOSTNAME, "NotIn")
        for node in one.get("values") or ()
    }
