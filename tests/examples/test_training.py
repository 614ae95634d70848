"""The training script: it learns, it resumes, and the number of processes changes nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from house.extended import usual
from house.patience import patience
from jobs.training import SCRIPT, Ended, assert_follows, steps_in, train

pytestmark = [pytest.mark.train, pytest.mark.timeout(400)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "examples/test_training.py::test_any_number_of_ranks_follows_one_curve",
    ],
)
STEPS = 40
RUN = (f"--steps={STEPS}", "--batch=3", "--log-every=10", "--save-every=10")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loss log of one process that nothing disturbed."""
    log = tmp_path_factory.mktemp("unbroken") / "loss.jsonl"
    ended = train(*RUN, f"--loss-log={log}")
    assert ended.code == 0, ended.output
    return log


@pytest.mark.extended(
    "another training of the example, or a test of the product, finds the same",
    held_by=[
        "examples/test_training.py::test_own_text_is_trained_on",
    ],
)
def test_it_learns_more_than_how_often_each_byte_occurs() -> None:
    """150 steps bring the validation loss clearly below the unigram entropy printed beside it."""
    ended = train("--steps=150", "--batch=8")
    assert ended.code == 0, ended.output
    loss, entropy = _validation(ended)
    assert 2.5 < entropy < 4
    assert loss < entropy - 0.5, ended.output


@pytest.mark.parametrize(
    ("ranks", "parallel"), usual([(2, "ddp"), (4, "fsdp2")], (2, "ddp"), more=MORE)
)
def test_any_number_of_ranks_follows_one_curve(
    unbroken: Path, tmp_path: Path, ranks: int, parallel: str
) -> None:
    """Shares of 1 and 2 samples, or of 1 or none, make the same batch of 3; DDP or FSDP2."""
    log = tmp_path / "loss.jsonl"
    ended = train(*RUN, f"--parallel={parallel}", f"--loss-log={log}", ranks=ranks)
    assert ended.code == 0, ended.output
    assert {line["world_size"] for line in steps_in(log)} == {ranks}
    assert_follows(log, unbroken)


@pytest.mark.extended(
    "the checkpoints of such worlds are tested by themselves",
    held_by=[
        "examples/test_training.py::test_any_number_of_ranks_follows_one_curve",
        "flash/process/test_worlds.py::test_every_world_loads_what_every_other_saved",
    ],
)
def test_a_run_goes_on_with_other_numbers_of_ranks(unbroken: Path, tmp_path: Path) -> None:
    """2 ranks, killed; 1, killed; 3 sharded ones to the end: the unbroken run's curve."""
    log, folder = tmp_path / "loss.jsonl", tmp_path / "checkpoints"
    run = (*RUN, f"--loss-log={log}", f"--checkpoint-dir={folder}")
    first = train(*run, "--crash-at=14:1", ranks=2)
    second = train(*run, "--crash-at=27:0", ranks=1)
    third = train(*run, "--parallel=fsdp2", ranks=3)
    assert first.code != 0
    assert second.code != 0
    assert third.code == 0, third.output
    assert "restored step 10\n" in second.output
    assert "restored step 20\n" in third.output
    assert_follows(log, unbroken)
    assert len(steps_in(log)) >= STEPS + 3 + 6, "steps after a checkpoint are done again"


@pytest.mark.extended(
    "another training of the example, or a test of the product, finds the same",
    held_by=[
        "flash/process/test_worlds.py::test_every_world_loads_what_every_other_saved",
        "flash/process/test_interrupted_save.py::test_a_save_that_is_broken_off_is_made_again",
    ],
)
def test_a_rank_killed_in_a_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    """With one rank's part in memory and not on storage, there is no new checkpoint."""
    folder = tmp_path / "checkpoints"
    run = ("--steps=6", "--batch=2", "--save-every=3", f"--checkpoint-dir={folder}")
    killed = train(*run, "--crash-in=checkpoint:0", ranks=2)
    assert killed.code != 0
    assert not (folder / "step_3").exists()
    again = train(*run)
    assert again.code == 0, again.output
    assert "restored" not in again.output
    assert sorted(path.name for path in folder.glob("step_*")) == ["step_3", "step_6"]


