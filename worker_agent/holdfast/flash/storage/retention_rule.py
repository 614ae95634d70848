"""Decides which committed steps may be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from holdfast_wire.messages.spec import CheckpointPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Rule for the committed steps that stay on storage."""

    keep_last: int = 3
    """Number of newest committed steps to keep, at least 1. Several, because the newest may turn
    out to be damaged. Default 3."""
    keep_every: int = 0
    """Steps that are multiples of this stay for good; 0: none. Default 0."""

    def __post_init__(self) -> None:
        """Raise ValueError naming a value that would delete too much."""
        if not _is_whole(self.keep_last) or self.keep_last < 1:
            raise ValueError(f"keep_last={self.keep_last!r}: expected ≥ 1, the newest always stays")
        if not _is_whole(self.keep_every) or self.keep_every < 0:
            raise ValueError(f"keep_every={self.keep_every!r}: expected ≥ 0, where 0 means never")

    @classmethod
    def of(cls, policy: CheckpointPolicy) -> Self:
        """Return the rule in a policy; raises ValueError naming an invalid value."""
        return cls(keep_last=policy.keep_last, keep_every=policy.keep_every)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def chosen(last: int | None, every: int | None, job: CheckpointPolicy) -> CheckpointPolicy:
    """Return the job's policy with the script's numbers in it, else its own, else 3 and 0.

    Raises ValueError naming an invalid number.
    """
    default = RetentionSettings()
    policy = replace(
        job,
        keep_last=(job.keep_last or default.keep_last) if last is None else last,
        keep_every=job.keep_every if every is None else every,
    )
    RetentionSettings.of(policy)
    return policy


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
    """Return True if a step stays, however many newer steps there are."""
    every = settings.keep_every
    return step in pinned or (every > 0 and step % every == 0)
