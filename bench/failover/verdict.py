"""Judges a job after its master was killed: starts, steps, rounds. Pure.

Belongs here: the rules. Does not belong here: how the figures are read.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence


class Answer(enum.Enum):
    """The answer to the request of a scene."""

    NOTHING_ASKED = "nothing asked"
    GRANTED = "granted"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """The master was killed before it answered."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankStart:
    """One training process that began."""

    round: int
    rank: int
    pid: int


@dataclasses.dataclass(frozen=True, slots=True)
class Before:
    """The job before the scene."""

    round: int
    world: int
    steps: Mapping[int, int]
    """Newest step of each rank."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """The job when it trains again."""

    round: int
    world: int
    starts: Sequence[RankStart]
    """New processes, in order."""
    steps: Mapping[int, Sequence[tuple[int, int]]]
    """New (round, step) of each rank, in order."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The rounds and the losses that the scene itself entails."""

    least_rounds: int = 0
    most_rounds: int = 0
    """New worlds in which ranks were started."""
    abrupt: bool = False
    """Ranks are killed by the scene: their unsaved steps are its price."""


@dataclasses.dataclass(frozen=True, slots=True)
class InstantVerdict:
    """The judgement of the job after one instant."""

    problems: tuple[str, ...]
    rounds: int
    """New worlds."""
    redone: int
    """Steps that were done again, all ranks together."""
    split: int
    """Rounds of which some members were never started: the master died while it told them."""


def judge(before: Before, after: After, allowed: Allowed) -> InstantVerdict:
    """Compare what happened with what the scene entails.

    A round that reached some members only ("split") was commanded, and cannot be completed by
    anyone; the fresh round that replaces it is the same command carried out.
    """
    problems = []
    begun = sorted({start.round for start in after.starts if start.round > before.round})
    split = [number for number in begun[:-1] if not _complete(number, after)]
    whole = len(begun) - len(split)
    if not allowed.least_rounds <= whole <= allowed.most_rounds:
        problems.append(
            f"{whole} new rounds {begun} (split: {split}), expected {allowed.least_rounds} to "
            f"{allowed.most_rounds}"
        )
    old = [start for start in after.starts if start.round <= before.round]
    if old:
        problems.append(f"processes of round {before.round} or older began: {old}")
    twice = _repeated((start.round, start.rank) for start in after.starts)
    if twice:
        problems.append(f"begun twice (round, rank): {twice}")
    redone = sum(_redone(before.steps.get(rank, 0), steps) for rank, steps in after.steps.items())
    gaps = [rank for rank, steps in after.steps.items() if _gap(before.steps.get(rank), steps)]
    if gaps and not allowed.abrupt:  # rank 0 saves: it may be ahead of a rank that was killed
        problems.append(f"steps are missing in the logs of ranks {gaps}")
    if redone and not allowed.abrupt:
        problems.append(f"{redone} steps were lost and done again")
    return InstantVerdict(tuple(problems), len(begun), redone, len(split))


def _complete(number: int, after: After) -> bool:
    """Return True when a rank took a step in the round, or a whole world of ranks began in it."""
    if any(at == number for steps in after.steps.values() for at, _ in steps):
        return True
    return len({start.rank for start in after.starts if start.round == number}) >= after.world


def _repeated(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    seen: set[tuple[int, int]] = set()
    twice = []
    for pair in pairs:
        if pair in seen:
            twice.append(pair)
        seen.add(pair)
    return twice


def _redone(newest: int, steps: Sequence[tuple[int, int]]) -> int:
    count = 0
    for _, step in steps:
        count += step <= newest
        newest = max(newest, step)
    return count


def _gap(newest: int | None, steps: Sequence[tuple[int, int]]) -> bool:
    """Return True when a rank left a step out; a rank that joins may begin anywhere."""
    at = newest
    joined = newest is None
    for _, step in steps:
        if at is not None and not joined and step > at + 1:
            return True
        at, joined = step if at is None else max(at, step), False
    return False
