"""Verdicts on slow ranks, nodes and links, and what is none."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.straggler.collectives import Step, StepSegment
from holdfast_master.policies.straggler.slices import finished
from holdfast_master.policies.straggler.verdict import (
    StragglerVerdict,
    Subject,
    change_point,
    judge_slices,
)
from holdfast_master.policies.straggler.votes import VoteRecord
from holdfast_master.policies.straggler.window import RankTime, Window, middle_mean, window_slices
from holdfast_wire.messages import HealthMode, StragglerPolicy

POLICY = StragglerPolicy(
    mode=HealthMode.REPORT, slowdown_percent=20.0, window_steps=50, votes=3, votes_out_of=5
)
TRANSFER = 0.1
"""s of a step."""
QUIET = 8
"""Windows before anything happens."""

Change = Callable[[int, RankTime], RankTime]


def windows(
    times: Sequence[Mapping[int, RankTime]], transfers: Sequence[float] = ()
) -> list[Window]:
    """Windows of 50 steps with these ranks."""
    waits = transfers or [TRANSFER] * len(times)
    return [
        Window(
            first_step=50 * i, step=max(one.local for one in ranks.values()) + waits[i], ranks=ranks
        )
        for i, ranks in enumerate(times)
    ]


def job(
    nodes: int, per_node: int, after: Change, count: int = 8, seed: int = 1, noise: float = 0.01
) -> list[Mapping[int, RankTime]]:
    """Quiet windows, then `count` that a change is made to."""
    rng = random.Random(seed)
    found: list[Mapping[int, RankTime]] = []
    for i in range(QUIET + count):
        ranks = {}
        for rank in range(nodes * per_node):
            local = rng.gauss(1.0, noise)
            one = RankTime(node=f"n{rank // per_node}", local=local)
            ranks[rank] = after(rank, one) if i >= QUIET else one
        found.append(ranks)
    return found


def slower(ranks: Sequence[int], factor: float, **more: object) -> Change:
    """A change that makes ranks slower."""

    def change(rank: int, one: RankTime) -> RankTime:
        if rank not in ranks:
            return one
        return dataclasses.replace(one, local=one.local * factor, **more)  # type: ignore[arg-type]

    return change


def run(
    seen: Sequence[Window],
    policy: StragglerPolicy = POLICY,
    references: Mapping[str, float] | None = None,
) -> list[tuple[StragglerVerdict, ...]]:
    """The verdicts after each window."""
    record, found = VoteRecord(), []
    for window in seen:
        record, verdicts = finished(judge_slices(record, window, policy, references))
        found.append(verdicts)
    return found


def accused(verdicts: Sequence[StragglerVerdict]) -> list[tuple[Subject, str, tuple[int, ...]]]:
    """Who is accused."""
    return [(one.subject, one.node, one.ranks) for one in verdicts]


FOUND = [
    # nodes, ranks of each, slow ranks, verdict
    (2, 4, [3], [(Subject.RANK, "n0", (3,))]),
    (2, 4, [4, 5, 6, 7], [(Subject.NODE, "n1", (4, 5, 6, 7))]),
    (2, 1, [1], [(Subject.NODE, "n1", (1,))]),
    (4, 1, [0, 2], [(Subject.NODE, "n0", (0,)), (Subject.NODE, "n2", (2,))]),
    (4, 2, [0, 1, 6], [(Subject.NODE, "n0", (0, 1)), (Subject.RANK, "n3", (6,))]),
    (16, 1, [5], [(Subject.NODE, "n5", (5,))]),
]


@pytest.mark.parametrize(("nodes", "per_node", "slow", "verdict"), FOUND)
def test_the_slow_part_is_named(
    nodes: int, per_node: int, slow: list[int], verdict: object
) -> None:
    """One rank, a node, one of two nodes, half of the nodes: after three windows, not before."""
    found = run(windows(job(nodes, per_node, slower(slow, 1.5))))
    assert [bool(one) for one in found[: QUIET + 3]] == [False] * (QUIET + 2) + [True]
    for verdicts in found[QUIET + 2 :]:
        assert accused(verdicts) == verdict


def test_a_verdict_has_its_numbers() -> None:
    """Since when, percent of a step, what the job loses in an hour, votes, what else it may be."""
    verdict = run(windows(job(4, 1, slower([2], 1.55))))[-1][0]
    assert verdict.since_step == 50 * QUIET
    assert verdict.percent == pytest.approx(50, abs=3)
    assert verdict.node_seconds_per_hour == pytest.approx(4 * 3600 / 3, rel=0.05)
    assert verdict.reason.startswith("n2 needs")
    assert "since step 400" in verdict.reason
    assert verdict.reason.endswith("5 of the last 5 windows")
    said = " ".join(verdict.considered)
    for cause in ("network: cannot tell", "data loader", "length of samples", "rank or node"):
        assert cause in said


def _same(_: int, one: RankTime) -> RankTime:
    return one


def _all(factor: float) -> Change:
    return lambda _, one: dataclasses.replace(one, local=one.local * factor)


NOBODY = [
    pytest.param(job(4, 2, _same, 40), id="nothing happens"),
    pytest.param(job(4, 2, _same, 40, noise=0.1), id="noise of a tenth"),
    pytest.param(job(4, 2, _all(1.15)), id="heat of all below the threshold"),
    pytest.param(job(4, 2, _all(0.6)), id="shorter samples for all"),
    pytest.param(job(2, 1, slower([0], 0.6)), id="one of two gets faster"),
    pytest.param(job(4, 1, slower([0, 1], 0.6)), id="half get faster"),
    pytest.param(job(4, 2, slower([1], 1.5), 2), id="two windows are no three"),
    pytest.param(job(4, 2, slower([1], 1.12)), id="below the threshold"),
    pytest.param(job(4, 2, slower([1], 9.0, marked=True)), id="checkpoints or evaluations"),
    pytest.param(job(4, 2, slower([1], 1.5, error=0.2)), id="a clock that may be wrong by more"),
    pytest.param(
        [
            {rank: dataclasses.replace(one, local=one.local * 1.6) if rank < 2 else one}
            | {other: that for other, that in ranks.items() if other != rank}
            for ranks in job(4, 1, _same)
            for rank, one in [(0, ranks[0])]
        ],
        id="a stage that always took longer",
    ),
    pytest.param(
        [
            {rank: dataclasses.replace(one, local=20 * one.local * (1 + rank)) for rank, one in r}
            if i == 0
            else dict(r)
            for i, r in enumerate(ranks.items() for ranks in job(4, 1, _same))
        ],
        id="compilation in the first window",
    ),
]


@pytest.mark.parametrize("times", NOBODY)
def test_nobody_is_accused(times: Sequence[Mapping[int, RankTime]]) -> None:
    """Noise, heat, checkpoints, unequal stages and a fast node make no straggler."""
    assert [verdicts for verdicts in run(windows(times)) if verdicts] == []


def test_all_slower_together_accuses_nobody_and_says_so() -> None:
    """Heat or a slow network that all share is a finding about the job."""
    for seen in (
        windows(job(4, 2, _all(1.5))),
        windows(job(4, 2, _same), [TRANSFER] * QUIET + [1.0] * 8),
    ):
        (verdict,) = run(seen)[-1]
        assert (verdict.subject, verdict.ranks) == (Subject.JOB, ())
        assert verdict.since_step == 50 * QUIET
        assert "cannot tell" in verdict.considered[0]


@pytest.mark.parametrize("onset", [3, 4, 5])
def test_an_early_slow_rank_is_not_taken_for_the_whole_job(onset: int) -> None:
    """Before the ranks have a past, nothing tells them apart: nothing is said of the job then."""
    quiet = job(4, 1, _same, 16)
    slow = job(4, 1, slower([2], 1.4), 16, seed=2)[QUIET:]
    seen = run(windows([*quiet[:onset], *slow]))
    first = next(verdicts for verdicts in seen if verdicts)
    assert [one.ranks for one in first] == [(2,)]


def test_a_duty_of_rank_0_is_told_from_a_slow_node_where_something_tells() -> None:
    """Other ranks of its node, all parts of a step, or preflight say that it is the node."""

    def found(per_node: int, places: tuple[float, ...], reference: float = 1.0) -> str:
        def change(rank: int, one: RankTime) -> RankTime:
            usual = (0.3, 0.3, 0.4)
            more = places if rank < per_node else (0.0, 0.0, 0.0)
            parts = tuple(one.local * a + b for a, b in zip(usual, more, strict=True))
            return dataclasses.replace(one, local=sum(parts), places=parts)

        names = {f"n{node}": reference if node == 0 else 1.0 for node in range(4)}
        (verdict,) = run(windows(job(4, per_node, change)), references=names)[-1]
        assert verdict.node == "n0"
        return verdict.own_work

    assert "may log, gather or save" in found(1, (0.4, 0.0, 0.0))
    assert not found(1, (0.12, 0.12, 0.16))
    assert not found(2, (0.4, 0.0, 0.0))
    assert not found(1, (0.4, 0.0, 0.0), reference=1.4)


def test_half_of_the_nodes_are_found_while_all_cool_down() -> None:
    """The change that all share is taken away, though the middle of the ranks is a gap."""
    times = job(8, 1, slower(range(4), 1.5), 16)
    warm = [
        {
            rank: dataclasses.replace(one, local=one.local * (1.3 - 0.02 * i))
            for rank, one in ranks.items()
        }
        for i, ranks in enumerate(times)
    ]
    for verdicts in run(windows(warm))[QUIET + 3 :]:
        assert [one.ranks for one in verdicts] == [(0,), (1,), (2,), (3,)]


def test_longer_samples_are_no_straggler_where_the_work_is_known() -> None:
    """A rank is slow for its work and in seconds, or it is not slow."""
    longer = windows(job(4, 1, lambda rank, one: _work(one, 1.6 if rank == 1 else 1.0)))
    assert not _named(run(_with_work(longer))[-1])
    shorter = windows(job(4, 1, lambda rank, one: _work(one, 0.4 if rank == 1 else 1.0, fixed=0.5)))
    assert not _named(run(_with_work(shorter))[-1])
    slow = windows(job(4, 1, slower([1], 1.5)))
    assert accused(run(_with_work(slow))[-1]) == [(Subject.NODE, "n1", (1,))]


def _named(verdicts: Sequence[StragglerVerdict]) -> list[int]:
    return [rank for one in verdicts for rank in one.ranks]


def _work(one: RankTime, work: float, fixed: float = 0.0) -> RankTime:
    return dataclasses.replace(one, local=one.local * (fixed + (1 - fixed) * work), work=work)


def _mapped(seen: Sequence[Window], change: Change) -> list[Window]:
    """The windows with each rank's times changed."""
    return [
        dataclasses.replace(one, ranks={rank: change(rank, it) for rank, it in one.ranks.items()})
        for one in seen
    ]


