"""Faults from a seed: reproducible, of the kinds and at the pace that were asked for."""

from __future__ import annotations

import itertools
import statistics

import pytest

from holdfast_cli.chaos.schedule import LASTING, FaultKind, Options, parse, schedule
from holdfast_cli.errors import BadInputError


def test_the_option_says_everything_that_matters() -> None:
    """Seed, pace, number and kinds, in any order."""
    options = parse("mtbf=2.5,seed=7,faults=kill-worker+reset,most=3,peace=calm")
    assert options == Options(
        seed=7, mtbf_s=2.5, most=3, kinds=(FaultKind.KILL_WORKER, FaultKind.RESET), peace="calm"
    )
    assert parse(options.text()) == options
    assert parse(parse("seed=1,mtbf=9").text()) == Options(seed=1, mtbf_s=9.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no seed", "seed=7,mtbf=10"]),
        ("seed=1", ["no mtbf"]),
        ("sed=1,mtbf=1", ["'sed'", "did you mean seed?"]),
        ("seed=1,mtbf=1,zeal", ["'zeal'", "known are"]),
        ("seed=1,seed=2,mtbf=1", ["'seed'", "twice"]),
        ("seed=-1,mtbf=1", ["seed='-1'", "whole number from 0"]),
        ("seed=x,mtbf=1", ["seed='x'"]),
        ("seed,mtbf=1", ["'seed' has no value", "write seed="]),
        ("seed=,mtbf=1", ["seed=''", "whole number from 0"]),
        (f"seed={'9' * 5000},mtbf=1", ["at most 18 digits", "99…"]),
        (f"seed=1,mtbf=1,most={'9' * 19}", ["most=", "at most 18 digits"]),
        ("seed=1,mtbf=0", ["mtbf='0'", "from 0.1"]),
        ("seed=1,mtbf=nan", ["mtbf='nan'"]),
        ("seed=1,mtbf=1,most=0", ["most='0'", "from 1"]),
        ("seed=1,mtbf=1,faults=kill-workr", ["'kill-workr'", "did you mean kill-worker?"]),
        ("seed=1,mtbf=1,faults=", ["there is no ''"]),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(text: str, words: list[str]) -> None:
    """Before anything is started."""
    with pytest.raises(BadInputError) as caught:
        parse(text)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_same_seed_gives_the_same_faults() -> None:
    """And another seed others."""
    first, again, other = (
        list(itertools.islice(schedule(parse(f"seed={seed},mtbf=5")), 50)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_pace_kinds_and_lengths_are_as_said() -> None:
    """Exponential gaps of the given mean; only lasting faults have a length."""
    faults = list(itertools.islice(schedule(parse("seed=1,mtbf=5")), 4000))
    assert statistics.mean(fault.gap_s for fault in faults) == pytest.approx(5.0, rel=0.1)
    assert {fault.kind for fault in faults} == set(FaultKind)
    for fault in faults:
        low, high = LASTING.get(fault.kind, (0.0, 0.0))
        assert low <= fault.seconds <= high
        assert 0.0 <= fault.whom < 1.0


def test_no_more_faults_than_asked_for() -> None:
    """`most` ends the schedule."""
    assert [fault.number for fault in schedule(parse("seed=1,mtbf=5,most=3"))] == [1, 2, 3]
