"""The training script's command line: a wrong value is named, with what would be right."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from house.repository import ROOT

pytestmark = pytest.mark.train  # torch is imported, nothing is trained


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Parses flags that must be refused; returns what is said to the user."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    faults, flags = importlib.import_module("faults"), importlib.import_module("flags")

    def parse(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train_gpt.py", *words])
        with pytest.raises(SystemExit) as ended:
            faults.parse_args(flags.flags())
        assert ended.value.code == 2
        return capsys.readouterr().err

    return parse


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--steps=0", "argument --steps: '0': expected a whole number from 1 on"),
        ("--steps=ten", "argument --steps: 'ten': expected a whole number from 1 on"),
        ("--batch=-1", "argument --batch: '-1': expected a whole number from 1 on"),
        ("--batch=1.5", "argument --batch: '1.5': expected a whole number from 1 on"),
        ("--seed=-1", "argument --seed: '-1': expected a whole number from 0 on"),
        ("--save-every=0", "argument --save-every: '0': expected a whole number from 1 on"),
        ("--threads=99999999999", "argument --threads: '99999999999': expected a whole number"),
        ("--lr=fast", "argument --lr: 'fast': expected a number between 0 and 10"),
        ("--lr=nan", "argument --lr: 'nan': expected a number between 0 and 10"),
        ("--lr=0", "argument --lr: '0': expected a number between 0 and 10"),
        ("--parallel=zero", "argument --parallel: invalid choice: 'zero'"),
        ("--checkpoint-dir=README.md", "--checkpoint-dir: 'README.md': expected a folder"),
        ("--loss-log=README.md/x", "argument --loss-log: 'README.md/x': cannot be written"),
        ("--text=nowhere", "argument --text: 'nowhere': [Errno 2] No such file"),
        ("--text=docs", "argument --text: 'docs': [Errno 21] Is a directory"),
        ("--step=3", "unrecognized arguments: --step=3"),
        ("--crash-at=soon", "argument --crash-at: STEP 'soon': expected a whole number ≥ 1"),
        ("--crash-at=0", "argument --crash-at: STEP '0': expected a whole number ≥ 1"),
        ("--crash-at=5:first", "argument --crash-at: RANK 'first': expected a whole number ≥ 0"),
        ("--exit-at=5", "argument --exit-at: CODE '': expected a whole number ≥ 0"),
        ("--exit-at=5:256", "argument --exit-at: CODE 256: expected at most 255"),
        ("--crash-in=lunch", "--crash-in: PHASE 'lunch': expected one of init, first-step, check"),
        ("--extra-work-ms=much", "argument --extra-work-ms: MS 'much': expected a whole number"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, word: str, said: str
) -> None:
    """The error names the flag, the value and what would be right."""
    monkeypatch.chdir(ROOT)
    assert said in refused(word)


def test_a_text_that_is_too_short_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    """A text whose tenth does not hold one window says how long it must be."""
    file = tmp_path / "short.txt"
    file.write_text("a" * 1000)
    assert "1000 bytes are too few: more than 1280 are needed" in refused(f"--text={file}")
