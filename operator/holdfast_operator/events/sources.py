"""News in one form: the master's events, and changes of the job's own conditions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.events.aggregation import NewsItem
from holdfast_operator.plan import memory_raise
from holdfast_operator.status.condition_rules import WORKERS_FAIL
from holdfast_wire.messages import EventSeverity, JobEvent

_TOLD: Final = ("Suspended", "Complete", "Failed")
"""Conditions whose change becomes an event; the master reports the others in more detail."""
_MICROSECONDS: Final = 1_000_000
NODE_AVOIDED: Final = "NodeAvoided"
"""Reason of the event that new pods avoid a node on which several jobs had trouble."""
MEMORY_RAISED: Final = "MemoryRaised"
"""Reason of the event that the next pod of a worker has more memory."""
MEMORY_EXHAUSTED: Final = "MemoryNotRaised"
"""Reason of the event that a worker has the most memory that its job allows, and ran out of it."""


def from_master(event: JobEvent) -> NewsItem:
    """Return the news in an event of the master."""
    node = f"node {event.node}"
    named = not event.node or re.search(rf"\b{re.escape(node)}\b", event.text)
    about = "" if named else f"{node}: "
    return NewsItem(
        reason=event.reason,
        text=about + event.text,
        warning=event.severity in {EventSeverity.WARNING, EventSeverity.ERROR},
        at_us=round(event.unix_time * _MICROSECONDS),
        sequence=event.sequence,
    )


def notice(reason: str, text: str, now: float) -> NewsItem:
    """Return a warning of the operator's own.

    Args:
        reason: CamelCase.
        text: For people.
        now: Unix time, s.
    """
    return NewsItem(reason=reason, text=text, warning=True, at_us=round(now * _MICROSECONDS))


def _raises(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reason and text of each change of a worker's memory."""
    old = {one["nodeRank"]: one for one in before.get(memory_raise.FIELD, ())}
    for one in after.get(memory_raise.FIELD, ()):
        known = old.get(one["nodeRank"])
        who = f"node {one['nodeRank']} ran out of memory with a limit of"
        if one["limit"] != (known or {"limit": one["tooSmall"]})["limit"]:
            text = f"{who} {one['tooSmall']}: its next pod has {one['limit']}"
            yield MEMORY_RAISED, text
        if one["exhausted"] and not (known and known["exhausted"]):
            text = f"{who} {one['limit']}: failurePolicy.memory.maxMemory allows no more"
            yield MEMORY_EXHAUSTED, f"{text}; raise it, or have the job need less"


def _failing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reason and text once workers begin to fail without a master that could tell."""
    known = {one["reason"] for one in before.get("conditions", ())}
    for one in after.get("conditions", ()):
        if one["reason"] == WORKERS_FAIL and WORKERS_FAIL not in known:
            yield one["reason"], one["message"]


def transitions(
    before: Mapping[str, Any], after: Mapping[str, Any], now: float
) -> Sequence[NewsItem]:
    """Return what a new status has for people: changed conditions, raised memory, failing pods.

    Args:
        before: The last status; empty: none.
        after: The status in its place.
        now: Unix time, s.
    """
    old = {one["type"]: one["status"] for one in before.get("conditions", ())}
    warned = [
        notice(reason, text, now)
        for reason, text in (*_raises(before, after), *_failing(before, after))
    ]
    return warned + [
        NewsItem(
            reason=one["reason"],
            text=one["message"] or f"{one['type']} is {one['status']}",
            warning=one["type"] == "Failed",
            at_us=round(now * _MICROSECONDS),
        )
        for one in after.get("conditions", ())
        if one["type"] in _TOLD and old.get(one["type"], "False") != one["status"]
    ]
