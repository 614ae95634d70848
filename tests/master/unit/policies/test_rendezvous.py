"""Forming of a world: its time, its size, the order of its nodes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.rendezvous import (
    Attendance,
    Bounds,
    Candidate,
    Form,
    Seat,
    Wait,
    arrange,
    decide,
)


def attendance(present: int, **changes: object) -> Attendance:
    """Two to eight nodes, six wanted, a window of 30 s that has not begun."""
    values: dict[str, object] = {
        "present": present,
        "bounds": Bounds(minimum=2, replicas=6, maximum=8),
        "recovering": False,
        "enough_since": 100.0,
        "join_window": 30.0,
    }
    return Attendance(**(values | changes))  # type: ignore[arg-type]


def nodes(*ranks: int, **topology: str) -> list[Candidate]:
    """Candidates whose agents are named after their rank."""
    labels = tuple(sorted(topology.items()))
    return [
        Candidate(node_rank=rank, agent_id=f"a{rank}", local_world_size=1, topology=labels)
        for rank in ranks
    ]


def seats(*ranks: int) -> list[Seat]:
    """A world before, with the same agents."""
    return [Seat(rank, f"a{rank}") for rank in ranks]


def ranks_of(world: tuple[Candidate, ...]) -> list[int]:
    """Node ranks in rank order."""
    return [candidate.node_rank for candidate in world]


PAIRS_OF_6 = Bounds(minimum=2, replicas=6, maximum=6, unit=2)
SIZES = [
    # present, changes, at, size (0: below the minimum, -1: the window), what the reason says
    (0, {}, 100.0, 0, "0 of at least 2"),
    (1, {}, 999.0, 0, "1 of at least 2"),
    (6, {}, 100.0, 6, "all 6 wanted"),
    (9, {}, 100.0, 6, "all 6 wanted"),
    (3, {}, 100.0, -1, "waits for more"),
    (3, {}, 129.9, -1, "waits for more"),
    (3, {}, 130.0, 3, "join window is over"),
    (3, {"warming": 1}, 130.0, -1, "waits for more"),
    (3, {"warming": 1}, 160.0, 3, "join window is over"),
    (4, {"warming": 1, "bounds": PAIRS_OF_6}, 130.0, 4, "join window is over"),
    (3, {"warming": 2, "recovering": True}, 100.0, 3, "goes on at once"),
    (3, {"enough_since": None}, 130.0, -1, "waits for more"),
    (3, {"join_window": 0.0}, 100.0, 3, "join window is over"),
    (3, {"recovering": True}, 100.0, 3, "goes on at once"),
    (1, {"recovering": True}, 100.0, 0, "1 of at least 2"),
    (5, {"bounds": Bounds(minimum=2, replicas=6, maximum=6, unit=2)}, 130.0, 4, "4 of 6"),
    (7, {"bounds": Bounds(minimum=2, replicas=7, maximum=8, unit=2)}, 100.0, 6, "all 6"),
    (1, {"bounds": Bounds(minimum=1, replicas=8, maximum=8, unit=4)}, 999.0, 0, "at least 4"),
    (7, {"bounds": Bounds(minimum=5, replicas=8, maximum=8, unit=4)}, 999.0, 0, "at least 8"),
    (6, {"bounds": Bounds(minimum=2, replicas=6, maximum=4)}, 100.0, 4, "all 4"),
    (9, {"bounds": Bounds(minimum=4, replicas=2, maximum=8)}, 999.0, 0, "leave no room"),
]


@pytest.mark.parametrize(("present", "changes", "at", "size", "says"), SIZES)
def test_size_of_a_new_world(
    present: int, changes: dict[str, object], at: float, size: int, says: str
) -> None:
    """A world has as many nodes as are wanted and there, in units, and waits for no others."""
    verdict = decide(attendance(present, **changes), at)
    assert says in verdict.reason
    if size > 0:
        assert isinstance(verdict, Form)
        assert verdict.size == size
    else:
        assert isinstance(verdict, Wait)
        assert verdict.below_minimum is (size == 0)
        assert (verdict.until is None) is (size == 0)


def test_the_window_counts_from_the_first_time_that_enough_were_there() -> None:
    """Later arrivals do not prolong the window."""
    verdict = decide(attendance(5, enough_since=90.0), 100.0)
    assert isinstance(verdict, Wait)
    assert verdict.until == 120.0


ORDERS = [
    # before, candidates, size, not first, order
    ([], (3, 0, 2, 1), 4, (), [0, 1, 2, 3]),
    ([], (3, 0, 2, 1), 2, (), [0, 1]),
    ((2, 0, 1), (0, 1, 2), 3, (), [2, 0, 1]),
    ((2, 0, 1), (0, 2), 2, (), [2, 0]),
    ((0, 1, 2), (0, 2, 5), 3, (), [0, 5, 2]),
    ((0, 1, 2), (0, 2, 5, 1), 3, (), [0, 1, 2]),
    ((0, 1, 2), (4, 5, 2), 3, (), [4, 5, 2]),
    ((2, 0), (0, 1, 2, 3), 4, (), [2, 0, 1, 3]),
    ((3, 0, 1, 2), (0, 1, 2, 3), 2, (), [0, 1]),
    ((1, 2, 3), (0, 1, 2, 3), 3, (), [1, 2, 3]),
    ((0, 1, 2), (0, 1, 2), 3, (0,), [1, 0, 2]),
    ((0, 1, 2), (0, 1, 2), 3, (0, 1, 2), [0, 1, 2]),
]


@pytest.mark.parametrize(("before", "present", "size", "unable", "order"), ORDERS)
def test_order_of_a_new_world(
    before: tuple[int, ...],
    present: tuple[int, ...],
    size: int,
    unable: tuple[int, ...],
    order: list[int],
) -> None:
    """Survivors keep their order, vacant places are filled, newcomers stand at the end."""
    world = arrange(seats(*before), nodes(*present), size, frozenset(unable))
    assert ranks_of(world) == order


def test_a_first_world_stands_by_topology() -> None:
    """Nodes with equal labels stand together."""
    candidates = nodes(0, 3, zone="b") + nodes(1, 2, zone="a")
    assert ranks_of(arrange([], candidates, 4)) == [1, 2, 0, 3]


def test_a_new_agent_of_a_node_is_a_newcomer() -> None:
    """The same node rank with another agent takes its own place again, not a survivor's."""
    back = Candidate(node_rank=1, agent_id="new", local_world_size=1)
    world = arrange(seats(0, 1, 2), [*nodes(0, 2), back], 3)
    assert [(c.node_rank, c.agent_id) for c in world] == [(0, "a0"), (1, "new"), (2, "a2")]


