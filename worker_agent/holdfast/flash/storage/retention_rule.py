"""Decides which committed steps may be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from holdfast_wire.messages.spec import CheckpointPolicy

KEEP_LAST: Final = 3
"""Committed steps that stay where nobody says how many. Several, because the newest may turn out to
be damaged."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def chosen(last: int | None, every: int | None, job: CheckpointPolicy) -> CheckpointPolicy:
    """Return the job's policy with the script's numbers in it, else its own, else 3 and 0.

    Raises ValueError naming an invalid number.
    """
    policy = replace(
        job,
        keep_last=(job.keep_last or KEEP_LAST) if last is None else last,
        keep_every=job.keep_every if every is None else every,
    )
    if not _is_whole(policy.keep_last) or policy.keep_last < 1:
        raise ValueError(f"keep_last={policy.keep_last!r}: expected ≥ 1, the newest always stays")
    if not _is_whole(policy.keep_every) or policy.keep_every < 0:
        raise ValueError(f"keep_every={policy.keep_every!r}: expected ≥ 0, where 0 means never")
    return policy


def to_delete(
    steps: Iterable[int], policy: CheckpointPolicy, pinned: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the steps to delete, oldest first; never the newest, never one of `pinned`."""
    known = sorted(set(steps))
    old = known[: -policy.keep_last]
    return tuple(step for step in old if not is_for_good(step, policy, pinned))


def is_for_good(step: int, policy: CheckpointPolicy, pinned: frozenset[int] = frozenset()) -> bool:
    """Return True if a step stays, however many newer steps there are."""
    every = policy.keep_every
    return step in pinned or (every > 0 and step % every == 0)
