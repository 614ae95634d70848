"""News of a job, and the Kubernetes events that tell them: counted, and few per minute. Pure.

News are the master's events, and changes of the job's own conditions. An event that repeats within
ten minutes is one object with a count. A job with more events than its allowance writes them later,
and the waiting ones are combined by reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.kube.rate_limit import TokenBucket
from holdfast_operator.plan import memory_raise
from holdfast_operator.status.conditions import WORKERS_FAIL
from holdfast_wire.messages import EventSeverity, JobEvent

BURST: Final = 25
"""Writes of one job at once: its start, or one incident, in full."""
RATE: Final = 0.2
"""Writes of one job per second in the long run: one in five seconds."""
WAITING: Final = 25
"""Lines that wait to be written; beyond them one line stands for all news of a reason."""
WINDOW_US: Final = 600_000_000
"""Time after which a repetition is a new event: the API server drops old ones after an hour."""
REMEMBERED: Final = 256
"""News that are remembered: a master repeats its newest hundred after a reconnect."""
_NAME_BYTES: Final = 8
_TOLD: Final = ("Suspended", "Complete", "Failed")
"""Conditions whose change becomes an event; the master reports the others in more detail."""
_MICROSECONDS: Final = 1_000_000
NODE_AVOIDED: Final = "NodeAvoided"
"""Reason of the event that new pods avoid a node on which several jobs had trouble."""
MEMORY_RAISED: Final = "MemoryRaised"
"""Reason of the event that the next pod of a worker has more memory."""
MEMORY_EXHAUSTED: Final = "MemoryNotRaised"
"""Reason of the event that a worker has the most memory that its job allows, and ran out of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewsItem:
    """One thing that happened."""

    reason: str
    """CamelCase."""
    text: str
    warning: bool
    at_us: int
    """Unix time, microseconds: Kubernetes' own precision."""
    sequence: int = 0
    """Number from the master; distinguishes two events of one moment."""


@dataclasses.dataclass(slots=True, kw_only=True)
class EventLine:
    """One Kubernetes event."""

    name: str
    news: NewsItem
    """The first of those that it tells."""
    last_us: int
    count: int = 1
    written: int = 0
    """Count that the API server has; 0: it has no such object."""


class Digest:
    """Events of one job."""

    def __init__(self, job: str, uid: str, now: float) -> None:
        """Begin without events of a job; they are named after it. `now`: clock of `due`, s."""
        self._job, self._uid = job, uid
        self._lines: dict[tuple[str, str], EventLine] = {}
        self._seen: dict[tuple[int, int], None] = {}
        self._bucket = TokenBucket(RATE, BURST, float(BURST), now)
        self._allowed_at = now

    @property
    def idle(self) -> bool:
        """True if no event waits to be written."""
        return not any(line.written < line.count for line in self._lines.values())

    def take(self, happenings: Iterable[NewsItem]) -> None:
        """Add news; known news are not counted again."""
        for one in happenings:
            mark = (one.at_us, one.sequence)
            if mark not in self._seen:
                self._seen[mark] = None
                self._add(one)
        for mark in list(self._seen)[:-REMEMBERED]:
            del self._seen[mark]

    def due(self, now: float) -> Iterator[EventLine]:
        """Yield the events that may be written now, oldest first, and charge the allowance."""
        waiting = [line for line in self._lines.values() if line.written < line.count]
        for line in sorted(waiting, key=lambda line: line.news.at_us):
            if self._allowed_at > now:
                return
            yield line
            self._allowed_at = now + self._bucket.take(now)

    def wait(self, now: float) -> float | None:
        """Return the seconds until `due` has an event; None: not before more news."""
        return None if self.idle else max(0.0, self._allowed_at - now)

    def _add(self, one: NewsItem) -> None:
        for key in [key for key, line in self._lines.items() if _is_old(line, one.at_us)]:
            del self._lines[key]
        key = (one.reason, one.text)
        fresh = sum(not line.written for line in self._lines.values())
        if key not in self._lines and fresh >= WAITING:
            key = (one.reason, "")
        line = self._lines.get(key)
        if line is not None:
            line.count += 1
            line.last_us = max(line.last_us, one.at_us)
            return
        self._lines[key] = EventLine(name=self._name(one), news=one, last_us=one.at_us)

    def _name(self, one: NewsItem) -> str:
        """Return the same name for the same news: a second write is refused, not doubled."""
        told = f"{self._uid} {one.reason} {one.at_us} {one.sequence} {one.text}"
        digest = hashlib.blake2b(told.encode(), digest_size=_NAME_BYTES).hexdigest()
        return f"{self._job}.{digest}"


def _is_old(line: EventLine, now_us: int) -> bool:
    return line.written >= line.count and now_us - line.last_us > WINDOW_US


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
    """Return a warning of the operator's own; `now`: Unix time, s."""
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
    """Return the news of a status for people: changed conditions, raised memory, failing pods."""
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
