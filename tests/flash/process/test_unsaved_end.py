"""A script that ends without `close` is told which steps no checkpoint has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from house import forks

pytestmark = pytest.mark.train

SCRIPT = """
import os, sys, torch, holdfast
model = torch.nn.Linear(3, 3)
flash = holdfast.Checkpointer(sys.argv[1], model=model,
                              schedule=holdfast.Schedule(memory_every=0, storage_every=4))
flash.load()
for step in range(flash.latest() + 1, int(sys.argv[2]) + 1):
    flash.step(step)
"""


def _end(tmp_path: Path, steps: int, last: str = "") -> tuple[int, str]:
    command = ["-c", SCRIPT + last, str(tmp_path / "run"), str(steps)]
    done = forks.run(command, env=os.environ, timeout=60)
    return done.returncode, done.stderr


def test_an_end_off_schedule_names_the_steps_that_are_lost(tmp_path: Path) -> None:
    """Step 4 is saved, 5 and 6 are not: the warning names 6, 4 and the call that saves."""
    code, told = _end(tmp_path, 6)
    assert code == 0
    assert "training ended at step 6, and its newest checkpoint is of step 4" in told
    assert "close(6)" in told


def test_a_training_without_any_checkpoint_is_told_so(tmp_path: Path) -> None:
    """Three steps, none of them due."""
    _, told = _end(tmp_path, 3)
    assert "training ended at step 3, and its newest checkpoint is none" in told


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        (8, ""),
        (6, "flash.close(6)"),
        (6, "flash.close()"),
        (6, "flash.save(6)"),
        (6, "raise ValueError('the script failed')"),
        (6, "if os.fork() == 0: sys.exit()\nos.wait(); flash.close(6)"),
    ],
)
def test_an_end_that_needs_no_word_has_none(tmp_path: Path, steps: int, last: str) -> None:
    """It is on schedule, saved or closed, or a traceback says more; a fork has trained nothing."""
    _, told = _end(tmp_path, steps, last)
    assert "training ended" not in told


def test_the_next_run_counts_from_what_it_loaded(tmp_path: Path) -> None:
    """A run that only loads step 4 loses nothing."""
    _end(tmp_path, 4)
    _, told = _end(tmp_path, 4)
    assert "training ended" not in told
