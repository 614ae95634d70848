"""The examples whose ranks come and go also run where they are fixed, as under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.data.counting import SampleCount, count
from holdfast.data.record import files_of, lines_of
from holdfast.data.samples_report import is_once
from house.repository import ROOT
from jobs.training import train

EXAMPLES = ROOT / "examples"
SCRIPT = EXAMPLES / "with_local_sgd" / "train_elastic.py"
pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def counted(*folders: Path) -> SampleCount:
    """Return what ranks have recorded in these folders."""
    return count(lines_of(path) for folder in folders for path in files_of(folder))


def test_fixed_replicas_save_together(tmp_path: Path) -> None:
    """Both ranks save: a checkpoint of fixed replicas has the state of all."""
    given = ("--steps=4", "--interval=3", f"--checkpoint-dir={tmp_path}")
    ended = train(*given, ranks=2, script=SCRIPT)
    assert ended.code == 0, ended.output
    assert (tmp_path / "step_4").is_dir()


def test_replicas_in_step_go_on_from_the_checkpoint_of_all(tmp_path: Path) -> None:
    """Fixed ones are one world: all ranks save, and the next run begins behind the last step."""
    script, given = EXAMPLES / "with_replicas" / "train.py", f"--checkpoint-dir={tmp_path / 'ck'}"
    for folder, steps in (("first", 3), ("second", 5)):
        record = f"--record={tmp_path / folder}"
        ended = train(f"--steps={steps}", given, record, ranks=2, script=script)
        assert ended.code == 0, ended.output
        assert (tmp_path / "ck" / f"step_{steps}").is_dir(), ended.output
    assert (counted(tmp_path / "first").steps, counted(tmp_path / "second").steps) == (3, 2)
    both = counted(tmp_path / "first", tmp_path / "second")
    assert is_once(both), both
    assert sum(one.used for one in both.epochs) == 5 * 12 * 4


def test_each_record_of_shards_is_read_once_where_ranks_share_them(tmp_path: Path) -> None:
    """Two ranks, unlike counts of records: the script agrees on its last step."""
    script, record = EXAMPLES / "with_shards" / "train.py", f"--record={tmp_path}"
    ended = train("--windows=101", "--epochs=2", record, ranks=2, script=script)
    assert ended.code == 0, ended.output
    found = counted(tmp_path)
    assert is_once(found), found
    assert [(one.used, one.unfinished) for one in found.epochs] == [(101, ())] * 2
