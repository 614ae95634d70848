"""The page of the start benchmark judges what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import machine
from bench.harness.launch import WorldError
from bench.start.__main__ import BENCH, ScriptStart, main, page_of, pair_ratios

ABOUT = machine.about("record", {})


def _results(ours: float) -> list[ScriptStart]:
    torchrun = [ScriptStart("torchrun", 2, pair, 10.0, 11.0, 0.5) for pair in range(3)]
    return [*torchrun, *(ScriptStart("holdfast", 2, pair, ours, 12.0, 1.5) for pair in range(3))]


@pytest.mark.parametrize(("ours", "said"), [(7.0, "≤ 0.7: yes"), (7.1, "≤ 0.7: **no**")])
def test_a_start_is_judged_beside_torchruns_of_the_same_pair(ours: float, said: str) -> None:
    """The median of the pairs' ratios is what the bar is held against."""
    text = page_of(ABOUT, _results(ours))
    assert said in text
    assert f"| {ours / 10:.2f} ({ours / 10:.2f}–{ours / 10:.2f}) |" in text
    assert "Load average 0.5–1.5" in text


def test_a_start_without_its_pair_has_no_ratio() -> None:
    """An interrupted run ends with one."""
    assert pair_ratios(_results(7.0)[:-1]) == [pytest.approx(0.7)] * 2


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "agent/process/test_standalone.py::test_a_run_ends_with_0_and_leaves_nothing",
        "agent/process/zygote/test_torch_workers.py::test_a_worker_imports_nothing_that_its_zygote_has",
    ],
)
@pytest.mark.train
@pytest.mark.slow
def test_a_pair_of_starts_is_measured(tmp_path: Path) -> None:
    """Both launchers bring two ranks to the sum, and the launcher outlives it."""
    out = tmp_path / "start.jsonl"
    assert main(["--pairs=1", "--ranks", "2", f"--out={out}"]) == 0
    about, results = BENCH.read(out.read_text().splitlines())
    assert about["cores"] > 0
    assert [one.launcher for one in results] == ["holdfast", "torchrun"]
    for one in results:
        assert 0 < one.first_collective_s < one.over_s


def test_a_world_that_fails_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the bench: its name, the reason, and code 1."""

    def failed(*_: object) -> None:
        raise WorldError("torchrun: exit code 1: no module named x")

    monkeypatch.setattr("bench.start.__main__.measure", failed)
    assert main([f"--out={tmp_path / 'start.jsonl'}"]) == 1
    assert capsys.readouterr().err == "bench.start: torchrun: exit code 1: no module named x\n"
