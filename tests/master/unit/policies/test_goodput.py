"""Account of every second of every node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.goodput import (
    CLASSES,
    MICROS,
    Activity,
    class_seconds,
    classify,
    entries,
    from_class_seconds,
    from_entries,
    micros,
    ratio,
    summed,
)
from holdfast_wire.messages import ClassSeconds, GoodputClass, GoodputEntry, RankSection

G = GoodputClass
TRAIN, EVAL, SAVE = RankSection.TRAIN, RankSection.EVAL, RankSection.CHECKPOINT

TABLE = [
    # sections, since a step, usual step, class
    ({TRAIN}, 0.1, 0.1, G.PRODUCTIVE),
    ({TRAIN}, 10.0, 0.1, G.PRODUCTIVE),
    ({TRAIN}, 10.1, 0.1, G.HANG),
    ({TRAIN}, 30.0, 2.0, G.PRODUCTIVE),
    ({TRAIN}, 41.0, 2.0, G.HANG),
    ({TRAIN}, 600.0, 0.0, G.PRODUCTIVE),
    ({TRAIN}, 601.0, 0.0, G.HANG),
    ({TRAIN, SAVE}, 30.0, 0.1, G.CHECKPOINT),
    ({EVAL}, 1000.0, 0.1, G.PRODUCTIVE),
    ({TRAIN, EVAL}, 1000.0, 0.1, G.PRODUCTIVE),
    ({RankSection.UNSPECIFIED}, 1000.0, 0.1, G.HANG),
]


@pytest.mark.parametrize(("sections", "since", "usual", "kind"), TABLE)
def test_class_of_a_training_node(
    sections: set[RankSection], since: float, usual: float, kind: GoodputClass
) -> None:
    """Checkpoints count as such; a hang is long in seconds and in steps, and only in training."""
    activity = Activity(
        sections=frozenset(sections), since_step_seconds=since, usual_step_seconds=usual
    )
    assert classify(activity, stall_seconds=10.0, stall_steps=20.0) is kind


def test_messages_of_totals() -> None:
    """Classes in their order, empty ones left out, back again without a loss."""
    totals = {G.WAITING: 1_500_000, G.PRODUCTIVE: 3 * MICROS, G.HANG: 0}
    listed = entries(totals)
    assert listed == (
        GoodputEntry(kind=G.PRODUCTIVE, node_seconds=3.0),
        GoodputEntry(kind=G.WAITING, node_seconds=1.5),
    )
    assert from_entries(listed) == {G.WAITING: 1_500_000, G.PRODUCTIVE: 3 * MICROS}
    strange = (ClassSeconds(name="NEW", seconds=1.0), ClassSeconds(name="HANG", seconds=-1.0))
    brought = from_class_seconds((*class_seconds(totals), *strange))
    assert brought == {G.WAITING: 1_500_000, G.PRODUCTIVE: 3 * MICROS}
    assert class_seconds(totals)[0] == ClassSeconds(name="PRODUCTIVE", seconds=3.0)


def test_ratio() -> None:
    """The productive share; nothing counted is 0."""
    assert ratio({}) == 0.0
    assert ratio({G.PRODUCTIVE: 3, G.RESTART: 1}) == 0.75


TOTALS = st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 10**15), max_size=8)


@given(st.lists(TOTALS, max_size=5))
def test_sums_lose_nothing(many: list[dict[GoodputClass, int]]) -> None:
    """The sum over nodes has every microsecond of every node."""
    total = summed(many)
    assert sum(total.values()) == sum(sum(totals.values()) for totals in many)
    assert 0.0 <= ratio(total) <= 1.0


@given(TOTALS)
def test_microseconds_survive_a_message(totals: dict[GoodputClass, int]) -> None:
    """Thirty years in a double are exact to the microsecond."""
    kept = {kind: spent for kind, spent in totals.items() if spent}
    assert from_entries(entries(totals)) == kept
    assert micros(1.0000004) == MICROS