def _with_work(seen: Sequence[Window]) -> list[Window]:
    return _mapped(seen, lambda _, one: dataclasses.replace(one, work=one.work or 1.0))


def _slow_from_the_start() -> list[Mapping[int, RankTime]]:
    return job(4, 1, slower([3], 1.5))[QUIET:]


def test_slow_from_the_start_is_found_beside_peers_of_the_same_work() -> None:
    """Ranks that do the same by design need no past; where that is not known, nobody is named."""
    times = _slow_from_the_start()
    peers = _mapped(windows(times), lambda _, one: dataclasses.replace(one, peers=0))
    assert [one.ranks for one in run(peers)[-1]] == [(3,)]
    assert not run(windows(times))[-1]


def test_slow_from_the_start_is_found_with_preflights_figures() -> None:
    """Without known peers the node must be slow in the fixed task, too."""
    times = _slow_from_the_start()
    slow = {"n0": 10.0, "n1": 10.1, "n2": 9.9, "n3": 14.0}
    (verdict,) = run(windows(times), references=slow)[-1]
    assert verdict.ranks == (3,)
    assert "preflight: the node was slow, too" in verdict.considered
    assert not run(windows(times), references=slow | {"n3": 10.2})[-1]


def test_communication_makes_a_link_of_a_node() -> None:
    """Most of the excess must be communication."""
    for transfer, subject in ((0.45, Subject.LINK), (0.1, Subject.NODE)):
        more = {2: 0.02 + transfer}
        seen = _mapped(
            windows(job(4, 1, slower([2], 1.5))),
            lambda rank, one: dataclasses.replace(one, transfer=more.get(rank, 0.02)),  # noqa: B023
        )
        (verdict,) = run(seen)[-1]
        assert verdict.subject is subject
        assert "of the excess is communication" in verdict.considered[0]


