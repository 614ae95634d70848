"""A round over all units: one order of collectives, whatever order a forward takes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.local_sgd.driver.rounds import Round, log_units
from holdfast.local_sgd.sync.group import SyncError
from holdfast.local_sgd.sync.unit_sync import Outcome

UNITS = 5


class Recorder:
    """A sync that notes its calls; the unit `fails` fails once in finish."""

    def __init__(self, fails: int = -1) -> None:
        self.calls: list[str] = []
        self.fails = fails

    def begin(self, units: list[int], *, steps: float) -> int:
        assert steps == 3.0
        self.calls.append(f"begin {units[0]}")
        return units[0]

    def finish(self, pending: int) -> list[str]:
        if pending == self.fails:
            self.fails = -1
            raise SyncError("a rank is gone")
        self.calls.append(f"finish {pending}")
        return [f"unit {pending}"]


def _round(recorder: Recorder) -> Round:
    def before(number: int) -> None:
        recorder.calls.append(f"write {number}")

    batches: Any = [[number] for number in range(UNITS)]
    return Round(cast("Any", recorder), batches, steps=3.0, before_write=before)


def _names(one: Round) -> list[Any]:
    return list(one.outcomes)


@given(st.lists(st.integers(0, UNITS - 1)))
def test_all_ranks_make_the_same_collectives_in_the_same_order(order: list[int]) -> None:
    """Whatever units a forward reaches, in whatever order and however often."""
    plain, here = Recorder(), Recorder()
    _round(plain).reach(UNITS)
    one = _round(here)
    for number in order:
        one.reach(number)
        assert len(one.outcomes) >= number + 1
    one.reach(UNITS)
    assert here.calls == plain.calls
    assert _names(one) == [f"unit {number}" for number in range(UNITS)]


def test_the_next_unit_is_in_flight_while_a_unit_computes() -> None:
    """The forward of unit 0 begins when unit 1's reduction is on its way."""
    recorder = Recorder()
    _round(recorder).reach(0)
    assert recorder.calls == ["begin 0", "begin 1", "write 0", "finish 0"]


def test_a_failure_leaves_finished_units_and_goes_on_with_the_others() -> None:
    """A unit whose reduction failed is begun again, and those before it are not."""
    recorder = Recorder(fails=2)
    one = _round(recorder)
    with pytest.raises(SyncError):
        one.reach(UNITS)
    assert _names(one) == ["unit 0", "unit 1"]
    one.reach(UNITS)
    assert one.is_over
    finished = [call for call in recorder.calls if call.startswith("finish")]
    assert finished == [f"finish {number}" for number in range(UNITS)]


def test_a_round_goes_on_where_other_replicas_have_brought_its_units() -> None:
    """Units that were given are not touched again, and the one in flight begins anew."""
    recorder = Recorder(fails=1)
    under_way = _round(recorder)
    with pytest.raises(SyncError):
        under_way.reach(2)
    assert under_way.begun == {1, 2}
    under_way.go_on_from(3)
    assert not under_way.begun
    recorder.calls.clear()
    under_way.reach(UNITS)
    assert recorder.calls == ["begin 3", "begin 4", "write 3", "finish 3", "write 4", "finish 4"]
    assert under_way.is_over


@pytest.mark.parametrize(("anomalous", "lines"), [(False, 0), (True, 1)])
def test_only_a_replica_that_stands_out_is_told_loudly(
    caplog: pytest.LogCaptureFixture, *, anomalous: bool, lines: int
) -> None:
    """A last round to which nobody has a step steps nowhere, and is nothing to warn of."""
    log_units(
        [
            Outcome(
                "root", 3, (0.0, 0.0), (anomalous, False), (0.0, 0.0), True, 1.0, "no step", (0, 1)
            )
        ]
    )
    assert len(caplog.records) == lines