BOUNDS = st.builds(
    Bounds,
    minimum=st.integers(1, 12),
    replicas=st.integers(1, 12),
    maximum=st.integers(1, 12),
    unit=st.integers(1, 4),
)


@given(
    bounds=BOUNDS,
    present=st.integers(0, 20),
    recovering=st.booleans(),
    window=st.floats(0, 50),
    now=st.floats(0, 50),
)
def test_a_world_is_always_within_its_bounds(
    *, bounds: Bounds, present: int, recovering: bool, window: float, now: float
) -> None:
    """Min <= size <= max, never above replicas or the nodes there, a multiple of the unit."""
    view = attendance(
        present, bounds=bounds, recovering=recovering, join_window=window, enough_since=0.0
    )
    verdict = decide(view, now)
    if isinstance(verdict, Form):
        assert bounds.minimum <= verdict.size <= min(bounds.replicas, bounds.maximum, present)
        assert verdict.size % bounds.unit == 0
    else:
        assert verdict.until is None or verdict.until > now


RANKS = st.lists(st.integers(0, 15), unique=True, max_size=10)


@given(RANKS, RANKS, st.integers(1, 10), st.randoms(use_true_random=False))
def test_arrival_order_never_matters(
    before: list[int], present: list[int], size: int, luck: random.Random
) -> None:
    """The same nodes in any order give the same world; each node has one place."""
    size = min(size, len(present))
    candidates = nodes(*present)
    first = arrange(seats(*before), candidates, size)
    luck.shuffle(candidates)
    assert arrange(seats(*before), candidates, size) == first
    assert len(first) == size
    assert len({candidate.node_rank for candidate in first}) == size


@given(RANKS, RANKS, st.integers(1, 10))
def test_survivors_keep_their_order(before: list[int], present: list[int], size: int) -> None:
    """Whoever stays stands in the order of before; nobody new takes a survivor's place."""
    size = min(size, len(present))
    world = ranks_of(arrange(seats(*before), nodes(*present), size))
    stayed = [rank for rank in before if rank in world]
    assert [rank for rank in world if rank in before] == stayed
    assert len(stayed) == min(size, len(set(before) & set(present)))
