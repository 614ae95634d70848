"""News in one form: the master's events, and what became of the job's own conditions. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_operator.news.digest import Happening
from holdfast_wire.messages import EventSeverity, JobEvent

_TOLD: Final = ("Suspended", "Complete", "Failed")
"""Conditions whose change people look for; the master tells the rest, and in more words."""
_MICROSECONDS: Final = 1_000_000


def from_master(event: JobEvent) -> Happening:
    """What a master told."""
    node = f"node {event.node}"
    named = not event.node or re.search(rf"\b{re.escape(node)}\b", event.text)
    about = "" if named else f"{node}: "
    return Happening(
        reason=event.reason,
        text=about + event.text,
        warning=event.severity in {EventSeverity.WARNING, EventSeverity.ERROR},
        at_us=round(event.unix_time * _MICROSECONDS),
        sequence=event.sequence,
    )


def notice(reason: str, text: str, now: float) -> Happening:
    """A warning of the operator's own.

    Args:
        reason: CamelCase.
        text: For people.
        now: Unix time, s.
    """
    return Happening(reason=reason, text=text, warning=True, at_us=round(now * _MICROSECONDS))


def transitions(
    before: Mapping[str, Any], after: Mapping[str, Any], now: float
) -> Sequence[Happening]:
    """What became true or false with a new status.

    Args:
        before: The last status; empty: none.
        after: The one in its place.
        now: Unix time, s.
    """
    old = {one["type"]: one["status"] for one in before.get("conditions", ())}
    return [
        Happening(
            reason=one["reason"],
            text=one["message"] or f"{one['type']} is {one['status']}",
            warning=one["type"] == "Failed",
            at_us=round(now * _MICROSECONDS),
        )
        for one in after.get("conditions", ())
        if one["type"] in _TOLD and old.get(one["type"], "False") != one["status"]
    ]
