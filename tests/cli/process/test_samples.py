"""`holdfast samples` as a user calls it: the tool of the SDK counts, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from holdfast.data import QuotaRecord, QuotaSampler, SampleMap
from holdfast_cli.samples import samples
from house.patience import patience


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast_cli.main", "samples", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * patience(),
    )


def test_two_folders_of_one_training_are_counted_together(tmp_path: Path) -> None:
    """A second job goes on from a checkpoint of the first, whose last step it does anew."""
    made = SampleMap(samples=40, micro_batch=2, micro_batches=5)
    for folder, start, end in (("first", 0, 3), ("second", 2, 4)):
        record = QuotaRecord(tmp_path / folder, QuotaSampler(made, 0, 1, start=start))
        for step in range(start, end):
            record.commit(step + 1)
    folders = str(tmp_path / "first"), str(tmp_path / "second")
    both = run(*folders)
    assert both.returncode == 0, both.stderr
    assert both.stdout.startswith("4 steps; 1 more were done anew after a restart\n")
    assert both.stdout.splitlines()[2].split() == ["0", "40", "40", "0", "0", "0", "0"]
    alone = run(folders[0], "-o", "json")
    assert alone.returncode == 0, alone.stderr
    [epoch] = json.loads(alone.stdout)["epochs"]
    assert (epoch["used"], len(epoch["unused"])) == (30, 10)


def test_a_folder_is_asked_for() -> None:
    """Without one there is nothing to count."""
    result = CliRunner().invoke(samples, [])
    assert result.exit_code == 2
    assert "Missing argument 'FOLDER...'" in result.output
