"""From times of issue to the local work of each rank in each step."""

from __future__ import annotations

import array
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.straggler.collectives import IssuedRun, Step, aligning, step_error
from holdfast_master.policies.straggler.slices import finished

TRANSFER = 0.01
"""s: until all ranks leave a collective after the last one entered it."""


class Issued(NamedTuple):
    """One collective, as one rank issued it."""

    sequence: int
    signature: int
    at: float


def align(samples: Mapping[int, Sequence[Issued]], period: int) -> list[Step]:
    """The steps that all ranks have, found from single collectives."""
    return finished(aligning({rank: runs_of(one) for rank, one in samples.items()}, period))


def runs_of(issued: Sequence[Issued]) -> list[IssuedRun]:
    """Single collectives as runs without gaps."""
    runs: list[IssuedRun] = []
    for one in issued:
        if not runs or one.sequence != runs[-1].first + len(runs[-1].at):
            runs.append(IssuedRun(one.sequence, array.array("I"), array.array("d")))
        runs[-1].signatures.append(one.signature)
        runs[-1].at.append(one.at)
    return runs


def synchronous(
    work: Mapping[int, Sequence[float]], period: int = 2, first: int = 1
) -> dict[int, list[Issued]]:
    """Times of issue of ranks that work so long before each collective, s."""
    length = len(next(iter(work.values())))
    samples: dict[int, list[Issued]] = {rank: [] for rank in work}
    left = 100.0
    for i in range(length):
        issued = {rank: left + seconds[i] for rank, seconds in work.items()}
        for rank, at in issued.items():
            samples[rank].append(Issued(first + i, (first + i) % period, at))
        left = max(issued.values()) + TRANSFER
    return samples


def total(steps: Sequence[Step], rank: int) -> float:
    """Local time of all steps, s."""
    return sum(step.local[rank] for step in steps)


def test_extra_work_of_one_rank_is_its_local_time() -> None:
    """A rank that works 50 ms longer in each step has 50 ms more local time, and nobody else."""
    found = align(synchronous({0: [0.1] * 9, 1: [0.1, 0.15] * 4 + [0.1], 2: [0.1] * 9}), 2)
    assert len(found) == 3
    for step in found:
        assert step.local[0] == pytest.approx(0.2 + 2 * TRANSFER)
        assert step.local[1] == pytest.approx(step.local[0] + 0.05)
        assert step.local[2] == pytest.approx(step.local[0])
        assert step.wall == pytest.approx(0.25 + 2 * TRANSFER)
        assert [one.sequence for one in step.segments] == [step.sequence - 1, step.sequence]


def test_collectives_that_are_not_waited_for_count_once() -> None:
    """The buckets of DDP form one segment: extra work before the first of them counts once."""
    samples: dict[int, list[Issued]] = {0: [], 1: []}
    left = 10.0
    for step in range(4):
        for rank, late in ((0, 0.0), (1, 0.05)):
            for bucket in range(5):
                at = left + 0.1 + late + 0.001 * bucket
                samples[rank].append(Issued(5 * step + bucket, bucket, at))
        left += 0.154 + TRANSFER
    found = align(samples, 5)
    assert len(found) == 2
    for one in found:
        assert len(one.segments) == 1
        assert one.local[1] - one.local[0] == pytest.approx(0.05)


def test_the_phase_of_a_step_follows_from_its_synchronised_collectives() -> None:
    """Samples that begin in the middle of a step lose that step only."""
    samples = synchronous({0: [0.1] * 20, 1: [0.1] * 20}, period=5)
    cut = {rank: one[3:] for rank, one in samples.items()}
    assert len(align(cut, 5)) == 3


def test_ranks_with_other_windows_are_compared_where_both_have_samples() -> None:
    """The steps are those of the intersection."""
    samples = synchronous({0: [0.1] * 40, 1: [0.1] * 40})
    samples[0], samples[1] = samples[0][:30], samples[1][10:]
    found = align(samples, 2)
    assert [step.sequence for step in found] == list(range(13, 30, 2))


def test_no_step_spans_a_gap() -> None:
    """Sequences that one rank lacks split the run: nothing is known of what lies between."""
    samples = synchronous({0: [0.1] * 30, 1: [0.1] * 30})
    samples[1] = [one for one in samples[1] if one.sequence not in {14, 15}]
    sequences = [step.sequence for step in align(samples, 2)]
    assert sequences == [3, 5, 7, 9, 11, 18, 20, 22, 24, 26, 28]


def test_collectives_of_an_evaluation_lie_in_no_step() -> None:
    """Steps before and after it are whole; a step of other collectives is none."""
    samples = synchronous({0: [0.1] * 41, 1: [0.1] * 41})
    for one in samples.values():
        one[20:25] = [issued._replace(signature=99 + i) for i, issued in enumerate(one[20:25])]
    steps = align(samples, 2)
    inside = range(21, 26)
    assert len(steps) == 16
    assert not [step for step in steps if step.sequence in inside or step.sequence - 1 in inside]


