"""The page of the local SGD benchmark judges what was measured, and says what was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.harness.record import DOCS
from bench.local_sgd import plan
from bench.local_sgd import results as r
from bench.local_sgd.page import judge
from bench.local_sgd.results import Measured

LATER = r.AFTER_STEPS.format(1280)


def _run(row: str, group: str, way: str, turn: int = 0, **values: float) -> Measured:
    named = {getattr(r, name, name): value for name, value in values.items()}
    return Measured(row=row, group=group, way=way, turn=turn, values=named)


def _pair(row: str, group: str, way: str, name: str, own: float, ddp: float) -> list[Measured]:
    """Return three turns of a way and of DDP."""
    return [
        _run(row, group, one, turn, **{name: value * (1 + turn)})
        for turn in range(3)
        for one, value in ((way, own), (plan.DDP, ddp))
    ]


@pytest.mark.parametrize(
    ("found", "text", "kept"),
    [
        (_pair(r.BYTES, "2 replicas", "EDiT, H = 16", "SENT", 1.0, 16.0), "2 replicas", True),
        (_pair(r.BYTES, "2 replicas", "EDiT, H = 16", "SENT", 1.1, 16.0), "2 replicas", False),
        (_pair(r.LINKS, "10 Mbit/s", "EDiT, H = 32", "SECONDS", 1.0, 12.0), "10 Mbit/s", True),
        (_pair(r.LINKS, "10 Mbit/s", "EDiT, H = 32", "SECONDS", 1.0, 11.0), "10 Mbit/s", False),
        (_pair(r.SLOW, plan.SLOW_GROUP, "A-EDiT", "FAST_STEPS", 3.0, 1.0), "a fast", True),
        (_pair(r.SLOW, plan.SLOW_GROUP, "A-EDiT", "FAST_STEPS", 2.9, 1.0), "a fast", False),
        (_pair(r.LOSS, "4 replicas", "EDiT, H = 32", LATER, 1.005, 1.0), "1280", True),
        (_pair(r.LOSS, "4 replicas", "EDiT, H = 32", LATER, 1.02, 1.0), "1280", False),
        ([_run(r.ROBUST, plan.ONE, plan.ALL, BEFORE=2.0, AFTER=2.01)], plan.ALL, True),
        ([_run(r.ROBUST, plan.ONE, plan.ALL, BEFORE=2.0, AFTER=2.03)], plan.ALL, False),
        ([_run(r.ROBUST, plan.ONE, plan.EQUAL, BEFORE=2.0, AFTER=2.1)], plan.EQUAL, False),
        ([_run(r.ELASTIC, "kills", "kills", goodput=0.9)], "goodput", True),
        ([_run(r.ELASTIC, "kills", "kills", goodput=0.8)], "goodput", False),
    ],
)
def test_a_bar_is_judged_by_the_median(found: list[Measured], text: str, kept: bool) -> None:  # noqa: FBT001
    """Each kind of bar is kept on its limit and broken beyond it; all others are not measured."""
    judged = [one for one in judge(found) if one.kept is not None]
    assert [one.kept for one in judged if text in one.text] == [kept]
    assert sum(one.kept is None for one in judge(found)) > 10


def test_every_comparison_has_ddp_and_takes_turns_in_a_drawn_order() -> None:
    """Another seed is another order of the same cases; a row that is not wanted has no world."""
    one, other = (list(plan.worlds((r.LINKS, r.LOSS), range(2), seed)) for seed in (1, 2))
    assert [world.group for world in one] == [world.group for world in other]
    assert any(a.cases != b.cases for a, b in zip(one, other, strict=True))
    assert all(plan.DDP in {case.name for case in world.cases} for world in one)
    assert {world.row for world in one} == {r.LINKS, r.LOSS}


@pytest.mark.train
@pytest.mark.timeout(300)
def test_the_bytes_of_two_replicas_are_counted(tmp_path: Path) -> None:
    """A real world of two ranks in networks of their own, if this user may make them."""
    from bench.local_sgd.worlds import NetworkError, networks, run

    try:
        with networks(1, None):
            pass
    except NetworkError as error:
        pytest.skip(f"needs the right to make networks: {error}")
    cases = (plan.WayPlan(name=plan.DDP, kind="ddp", steps=8), plan.edit(4, 8, "int8"))
    world = plan.ReplicaWorld(
        row=r.BYTES, group="2 replicas", ranks=2, turn=0, cases=cases, networks=True
    )
    ddp, int8 = (line["values"][r.SENT] for line in run(world, 29_990))
    assert ddp == pytest.approx(7.35e6, rel=0.1)
    assert int8 * 4 / ddp == pytest.approx(0.256, rel=0.1)


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "local_sgd/process/test_fsdp2_by_time.py::test_a_fast_replica_weighs_more_and_none_waits_for_the_slow_one_s_steps",
    ],
)
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_fast_replicas_wait_for_a_step_of_the_slow_one() -> None:
    """Each replica trains its steps, the slow one fewer, and rounds are made on the way."""
    from bench.local_sgd.worlds import run

    (line,) = run(plan.slow_world(plan.a_edit(100, 32 * 0.02), 0, compute_ms=20.0), 29_980)
    assert line["values"]["rounds of a fast replica"] >= 2
    assert line["values"][r.ALL_STEPS] > 3 * line["values"][r.FAST_STEPS] > 0


def test_every_row_of_the_benchmark_is_published() -> None:
    """None was left out of the run."""
    lines = (DOCS / "local_sgd.jsonl").read_text().splitlines()[1:]
    assert {json.loads(line)["row"] for line in lines} == set(r.ROWS)


def test_torchft_is_left_out_by_name_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchft a world has all its other ways, and the reason says what to install."""
    from bench.local_sgd import torchft_ways

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install" in torchft_ways.missing()
    whole = next(plan.worlds((r.BYTES,), range(1), 1))
    kinds = {case.kind for case in plan.without(whole, "torchft").cases}
    assert {case.kind for case in whole.cases} - kinds == {"torchft"}
