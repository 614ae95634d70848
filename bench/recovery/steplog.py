"""The log that the trained script writes: its events, and a reader that follows it.

What the events mean for recovery is the business of `bench.recovery.measure`.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log."""

    t: float
    """Monotonic seconds."""
    event: str
    """started, imported, joined, built, restored, step or saved."""
    rank: int
    pid: int
    round: int | None = None
    """The number that all ranks of one world share; unknown before they joined."""
    world: int | None = None
    """Ranks in the round."""
    step: int | None = None
    """Steps done (step), or the step that a checkpoint holds (restored, saved)."""
    seconds: float | None = None
    """Seconds of restoring or saving."""
    last: bool = False
    """This checkpoint is the last act of its process (a rescale at a step boundary)."""


_FIELDS = frozenset(Event.__dataclass_fields__)


def parse(line: str) -> Event:
    """Read one line; fields that only a human reads are dropped."""
    raw: dict[str, Any] = json.loads(line)
    return Event(**{name: value for name, value in raw.items() if name in _FIELDS})


class Follower:
    """Reads what has been appended to the logs of a directory since the last look."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """Return every event so far, in the order of their times."""
        fresh: list[Event] = []
        for path in sorted(self._directory.glob("rank-*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            fresh.extend(parse(line) for line in whole.decode().splitlines())
        if fresh:
            self._events = sorted([*self._events, *fresh], key=lambda event: event.t)
        return self._events

    def wait(self, look: Callable[[list[Event]], _Answer | None], until: float) -> _Answer | None:
        """Look at the events every 0.1 s until ``look`` answers something, or until the deadline.

        ``until`` is monotonic. The interval costs no accuracy, as times come from the log, and
        looking more often would take from the cores that are measured.
        """
        while (answer := look(self.events())) is None and time.monotonic() < until:
            time.sleep(0.1)
        return answer
