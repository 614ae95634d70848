"""The page of the benchmark of replicas judges what was measured, and says what was not."""

from __future__ import annotations

import pytest

from bench.replicas import results as r
from bench.replicas.page import costs_of, gradients, judge, page_of
from bench.replicas.results import ReplicaRun

SMALL = f"{r.FOUR}, 1 MB"


def _run(row: str, way: str, turn: int = 0, group: str = SMALL, **values: float) -> ReplicaRun:
    named = {getattr(r, name, name): value for name, value in values.items()}
    return ReplicaRun(row=row, group=group, way=way, turn=turn, values=named)


def _losses(ours: float, theirs: float) -> list[ReplicaRun]:
    return [
        _run(r.LOSSES, way, turn, TOTAL=total, ORDINARY=20.0, BEYOND=total - 20.0)
        for turn in range(3)
        for way, total in ((r.REPLICAS, ours), (r.RESTART, theirs))
    ]


@pytest.mark.parametrize(
    ("found", "text", "kept"),
    [
        (_losses(80.0, 240.0), "recomputed share, ms: 4", True),
        (_losses(81.0, 243.0), "recomputed share, ms: 4", False),
        (_losses(80.0, 240.0), f"sooner than {r.RESTART}", True),
        (_losses(80.0, 239.0), f"sooner than {r.RESTART}", False),
        ([_run(r.LOSSES, r.REPLICAS, BEGUN_AGAIN=1.0)], r.BEGUN_AGAIN, False),
        ([_run(r.LOSSES, r.REPLICAS, UNCOVERED=30.0)], "does not cover, ms: 1 MB", True),
        ([_run(r.LOSSES, r.REPLICAS, UNCOVERED=31.0)], "does not cover, ms: 1 MB", False),
        ([_run(r.STEPS, r.REPLICAS, CPU=1.0), _run(r.STEPS, r.PLAIN, CPU=1.0)], "CPU time", True),
        ([_run(r.STEPS, r.REPLICAS, CPU=1.1), _run(r.STEPS, r.PLAIN, CPU=1.0)], "CPU time", False),
        ([_run(r.GOODPUT, r.REPLICAS, SHARE=0.97)], "goodput", True),
        ([_run(r.GOODPUT, r.REPLICAS, SHARE=0.96)], "goodput", False),
        ([_run(r.SIMULATED, r.REPLICAS, effective=0.95)], "effective time", True),
        ([_run(r.SIMULATED, r.REPLICAS, effective=0.94)], "effective time", False),
    ],
)
def test_a_bar_is_judged_by_the_median(found: list[ReplicaRun], text: str, kept: bool) -> None:  # noqa: FBT001
    """Each kind of bar is kept on its limit and broken beyond it; all others are not measured."""
    judged = [one for one in judge(found) if one.kept is not None]
    assert [one.kept for one in judged if text in one.text] == [kept]
    assert sum(one.kept is None for one in judge(found)) > 8


def test_memory_is_counted_in_gradients_beyond_plain_torch() -> None:
    """Each turn's pair alone."""
    group = f"{r.FOUR}, 101 MB"
    found = [
        _run(r.MEMORY, way, turn, group, PEAK=peak + turn, GRADIENT=100.0)
        for turn in range(2)
        for way, peak in ((r.REPLICAS, 900.0), (r.PLAIN, 800.0))
    ]
    assert gradients(found, group) == [1.0, 1.0]
    assert gradients(found[:1], group) == []


def test_simulated_worlds_are_given_what_was_measured() -> None:
    """Without a loss of a way there are only published costs; a restart has no joiner."""
    assert [name for name in costs_of([]) if "published" not in name] == []
    found = costs_of([*_losses(80.0, 240.0), _run(r.LOSSES, r.REPLICAS, PAUSE=5.0)])
    assert found[r.RESTART].stall == pytest.approx(0.22)
    assert found[r.RESTART].away == 0
    assert found[r.REPLICAS].stall == pytest.approx(0.06)
    assert found[r.REPLICAS].shared == pytest.approx(0.02)
    assert found[f"{r.REPLICAS}, all wait 10 times as long"].join == pytest.approx(0.05)


def test_the_page_shows_what_is_there_and_names_what_is_not() -> None:
    """Rows without a run have no section; a way that did not train is named with its reason."""
    about = {
        "seed": 1, "date": "today", "commit": "0", "cores": 2, "cpu": "cpu", "memory_gib": 1,
        "kernel": "6", "python": "3", "torch": "2", "left_out": ["torchft 0.2.0: no wheel"],
    }  # fmt: skip
    failed = ReplicaRun(
        row=r.LOSSES, group=SMALL, way=r.NIGHTLY, turn=0, values={}, reason="it did not train"
    )
    joined = _run(r.LOSSES, r.REPLICAS, PAUSE=5.0)
    found = page_of(about, [*_losses(80.0, 240.0), joined, failed])
    assert "torchft 0.2.0: no wheel" in found
    assert "it did not train" in found
    assert "| 4 × 1 | Holdfast, restarted | 3.0× (3.0–3.0) |" in found
    assert f"| {SMALL} | {r.RESTART} | 3 | 240 | 20 | 220 | – |" in found
    assert "## Losses" in found
    assert "## Goodput" not in found