@pytest.mark.extended(
    "another training of the example, or a test of the product, finds the same",
    held_by=[
        "flash/process/test_checkpointer.py::test_a_damaged_newest_step_is_passed_over_with_a_warning",
    ],
)
def test_torn_checkpoints_are_skipped(unbroken: Path, tmp_path: Path) -> None:
    """A short file, then a file of the right length with other bytes: the next older one serves."""
    log, folder = tmp_path / "loss.jsonl", tmp_path / "checkpoints"
    run = (*RUN, f"--loss-log={log}", f"--checkpoint-dir={folder}")
    assert train(*run).code == 0
    assert sorted(path.name for path in folder.glob("step_*")) == ["step_20", "step_30", "step_40"]
    (newest,) = (folder / "step_40").glob("*.distcp")
    newest.write_bytes(newest.read_bytes()[:-1])
    one = train(*run)
    assert "step 40 was passed over" in one.output
    assert "restored step 30\n" in one.output
    for step in (20, 30, 40):
        (file,) = (folder / f"step_{step}").glob("*.distcp")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    two = train(*run)
    assert two.code == 0, two.output
    assert two.output.count("was passed over") == 3
    assert "restored" not in two.output
    assert_follows(log, unbroken)
    assert len(steps_in(log)) == 2 * STEPS + 10


@pytest.mark.extended(
    "another training of the example, or a test of the product, finds the same",
    held_by=[
        "flash/process/test_worlds.py::test_every_world_loads_what_every_other_saved",
    ],
)
def test_a_finished_run_only_validates(tmp_path: Path) -> None:
    """A restart after the last step trains nothing and gives the same validation loss."""
    run = ("--steps=5", "--batch=2", f"--checkpoint-dir={tmp_path}")
    first, second = train(*run), train(*run)
    assert "restored step 5\n" in second.output
    assert _validation(first) == _validation(second)


def test_asked_to_stop_it_saves_that_very_step(tmp_path: Path) -> None:
    """At SAVE_AND_STOP the script saves and ends with 0; the next world validates."""
    stop = (
        "import holdfast, runpy, sys\n"
        "def step(self, n, **_):\n"
        "    return holdfast.SAVE_AND_STOP if n == 3 else holdfast.CONTINUE\n"
        "holdfast.Job.step = step\n"
        "sys.argv = sys.argv[1:]\n"
        "sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    flags = ["--steps=9", "--batch=2", f"--checkpoint-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", stop, str(SCRIPT), *flags],
        check=False,
        capture_output=True,
        text=True,
        timeout=100 * patience(),
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_3"]
    assert "validation" not in done.stdout


def test_own_text_is_trained_on(tmp_path: Path) -> None:
    """--text names another file; its unigram entropy is the one that is printed."""
    file = tmp_path / "ab.txt"
    file.write_text("ab" * 2000)
    ended = train("--steps=60", "--batch=4", f"--text={file}")
    assert ended.code == 0, ended.output
    loss, entropy = _validation(ended)
    assert entropy == pytest.approx(0.693, abs=0.001)
    assert loss < 0.1


def test_a_raised_fault_ends_the_script_with_its_text() -> None:
    """--raise-at ends the script as any exception does."""
    raised = train("--steps=3", "--batch=2", "--raise-at=2")
    assert raised.code == 1
    assert "RuntimeError: fault on request in step 2" in raised.output


def _validation(ended: Ended) -> Sequence[float]:
    """Return validation loss and unigram entropy as printed, in nats per byte."""
    found = re.findall(r"(?:loss after|entropy of) .*: ([0-9.]+) nats/byte", ended.output)
    assert len(found) == 2, ended.output
    return [float(number) for number in found]
