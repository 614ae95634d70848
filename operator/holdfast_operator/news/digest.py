"""Which Kubernetes events one job's news become: repeated ones counted, and few a minute. Pure.

An event that says the same again within ten minutes is one object with a count. A job that has more
to say than its allowance says it later, and what waits is folded by reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast_operator.kube.bucket import TokenBucket

BURST: Final = 25
"""Writes that one job may have made at once: its start, or one incident, in full."""
RATE: Final = 0.2
"""Writes a second that one job may have made in the long run: one in five seconds."""
WAITING: Final = 25
"""Lines that wait to be made; beyond them a line stands for all news of one reason."""
WINDOW_US: Final = 600_000_000
"""A repetition later than this is a new event: the API server forgets old ones after an hour."""
REMEMBERED: Final = 256
"""News that are known again when a master tells its newest hundred once more."""
_NAME_BYTES: Final = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened."""

    reason: str
    """CamelCase."""
    text: str
    warning: bool
    at_us: int
    """Unix time, microseconds: Kubernetes' own precision."""
    sequence: int = 0
    """The master's number for it; tells two of one instant apart."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Line:
    """One Kubernetes event."""

    name: str
    reason: str
    text: str
    warning: bool
    first_us: int
    last_us: int
    count: int = 1
    written: int = 0
    """The count that the API server knows; 0: it has no such object."""


class Digest:
    """The events of one job."""

    def __init__(self, job: str, uid: str, now: float) -> None:
        """Begin with nothing.

        Args:
            job: Its name: events are named after what they are about.
            uid: Its uid: a job that is made again under the name has events of its own.
            now: Of the clock that `due` is asked with, s.
        """
        self._job, self._uid = job, uid
        self._lines: dict[tuple[str, str], Line] = {}
        self._seen: dict[tuple[int, int], None] = {}
        self._bucket = TokenBucket(RATE, BURST, float(BURST), now)
        self._allowed_at = now

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not any(line.written < line.count for line in self._lines.values())

    def take(self, happenings: Iterable[Happening]) -> None:
        """Take in what happened; what was taken in before is not counted again."""
        for one in happenings:
            mark = (one.at_us, one.sequence)
            if mark not in self._seen:
                self._seen[mark] = None
                self._add(one)
        for mark in list(self._seen)[:-REMEMBERED]:
            del self._seen[mark]

    def due(self, now: float) -> Iterator[Line]:
        """Yield what may be written now, oldest first; each one costs of the allowance."""
        waiting = [line for line in self._lines.values() if line.written < line.count]
        for line in sorted(waiting, key=lambda line: line.first_us):
            if self._allowed_at > now:
                return
            yield line
            self._allowed_at = now + self._bucket.take(now)

    def wait(self, now: float) -> float | None:
        """Seconds until `due` has something; None: not before more happens."""
        return None if self.idle else max(0.0, self._allowed_at - now)

    def _add(self, one: Happening) -> None:
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
        self._lines[key] = Line(
            name=self._name(one),
            reason=one.reason,
            text=one.text,
            warning=one.warning,
            first_us=one.at_us,
            last_us=one.at_us,
        )

    def _name(self, one: Happening) -> str:
        """The same for the same news, so that writing it twice is refused, not doubled."""
        told = f"{self._uid} {one.reason} {one.at_us} {one.sequence} {one.text}"
        digest = hashlib.blake2b(told.encode(), digest_size=_NAME_BYTES).hexdigest()
        return f"{self._job}.{digest}"


def _is_old(line: Line, now_us: int) -> bool:
    return line.written >= line.count and now_us - line.last_us > WINDOW_US