def test_an_excess_in_one_place_of_the_step_is_likely_a_data_loader() -> None:
    """One that is spread over the step as the work is, is not."""
    for places, says in (((0.7, 0.4, 0.4), "likely"), ((0.3, 0.6, 0.6), "unlikely")):
        own = {2: places}
        seen = _mapped(
            windows(job(4, 1, slower([2], 1.5))),
            lambda rank, one: dataclasses.replace(one, places=own.get(rank, (0.2, 0.4, 0.4))),  # noqa: B023
        )
        (verdict,) = run(seen)[-1]
        assert any(f": {says}, " in text for text in verdict.considered)


def test_a_rank_that_recovers_is_no_longer_accused() -> None:
    """The verdict ends with its votes."""
    times = job(4, 1, slower([2], 1.5), 6)
    found = run(windows([*times, *job(4, 1, _same, 0)]))
    assert found[QUIET + 5]
    assert not found[-1]


def test_ranks_that_come_and_go_are_judged_by_what_is_there() -> None:
    """A window without a rank forgets its votes; a new rank waits for its past."""
    times = [dict(one) for one in job(4, 1, slower([3], 1.5))]
    for ranks in times[QUIET + 4 :]:
        del ranks[3]
    found = run(windows(times))
    assert found[QUIET + 3]
    assert not found[-1]


CHANGES = [
    ([1.0], 0),
    ([0, 0, 0, 9, 9], 3),
    ([0, 1, 0, 9, 1, 9, 9], 3),
    ([9, 9, 9, 0, 0], 0),
    ([5, 5, 5], 0),
]


