"""The example of local SGD writes down and draws what it is for: loss against tokens and bytes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/with_local_sgd/plot_losses.py"


@pytest.mark.extended(
    "three trainings for one picture; the bytes and the curves have tests of their own",
    held_by=[
        "local_sgd/process/test_bytes.py::test_bytes_of_a_step_beside_ddp_in_fp32",
        "local_sgd/process/test_fsdp2_by_time.py::test_a_fast_replica_weighs_more_and_none_waits_for_the_slow_one_s_steps",
    ],
)
@pytest.mark.train
@pytest.mark.timeout(400)
def test_three_trainings_are_drawn_against_tokens_and_bytes(tmp_path: Path) -> None:
    """All ways see as many tokens; the rounds of EDiT and A-EDiT cost fewer bytes than DDP."""
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "--steps=36"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with (tmp_path / "losses.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ends = {
        way: [row for row in rows if row["way"] == way][-1] for way in ("ddp", "edit", "a-edit")
    }
    assert {row["tokens"] for row in ends.values()} == {str(36 * 2 * 8 * 64)}
    assert int(ends["edit"]["bytes"]) < 0.75 * int(ends["ddp"]["bytes"])
    assert int(ends["ddp"]["bytes"]) == 36 * 771_840
    assert all(float(row["loss"]) < 4 for row in ends.values())
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
