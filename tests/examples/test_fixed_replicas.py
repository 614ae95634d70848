"""The example whose replicas come and go also runs where they are fixed, as under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from house.repository import ROOT
from jobs.training import train

SCRIPT = ROOT / "examples" / "with_local_sgd" / "train_elastic.py"


@pytest.mark.train
@pytest.mark.timeout(160)
def test_fixed_replicas_save_together(tmp_path: Path) -> None:
    """Both ranks save: a checkpoint of fixed replicas has the state of all."""
    given = ("--steps=4", "--interval=3", f"--checkpoint-dir={tmp_path}")
    ended = train(*given, ranks=2, script=SCRIPT)
    assert ended.code == 0, ended.output
    assert (tmp_path / "step_4").is_dir()
