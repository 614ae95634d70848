"""Ranks whose keepers meet in the directory alone: what one cannot do, the others hear."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from house import forks

pytestmark = [pytest.mark.train, pytest.mark.timeout(120)]

SCRIPT = """
import os, resource, sys, warnings
import torch, torch.distributed as dist
import holdfast
from holdfast.flash.trainer.client import CheckpointError

warnings.simplefilter("ignore")
rank, broken = int(os.environ["RANK"]), int(sys.argv[2])
dist.init_process_group("gloo", f"file://{sys.argv[3]}", rank=rank, world_size=2)
torch.manual_seed(0)  # a commit refuses ranks whose models differ
model = torch.nn.Linear(200, 200)
flash = holdfast.Checkpointer(sys.argv[1], model=model, per_rank={"own": torch.ones(9999) * rank})
flash.prepare()
keeper = flash._client._process.pid
limits = resource.prlimit(keeper, resource.RLIMIT_FSIZE)
if rank == broken:
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (20_000, limits[1]))
flash.save(1)
try:
    flash.wait(timeout_s=60)
except CheckpointError as error:
    print(f"rank {rank}: {error}", flush=True)
dist.barrier()
if rank == broken:
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, limits)
flash.save(2)
flash.wait(2, timeout_s=60)
print(f"rank {rank}: latest {flash.latest()}", flush=True)
flash.close()
"""


@pytest.mark.parametrize("broken", [0, 1])
def test_a_part_that_cannot_be_written_fails_the_step_for_all_ranks_at_once(
    tmp_path: Path, broken: int
) -> None:
    """Each rank's `wait` names the rank and the reason, and the next step is saved."""
    root, meeting = tmp_path / "ck", tmp_path / "meeting"
    command = ["-c", SCRIPT, str(root), str(broken), str(meeting)]
    told = forks.run_ranks(command, 2, env=os.environ, timeout=100)
    for rank, text in enumerate(told):
        assert "step 1" in text, told
        assert "File too large" in text, told
        assert f"rank {rank}: latest 2" in text, told
    assert f"rank {broken} could not write its part" in told[1 - broken]
    assert (root / "step_2").is_dir()
    assert not (root / "step_1").exists()
