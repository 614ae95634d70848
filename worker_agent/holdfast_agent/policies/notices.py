"""Notices about this node's end: the meaning of the services' answers, and which of them are news.

The consequences for the job are the master's decision.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any, Final

from holdfast_wire.messages import NoticeKind

LONGEST_PAUSE_SECONDS: Final = 60.0
"""Between two tries to reach a service that does not answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One announcement about this node."""

    kind: NoticeKind
    text: str
    """For people."""
    stays: bool = False
    """True: the node will go on; nobody need leave it."""
    at: float | None = None
    """When it happens, Unix time, s; None: at once, or unknown."""

    def seconds_left(self, now: float) -> float:
        """Return the time until then, s; 0: at once, or unknown. `now`: Unix time, s."""
        return 0.0 if self.at is None else max(0.0, self.at - now)


def is_news(known: Notice | None, found: Notice | None) -> bool:
    """Return True if an answer is news. A new text or time alone is none: nobody acts otherwise.

    known: Notice in the answer before it; None: there was none.
    found: Notice in the new answer; None: there is none.
    """
    if known is None or found is None:
        return known is not found
    return (known.kind, known.stays) != (found.kind, found.stays)


def pause(failures: int) -> float:
    """Return the pause after so many failures in a row, s: 1, 2, 4 … up to a minute."""
    return min(LONGEST_PAUSE_SECONDS, 2.0 ** max(0, failures - 1))


# ------------------------------------------------------------------------------------------- GCE

_STAYS_IN_PLACE: Final = "MIGRATE_ON_HOST_MAINTENANCE"
_ENDS: Final = "TERMINATE_ON_HOST_MAINTENANCE"


def gce_preempted(body: str) -> Notice | None:
    """Read `instance/preempted`. Raises ValueError: it is neither TRUE nor FALSE."""
    said = body.strip()
    if said not in ("TRUE", "FALSE"):
        raise ValueError(f"{said[:80]!r} is neither TRUE nor FALSE")
    return Notice(kind=NoticeKind.PREEMPTION, text="preempted") if said == "TRUE" else None


def gce_maintenance(body: str) -> Notice | None:
    """Read `instance/maintenance-event`.

    A live migration leaves the node in place. So does an event that this release does not know:
    only the documented word for an end makes a node leave.
    """
    said = body.strip()
    if said in ("", "NONE"):
        return None
    stays = said != _ENDS
    known = said in (_ENDS, _STAYS_IN_PLACE)
    text = said if known else f"unknown event {said[:80]}"
    return Notice(kind=NoticeKind.MAINTENANCE, text=text, stays=stays)


# ------------------------------------------------------------------------------------------- AWS


def aws_instance_action(body: str) -> Notice | None:
    """Read `spot/instance-action`; terminate, stop and hibernate all end the node.

    Raises ValueError: it is no JSON object with an action.
    """
    said = _object(body)
    action = said.get("action")
    if not isinstance(action, str):
        raise ValueError(f"{body[:80]!r} has no action")  # noqa: TRY004 - of the document
    return Notice(
        kind=NoticeKind.PREEMPTION, text=f"spot instance: {action}", at=_iso_time(said.get("time"))
    )


def aws_rebalance(body: str) -> Notice | None:
    """Read `events/recommendations/rebalance`: the risk is higher, and the node may well stay.

    Raises ValueError: it is no JSON object.
    """
    noticed = _object(body).get("noticeTime", "")
    text = f"rebalance recommendation of {noticed}"
    return Notice(kind=NoticeKind.PREEMPTION, text=text, stays=True)


# ----------------------------------------------------------------------------------------- Azure

_AZURE_KINDS: Final = {
    # Seconds of pause; memory, files and connections are kept.
    "Freeze": (NoticeKind.MAINTENANCE, True),
    "Reboot": (NoticeKind.MAINTENANCE, False),
    "Redeploy": (NoticeKind.MAINTENANCE, False),
    "Preempt": (NoticeKind.PREEMPTION, False),
    "Terminate": (NoticeKind.PREEMPTION, False),
}
_PENDING: Final = ("Scheduled", "Started")


def azure_events(body: str, name: str) -> Notice | None:
    """Read the Scheduled Events of a VM; of several, the one with the gravest consequence.

    body: The answer. It names events of every VM of a scale set or availability set.
    name: Name of this VM.

    Raises ValueError: it is no JSON object with a list of events.
    """
    events = _object(body).get("Events")
    if not isinstance(events, list):
        raise ValueError(f"{body[:80]!r} has no list of Events")  # noqa: TRY004 - likewise
    mine = [event for event in events if isinstance(event, dict) and _concerns(event, name)]
    found = [_azure_event(event) for event in mine]
    return min(found, key=lambda one: (one.stays, one.at or 0.0), default=None)


def _concerns(event: dict[str, Any], name: str) -> bool:
    named = event.get("Resources") or ()
    return event.get("EventStatus") in _PENDING and name.lower() in (
        str(one).lower() for one in named
    )


def _azure_event(event: dict[str, Any]) -> Notice:
    what = str(event.get("EventType", ""))
    kind, stays = _AZURE_KINDS.get(what, (NoticeKind.MAINTENANCE, True))
    known = what in _AZURE_KINDS
    said = str(event.get("Description") or "")
    text = what if known else f"unknown event {what[:80]}"
    at = None if event.get("EventStatus") == "Started" else _http_time(event.get("NotBefore"))
    return Notice(kind=kind, text=f"{text}: {said}" if said else text, stays=stays, at=at)


# ------------------------------------------------------------------------------------------ file

_WORDS: Final = {
    "preemption": (NoticeKind.PREEMPTION, False),
    "maintenance": (NoticeKind.MAINTENANCE, False),
    "warning": (NoticeKind.MAINTENANCE, True),
}
_NO_NOTICE: Final = "none"


def file_notice(body: str, written: float, began: float) -> Notice | None:
    """Read a notice file: `[preemption|maintenance|warning|none] [SECONDS] [text]`.

    An empty file means preemption, so that `touch FILE` is enough.

    body: The file's text.
    written: When it was written, Unix time, s.
    began: When this agent began. An older file is about an agent before it: the next agent of
        the node would otherwise leave as soon as it has come, again and again.

    Raises ValueError: the first word is none of the four.
    """
    if written < began:
        return None
    words = body.strip().split()
    first = words[0].lower() if words else "preemption"
    if first == _NO_NOTICE:
        return None
    if first not in _WORDS:
        known = ", ".join((*_WORDS, _NO_NOTICE))
        raise ValueError(f"it begins with {first[:80]!r}; the first word must be one of {known}")
    kind, stays = _WORDS[first]
    left = _seconds(words[1]) if len(words) > 1 else None
    text = " ".join(words[1 if left is None else 2 :])
    return Notice(
        kind=kind, text=text or first, stays=stays, at=None if left is None else written + left
    )


def _seconds(word: str) -> float | None:
    return float(word) if word.isascii() and word.isdecimal() else None


# ------------------------------------------------------------------------------------- documents

_HTTP_TIME: Final = "%a, %d %b %Y %H:%M:%S GMT"


def _object(body: str) -> dict[str, Any]:
    said = json.loads(body)  # its error is a ValueError
    if not isinstance(said, dict):
        raise ValueError(f"{body[:80]!r} is no JSON object")  # noqa: TRY004 - of the document
    return said


def _iso_time(text: object) -> float | None:
    """Return the Unix time of 2017-09-18T08:22:00Z; None: it is none."""
    try:
        return dt.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _http_time(text: object) -> float | None:
    """Return the Unix time of Mon, 19 Sep 2016 18:29:47 GMT; None: it is none."""
    try:
        read = dt.datetime.strptime(str(text), _HTTP_TIME).replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return read.timestamp()
