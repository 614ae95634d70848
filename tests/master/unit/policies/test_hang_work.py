"""Ranks at work beside ranks that hang, told apart by the duration of their pause."""

from __future__ import annotations

import pytest

from holdfast_master.policies.hang import classify
from holdfast_wire.messages import RankEvidence
from messages.hang_evidence import (
    COMPILES,
    LIB,
    LOADS,
    QUEUE,
    RUNS,
    SAVES,
    SLEEPS,
    TORCH,
    USER,
    rank,
    stack,
    tail,
    with_two,
)

FORWARD = stack((f"{TORCH}/nn/modules/linear.py", "forward"), ("/job/train.py", "evaluate"))
POLLS = stack((f"{LIB}/genericpath.py", "exists"), ("/job/train.py", "wait"))
AT_WORK = [
    ("evaluation", rank(1, stack=FORWARD, **RUNS), True),
    ("between two calls", rank(1, stack=USER, later_stacks=(FORWARD,), **RUNS), True),
    ("loop that polls", rank(1, stack=POLLS, later_stacks=(USER,), **RUNS), False),
    ("evaluation that sleeps", rank(1, stack=FORWARD, **SLEEPS), False),
    ("half a core", rank(1, stack=FORWARD, **{**RUNS, "cpu_seconds": 0.4}), False),
    ("not observed", rank(1, stack=FORWARD, **{**RUNS, "observed_seconds": 0.0}), False),
    ("loop of the script", rank(1, stack=USER, **RUNS), False),
    ("torch.save", rank(1, stack=SAVES, **RUNS), True),
    ("torch.save that waits", rank(1, stack=SAVES, kernel_function="nfs_wait"), False),
    ("compiler's child works", rank(1, stack=COMPILES, kernel_function="do_wait"), True),
    ("GIL, busy", rank(1, gil_free=False, stack=FORWARD, **RUNS), True),
    ("GIL, asleep", rank(1, gil_free=False, stack=FORWARD, **SLEEPS), False),
    ("slow storage", rank(1, stack=SAVES, kernel_function="nfs_wait", moved_bytes=1 << 18), True),
    ("page of a file", rank(1, stack=SAVES, kernel_function="folio_wait", wakes=8), True),
    ("slow pipe", rank(1, stack=USER, kernel_function="anon_pipe_write", wakes=8), True),
    ("poll", rank(1, stack=USER, kernel_function="do_poll", wakes=8), False),
    ("workers of a loader", rank(1, stack=LOADS, children_cpu_seconds=0.9, **SLEEPS), True),
    ("D state that moves", rank(1, process_state="D", moved_bytes=1 << 18), True),
    ("stopped", rank(1, process_state="T", moved_bytes=1 << 18), False),
    (
        "another operation",
        rank(1, stack=FORWARD, **RUNS, groups=(tail(6, operation="gloo:barrier", sizes="[]"),)),
        False,
    ),
]


@pytest.mark.parametrize(
    ("odd", "may_be_work"), [pytest.param(odd, is_work, id=name) for name, odd, is_work in AT_WORK]
)
def test_a_rank_that_computes_in_a_library_may_be_at_work(
    odd: RankEvidence,
    may_be_work: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """An evaluation, a save, a compilation: only their duration tells them from a hang."""
    assert classify(with_two(odd), world_size=3).may_be_work is may_be_work


SPINS = {**SLEEPS, "children_cpu_seconds": 1.0}
LOGS = {**SLEEPS, "moved_bytes": 1 << 18}
BESIDE = {**LOGS, "moved_beside_bytes": (1 << 18) - 100}


@pytest.mark.parametrize(
    ("odd", "moves"),
    [
        pytest.param(rank(1, stack=LOADS, **SPINS), False, id="worker of a loader spins"),
        pytest.param(rank(1, stack=QUEUE, **SPINS), False, id="child of a lock spins"),
        pytest.param(rank(1, stack=QUEUE, **LOGS), False, id="lock beside a thread that logs"),
        pytest.param(rank(1, stack=USER, **LOGS), False, id="sleep beside a thread that logs"),
        pytest.param(rank(1, stack=LOADS, **LOGS), True, id="loader that reads"),
        pytest.param(rank(1, stack=LOADS, **BESIDE), False, id="loader beside a thread that logs"),
        pytest.param(rank(1, stack=SAVES, **BESIDE), True, id="save by other threads"),
        pytest.param(rank(1, stack=SAVES, **LOGS), True, id="save that writes"),
    ],
)
def test_only_bytes_that_a_rank_waits_for_excuse_it_without_end(
    odd: RankEvidence,
    moves: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """A process below it may spin, and another thread may log: its time is a first step's."""
    verdict = classify(with_two(odd), world_size=3)
    assert verdict.may_be_work
    assert verdict.moves is moves


def test_on_a_device_a_busy_rank_may_as_well_wait() -> None:
    """A wait for the device keeps a core busy, so it excuses nobody."""
    there = (tail(5, operation="nccl:all_reduce", ranks=(0, 1, 2)),)
    odd = rank(1, stack=FORWARD, groups=there, **RUNS)
    assert not classify(with_two(odd), world_size=3).may_be_work


def test_one_odd_rank_that_does_not_compute_is_no_work() -> None:
    """Whatever the other odd rank does."""
    evaluates = rank(1, 5, stack=FORWARD, **RUNS)
    both = classify([rank(0, 6), evaluates, rank(2, 5, stack=FORWARD, **RUNS)], world_size=3)
    assert both.may_be_work
    sleeps = rank(2, 5, stack=FORWARD, **SLEEPS)
    assert not classify([rank(0, 6), evaluates, sleeps], world_size=3).may_be_work
