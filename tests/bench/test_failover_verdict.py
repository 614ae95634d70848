"""Work that the failover runs count as lost, and as done twice."""

from __future__ import annotations

import pytest

from bench.failover.instants import Scene, draw
from bench.failover.verdict import After, Allowed, Before, RankStart, judge

BEFORE = Before(round=1, world=2, steps={0: 10, 1: 10})
NONE, ONE = Allowed(), Allowed(least_rounds=1, most_rounds=1)


def starts(*rounds: int) -> list[RankStart]:
    """Both ranks begin in each of these rounds."""
    return [RankStart(number, rank, 0) for number in rounds for rank in (0, 1)]


def after(number: int, began: list[RankStart], *steps: tuple[int, int]) -> After:
    """Both ranks took the same steps."""
    return After(round=number, world=2, starts=began, steps={0: steps, 1: steps})


@pytest.mark.parametrize(
    ("found", "allowed", "words"),
    [
        (after(1, [], (1, 11), (1, 12)), NONE, ""),
        (after(2, starts(2), (1, 11), (2, 12)), ONE, ""),
        (after(2, starts(2), (1, 11), (2, 12)), NONE, "1 new rounds"),
        (after(1, [], (1, 11)), ONE, "0 new rounds"),
        (after(3, starts(2, 3), (2, 11), (3, 12)), ONE, "2 new rounds"),
        (after(3, [RankStart(2, 0, 0), *starts(3)], (3, 11)), ONE, ""),
        (after(2, starts(2), (1, 11), (2, 11)), ONE, "lost and done again"),
        (after(1, [], (1, 11), (1, 13)), NONE, "missing in the logs"),
        (after(1, starts(1), (1, 11)), NONE, "older began"),
        (after(2, starts(2, 2), (2, 11)), ONE, "begun twice"),
    ],
)
def test_a_verdict_names_what_is_wrong(found: After, allowed: Allowed, words: str) -> None:
    """Rounds that nobody commanded, commands without a round, steps lost, steps left out."""
    problems = " ".join(judge(BEFORE, found, allowed).problems)
    assert words in problems
    assert bool(problems) is bool(words)


def test_instants_come_from_the_seed() -> None:
    """The same seed gives the same instants: every scene, with the journal and without."""
    first = list(draw(1, 200))
    assert first == list(draw(1, 200))
    assert {(i.scene, i.journal) for i in first} == {(s, j) for s in Scene for j in (True, False)}
