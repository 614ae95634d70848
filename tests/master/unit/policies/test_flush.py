"""Steps that are saved out of memory before their nodes go, and the wait of the others."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.policies.checkpoints import coordinator
from holdfast_master.policies.flush import Copy, FlushStep, Stock, decide, goes_apart, patience
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import CheckpointVersion

HOLDERS = ((0, "a"), (1, "b"))


def _v(step: int, lineage: int = 1) -> CheckpointVersion:
    return CheckpointVersion(lineage=lineage, step=step)


def _copy(step: int, lineage: int = 1) -> Copy:
    return Copy(version=_v(step, lineage), holders=HOLDERS)


@pytest.mark.parametrize(
    ("stock", "step", "version"),
    [
        (Stock(), FlushStep.NOTHING, None),
        (Stock(committed=_v(9)), FlushStep.NOTHING, None),
        (Stock(memory=_copy(9)), FlushStep.SAVE, _v(9)),
        (Stock(memory=_copy(9), committed=_v(8)), FlushStep.SAVE, _v(9)),
        (Stock(memory=_copy(9), committed=_v(9)), FlushStep.NOTHING, None),
        (Stock(memory=_copy(3, lineage=2), committed=_v(9)), FlushStep.SAVE, _v(3, 2)),
        (Stock(memory=_copy(9), whole=[_v(9)]), FlushStep.AWAIT, _v(9)),
        (Stock(memory=_copy(9), whole=[_v(8)]), FlushStep.SAVE, _v(9)),
        (Stock(whole=[_v(8), _v(7)], committed=_v(6)), FlushStep.AWAIT, _v(8)),
        (Stock(whole=[_v(8)], committed=_v(8)), FlushStep.NOTHING, None),
        (Stock(memory=_copy(9), failed=[_v(9)]), FlushStep.LOST, _v(9)),
        (Stock(memory=_copy(9), failed=[_v(9)], whole=[_v(8)]), FlushStep.AWAIT, _v(8)),
        (Stock(whole=[_v(8)], failed=[_v(8)]), FlushStep.NOTHING, None),
    ],
)
def test_the_newest_step_that_storage_lacks_is_saved(
    stock: Stock, step: FlushStep, version: CheckpointVersion | None
) -> None:
    """A step on its way to storage is awaited. A save that failed is not tried again."""
    verdict = decide(stock, set(HOLDERS))
    assert (verdict.step, verdict.version) == (step, version), verdict
    assert verdict.reason


def test_all_who_held_it_must_be_there_as_the_same_agents() -> None:
    """Memory ends with the agent: another one on the node has nothing."""
    stock = Stock(memory=_copy(9))
    for present in ({(0, "a")}, {(0, "a"), (1, "c")}):
        verdict = decide(stock, present)
        assert verdict.step is FlushStep.LOST
        assert verdict.reason == "node 1 had a part of it, and is gone"
    assert decide(stock, set()).reason == "node 0 and 1 more had a part of it, and is gone"
    whole = Stock(memory=_copy(9), whole=[_v(8)])
    assert decide(whole, {(0, "a")}).version == _v(8), "an older one is on its way all the same"


def test_only_a_world_of_the_same_nodes_in_the_same_order_starts_from_memory() -> None:
    """Too few nodes: while all holders could come back, nobody goes apart."""
    memory, all_there = _copy(9), set(HOLDERS)
    assert not goes_apart(None, all_there, HOLDERS, 64)
    assert not goes_apart(memory, all_there, HOLDERS, 64)
    assert goes_apart(memory, all_there, HOLDERS[::-1], 64)
    assert goes_apart(memory, all_there, HOLDERS[:1], 64)
    assert goes_apart(memory, all_there, (*HOLDERS, (2, "c")), 64)
    assert not goes_apart(memory, all_there, (), 64)
    assert goes_apart(memory, {(0, "a"), (2, "c")}, (), 64)


def test_a_world_with_all_holders_reads_the_memory_of_each_other() -> None:
    """In any order and with newcomers; too many ranks go to storage first, as of old."""
    small, large = (dataclasses.replace(_copy(9), ranks=ranks) for ranks in (4, 65))
    for members in (HOLDERS[::-1], (*HOLDERS, (2, "c"))):
        assert not goes_apart(small, set(members), members, 64)
        assert goes_apart(large, set(members), members, 64)
    assert goes_apart(small, set(HOLDERS), HOLDERS[:1], 64)
    assert goes_apart(small, set(HOLDERS), (HOLDERS[0], (1, "another agent")), 64)


def test_parts_whose_world_is_not_known_are_written_first() -> None:
    """Nobody lends them: as without any reading of others."""
    unknown = dataclasses.replace(_copy(9), ranks=4, named=False, whole=HOLDERS)
    assert goes_apart(unknown, set(HOLDERS), HOLDERS[::-1], 64)
    assert not goes_apart(unknown, set(HOLDERS), HOLDERS, 64)


@pytest.mark.parametrize(
    ("memory", "committed", "step_seconds", "seconds"),
    [
        (100, None, 0.1, 10.0),
        (100, 90, 0.1, 1.0),
        (100, 95, 0.1, 0.0),
        (100_000, None, 1.0, 300.0),
        (100, None, 0.0, 30.0),
    ],
)
def test_a_world_waits_as_long_as_the_steps_would_take(
    memory: int, committed: int | None, step_seconds: float, seconds: float
) -> None:
    """Never for less work than it is worth, never longer than the most."""
    floor = None if committed is None else _v(committed)
    stock = Stock(memory=_copy(memory), committed=floor)
    settings = CoreSettings(rescue_least_seconds=1.0, barrier_seconds=30.0, rescue_seconds=300.0)
    found = patience(stock, step_seconds, settings)
    assert found == pytest.approx(seconds)


def test_a_node_that_hung_gets_the_grant_only_where_nobody_else_is() -> None:
    """Nodes that wrote a part come first, then other nodes, then nodes that hung."""
    assert coordinator({0, 1}, {0, 1, 2}) == 0
    assert coordinator({0, 1}, {0, 1, 2}, {0}) == 1
    assert coordinator({0, 1}, {0, 1, 2}, {0, 1}) == 2
    assert coordinator({0}, {0}, {0}) == 0
    assert coordinator({0}, set(), {0}) is None
