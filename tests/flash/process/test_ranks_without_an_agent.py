"""Ranks whose keepers meet in the directory alone: what one cannot do, the others hear."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.forked_ranks import World, run

pytestmark = [pytest.mark.train, pytest.mark.timeout(200)]

SCRIPT = """
import resource, warnings
import torch, torch.distributed as dist
import holdfast
from holdfast.flash.trainer.client import CheckpointError

warnings.simplefilter("ignore")


def parts(rank, world, root, broken):
    torch.manual_seed(0)  # a commit refuses ranks whose models differ
    model, own = torch.nn.Linear(200, 200), {"own": torch.ones(9999) * rank}
    flash = holdfast.Checkpointer(root, model=model, per_rank=own)
    flash.prepare()
    keeper = flash._client._process.pid
    limits = resource.prlimit(keeper, resource.RLIMIT_FSIZE)
    if rank == broken:
        resource.prlimit(keeper, resource.RLIMIT_FSIZE, (20_000, limits[1]))
    flash.save(1)
    try:
        flash.wait(timeout_s=60)
    except CheckpointError as error:
        print(error)
    dist.barrier()
    if rank == broken:
        resource.prlimit(keeper, resource.RLIMIT_FSIZE, limits)
    flash.save(2)
    flash.wait(2, timeout_s=60)
    print(f"latest {flash.latest()}")
    flash.close()
"""


@pytest.mark.parametrize("broken", [0, 1])
def test_a_part_that_cannot_be_written_fails_the_step_for_all_ranks_at_once(
    tmp_path: Path, broken: int
) -> None:
    """Each rank's `wait` names the rank and the reason, and the next step is saved."""
    root = tmp_path / "ck"
    (told,) = run(tmp_path, SCRIPT, [World("parts", 2, {"root": str(root), "broken": broken})])
    for text in told:
        assert "step 1" in text, told
        assert "File too large" in text, told
        assert "latest 2" in text, told
    assert f"rank {broken} could not write its part" in told[1 - broken]
    assert (root / "step_2").is_dir()
    assert not (root / "step_1").exists()
