"""Steps are saved in order: none below one that every load would take in its place."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest

import holdfast
from checkpoints.small_models import load, state_of
from holdfast.flash.trainer.client import CheckpointError

pytestmark = pytest.mark.train


def test_a_step_below_one_that_was_saved_is_refused_at_once(tmp_path: Path) -> None:
    """No later save waits for a slot that such a step would take for good."""
    model, _ = state_of()
    begin = time.monotonic()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.load()
        for _ in range(4):
            flash.save(100)
            for step in (2, 99):
                with pytest.raises(CheckpointError, match=rf"^step {step}: step 100 is there"):
                    flash.save(step, tag="best")
        flash.save(101)
        flash.wait()
        assert flash.latest() == 101
        assert flash.latest("best") == 0, "no tag for what was refused"
    assert time.monotonic() - begin < 30
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_100", "step_101"]


def test_a_run_that_loads_nothing_saves_nothing_below_an_earlier_run(tmp_path: Path) -> None:
    """The next load would return the earlier one's step: the error names it and both remedies."""
    first, _ = state_of(1)
    with holdfast.Checkpointer(tmp_path, model=first) as flash:
        flash.load()
        flash.save(30)
    model, _ = state_of(2)
    flash = holdfast.Checkpointer(tmp_path, model=model)
    with pytest.raises(CheckpointError, match=r"step 30 of an earlier run.*load\(\).*directory"):
        flash.save(10)
    with pytest.raises(CheckpointError, match="30 of an earlier run"):
        flash.close(29)
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_30"]
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(31)  # the newest, by whatever count
    assert load(tmp_path, model=first) == 31
    assert first.state_dict()["0.weight"].equal(model.state_dict()["0.weight"])


def test_a_run_that_counts_anew_after_a_load_is_told_at_its_first_step(tmp_path: Path) -> None:
    """Training goes on, and what is past the step that was loaded is saved."""
    model, _ = state_of()
    schedule = holdfast.Schedule(storage_every=2)
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.load()
        flash.save(4)
    for loads in (True, False):
        holdfast.init()._step = 0  # another run, in this process
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with holdfast.Checkpointer(tmp_path, model=model, schedule=schedule) as flash:
                assert not loads or flash.load() == 4
                for step in range(1, 7):
                    flash.step(step)
                flash.wait()
                assert (flash.failed, flash.latest()) == (1, 6)
        first = [str(one.message) for one in told if "step 4 " in str(one.message)]
        assert first[0].startswith("not saved: "), first
        for path in tmp_path.glob("step_6"):
            path.rename(tmp_path.parent / f"moved_{loads}")
