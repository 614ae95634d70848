"""Which committed steps may be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
        if self.keep_last < 1:
            raise ValueError(f"keep_last={self.keep_last}: expected ≥ 1, the newest always stays")
        if self.keep_every < 0:
            raise ValueError(f"keep_every={self.keep_every}: expected ≥ 0, where 0 means never")


def to_delete(
    steps: Iterable[int], settings: RetentionSettings, pinned: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the steps to delete, oldest first; never the newest, never one of `pinned`."""
    known = sorted(set(steps))
    every = settings.keep_every
    return tuple(
        step
        for step in known[: -settings.keep_last]
        if step not in pinned and not (every and step % every == 0)
    )