@pytest.mark.parametrize(("values", "at"), CHANGES)
def test_the_change_point_is_the_greatest_rise(values: Sequence[float], at: int) -> None:
    """The first step of the part behind it; where nothing rises, of the series."""
    assert change_point([(10 * i, value) for i, value in enumerate(values)]) == 10 * at


def _step(sequence: int, local: Mapping[int, float], segments: int = 2) -> Step:
    parts = tuple(
        StepSegment(sequence, {rank: one / segments for rank, one in local.items()})
        for _ in range(segments)
    )
    return Step(sequence, max(local.values()) + TRANSFER, local, parts, len(parts))


def test_a_window_is_its_usual_step() -> None:
    """Pauses in few steps do not move it; steps with a checkpoint are left out."""
    steps = [_step(i, {0: 1.0, 1: 9.0 if i % 10 == 0 else 1.0}) for i in range(50)]
    about = {rank: RankTime(node=f"n{rank}", local=0.0) for rank in (0, 1)}
    window = finished(window_slices(100, steps, about))
    assert window.first_step == 100
    assert window.step == pytest.approx(1.1)
    assert window.ranks[1].local == pytest.approx(1.0)
    assert window.ranks[1].places == pytest.approx((0.5, 0.5))
    slow = [_step(i, {0: 1.0, 1: 9.0 if i % 2 else 1.0}) for i in range(50)]
    window = finished(window_slices(0, slow, about, sections=range(1, 50, 2)))
    assert window.ranks[1].local == pytest.approx(1.0)
    assert not window.ranks[1].marked
    assert finished(window_slices(0, slow, about, sections=range(45))).ranks[1].marked


def test_the_middle_mean_ignores_a_quarter_at_each_end() -> None:
    """One value is itself."""
    assert middle_mean([3.0]) == 3.0
    assert middle_mean([0.0, 1.0, 3.0, 1000.0]) == 2.0


policies = st.builds(
    StragglerPolicy,
    slowdown_percent=st.floats(5, 200),
    votes=st.integers(1, 6),
    votes_out_of=st.integers(1, 6),
)
local_times = st.floats(0, 1e4, allow_nan=False)


@given(
    rows=st.lists(st.lists(local_times, min_size=6, max_size=6), min_size=1, max_size=30),
    ranks=st.integers(1, 6),
    per_node=st.integers(1, 3),
    works=st.lists(st.floats(0, 1e4), min_size=6, max_size=6),
    policy=policies,
)
def test_any_window_is_judged(
    rows: Sequence[Sequence[float]],
    ranks: int,
    per_node: int,
    works: Sequence[float],
    policy: StragglerPolicy,
) -> None:
    """Verdicts name ranks of the window, once, with finite numbers, and repeat exactly."""
    seen = windows(
        [
            {
                rank: RankTime(node=f"n{rank // per_node}", local=row[rank], work=works[rank])
                for rank in range(ranks)
            }
            for row in rows
        ]
    )
    found = run(seen, policy)
    assert found == run(seen, policy)
    for verdicts in found:
        named = [rank for one in verdicts for rank in one.ranks]
        assert len(named) == len(set(named))
        assert set(named) <= set(range(ranks))
        for one in verdicts:
            assert one.percent >= policy.slowdown_percent
            assert 0 < one.node_seconds_per_hour < 3600 * ranks
            votes = re.search(r"(\d+) of the last", one.reason)
            assert votes is None or int(votes[1]) >= policy.votes


@given(
    shared=st.lists(st.floats(0.9, 1.1), min_size=20, max_size=20),
    # Half of the ranks are told from a change that all share only where they are much slower.
    slow=st.sets(st.integers(0, 7), max_size=3),
    percent=st.floats(60, 200),
    design=st.lists(st.floats(0.5, 2.0), min_size=8, max_size=8),
    seed=st.integers(0, 10**6),
)
def test_slow_ones_of_unequal_ranks_are_found_and_no_other(
    shared: Sequence[float], slow: set[int], percent: float, design: Sequence[float], seed: int
) -> None:
    """Whatever the stages' lengths and a change that all share: each by its own past."""
    rng = random.Random(seed)
    times = []
    for i, change in enumerate(shared):
        usual = [rng.gauss(1.0, 0.005) * one * change for one in design]
        step = max(usual) + TRANSFER
        local = [
            one + step * percent / 100 if rank in slow and i >= QUIET else one
            for rank, one in enumerate(usual)
        ]
        times.append({rank: RankTime(node=f"n{rank}", local=one) for rank, one in enumerate(local)})
    for i, verdicts in enumerate(run(windows(times))):
        named = {rank for one in verdicts for rank in one.ranks}
        assert named <= slow
        if i >= QUIET + 2:
            assert named == slow