def test_each_group_is_aligned_by_itself_with_unequal_stages() -> None:
    """Two stages of a pipeline have a group each: a rank is beside its peers only."""
    first = align(synchronous({0: [0.1] * 9, 1: [0.1] * 9}), 2)
    second = align(synchronous({2: [0.3] * 9, 3: [0.4] * 9}), 2)
    assert total(first, 0) == pytest.approx(total(first, 1))
    assert total(second, 3) - total(second, 2) == pytest.approx(3 * 0.2)


NOTHING = [
    ({}, 2),
    ({0: [Issued(1, 1, 1.0)]}, 2),
    ({0: [Issued(1, 1, 1.0)], 1: [Issued(2, 1, 1.0)]}, 2),
    (synchronous({0: [0.1] * 9, 1: [0.1] * 9}), 0),
    (synchronous({0: [0.1] * 3, 1: [0.1] * 3}), 2),
]


@pytest.mark.parametrize(("samples", "period"), NOTHING)
def test_no_steps_are_invented(samples: Mapping[int, Sequence[Issued]], period: int) -> None:
    """One rank, nothing in common, no known period, no whole step."""
    assert align(samples, period) == []


@pytest.mark.parametrize(("ranks", "odd"), [(4, 2), (2, 0)])
def test_steps_end_where_a_rank_issues_another_collective(ranks: int, odd: int) -> None:
    """Of two ranks as of many: it has left the path."""
    samples = synchronous({rank: [0.1] * 20 for rank in range(ranks)})
    samples[odd][10] = samples[odd][10]._replace(signature=77)
    assert [step.sequence for step in align(samples, 2)] == [3, 5, 7, 9]


def test_steps_end_where_all_do_something_new_and_one_something_else() -> None:
    """A step of the others is no step of the odd one."""
    samples = synchronous({rank: [0.1] * 9 for rank in range(3)})
    for rank, issued in samples.items():
        issued[4] = issued[4]._replace(signature=70 if rank == 1 else 71)
    assert not [step for step in align(samples, 2) if step.sequence >= 5]


def test_ranks_whose_collectives_always_differ_are_on_their_path() -> None:
    """An uneven all-gather has other sizes on each rank, by design."""
    samples = synchronous({0: [0.1] * 20, 1: [0.1] * 20})
    for issued in samples[1]:
        if issued.sequence % 2:
            samples[1][issued.sequence - 1] = issued._replace(signature=5)
    found = align(samples, 2)
    assert len(found) == 9


def test_a_wrong_clock_counts_once_for_each_segment() -> None:
    """The bound of a step's error is that of the clock times its segments."""
    steps = align(synchronous({0: [0.1] * 30, 1: [0.1] * 30}, period=6), 6)
    assert step_error(steps, 0.002) == pytest.approx(0.012)
    assert step_error((), 0.002) == 0.002


seconds = st.floats(0.001, 1.0)


@given(
    ranks=st.integers(2, 5),
    work=st.lists(st.lists(seconds, min_size=5, max_size=5), min_size=6, max_size=30),
    period=st.integers(1, 4),
)
def test_local_times_of_synchronous_ranks_are_their_work(
    ranks: int, work: Sequence[Sequence[float]], period: int
) -> None:
    """A rank has its work plus the transfers; the wall time is that of each segment's slowest."""
    by_rank = {rank: [row[rank] for row in work] for rank in range(ranks)}
    for step in align(synchronous(by_rank, period), period):
        inside = range(step.sequence - period, step.sequence)
        for rank in range(ranks):
            mine = sum(by_rank[rank][i] + TRANSFER for i in inside)
            assert step.local[rank] - mine == pytest.approx(0.0, abs=1e-6)
        slowest = sum(max(work[i][:ranks]) + TRANSFER for i in inside)
        assert step.wall == pytest.approx(slowest, abs=1e-6)


@given(
    times=st.lists(
        st.lists(st.floats(0, 100, allow_nan=False), min_size=2, max_size=20),
        min_size=2,
        max_size=4,
    ),
    signatures=st.lists(st.integers(0, 2), min_size=20, max_size=20),
    period=st.integers(0, 5),
)
def test_any_samples_are_aligned_or_refused(
    times: Sequence[Sequence[float]], signatures: Sequence[int], period: int
) -> None:
    """Steps are disjoint, in order, and no shorter than a rank's local time says."""
    samples = {
        rank: [Issued(i, signatures[i], at) for i, at in enumerate(sorted(one))]
        for rank, one in enumerate(times)
    }
    found = align(samples, period)
    ends = [step.sequence for step in found]
    assert all(after - before >= period for before, after in itertools.pairwise(ends))
    for step in found:
        assert step.wall >= max(step.local.values()) - 1e-6
