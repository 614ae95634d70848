"""Which committed steps may be deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_WIRE: Final = re.compile(r"(\d{1,10}):(\d{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """What stays on storage."""

    keep_last: int = 3
    """Committed steps, at least 1. Several, because the newest may turn out to be damaged.
    Default 3."""
    keep_every: int = 0
    """Steps; each multiple of it stays for good; 0: none does. Default 0."""

    def __post_init__(self) -> None:
        """Raise ValueError naming a value that would delete too much."""
        if not _is_whole(self.keep_last) or self.keep_last < 1:
            raise ValueError(f"keep_last={self.keep_last!r}: expected ≥ 1, the newest always stays")
        if not _is_whole(self.keep_every) or self.keep_every < 0:
            raise ValueError(f"keep_every={self.keep_every!r}: expected ≥ 0, where 0 means never")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def chosen(last: int | None, every: int | None, told: str) -> RetentionSettings:
    """Return what stays: the script's numbers, else the job's (`last:every`, or empty), else 3, 0.

    Raises ValueError naming a number, or a text, that says nothing sensible.
    """
    match = _WIRE.fullmatch(told)
    if told and match is None:
        raise ValueError(f"HOLDFAST_KEEP={told!r}: expected LAST:EVERY, two whole numbers")
    job = RetentionSettings()
    if match is not None:
        job = RetentionSettings(keep_last=int(match[1]), keep_every=int(match[2]))
    return RetentionSettings(
        keep_last=job.keep_last if last is None else last,
        keep_every=job.keep_every if every is None else every,
    )


def to_delete(
    steps: Iterable[int], settings: RetentionSettings, pinned: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the steps to delete, oldest first; never the newest, never one of `pinned`."""
    known = sorted(set(steps))
    old = known[: -settings.keep_last]
    return tuple(step for step in old if not is_for_good(step, settings, pinned))


def is_for_good(
    step: int, settings: RetentionSettings, pinned: frozenset[int] = frozenset()
) -> bool:
    """Tell whether a step stays however many there are after it."""
    every = settings.keep_every
    return step in pinned or (every > 0 and step % every == 0)
