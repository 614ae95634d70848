"""megatron-core 0.19's own `pretrain()` with the two lines: killed twice, it changes no bit."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from megatron_worlds.pretrain_jobs import Pretraining, python

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(1200)]
LONG: Final = pytest.mark.extended(
    "a minute or two each, and an environment of 5 GB; `make test-matrix` runs them too",
    held_by=[
        "integrations/megatron/test_drop_in.py::test_the_functions_take_the_arguments_of_megatron",
        "integrations/megatron/test_drop_in.py::test_a_job_goes_on_with_all_that_megatron_counts",
        "integrations/megatron/test_random_states.py::test_dropout_goes_on_as_if_nothing_had_happened",
    ],
)
STEPS: Final = 16
SAVES: Final = 3
KILLS: Final = (7, 11)
"""Iterations at which a rank is killed, and then all: neither is one that is saved."""
SECONDS: Final = 300.0
TENSOR, PIPELINE = "--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2"
SHARDED, OVERLAP = "--use-distributed-optimizer", "--overlap-grad-reduce"
GATHER: Final = "--overlap-param-gather"
LAYOUTS: Final = {
    "tensor": (2, [TENSOR]),
    "pipeline": (2, [PIPELINE, "--untie-embeddings-and-output-weights"]),
    "data": (2, [OVERLAP, "--bf16"]),
    "sharded": (2, [SHARDED, OVERLAP, GATHER]),
    "experts": (2, [SHARDED, "--num-experts=4", "--expert-model-parallel-size=2"]),
    "sequence": (4, [TENSOR, "--sequence-parallel", SHARDED, OVERLAP, "--bf16"]),
    "tensor-pipeline": (4, [TENSOR, PIPELINE]),
    "interleaved": (
        4,
        [PIPELINE, "--num-layers-per-virtual-pipeline-stage=1", SHARDED, OVERLAP, GATHER],
    ),
}
"""Name → ranks, arguments of Megatron."""


@pytest.fixture(scope="module", autouse=True)
def _training() -> None:
    """Skip where Megatron's training is not to be had."""
    found, reason = python()
    if not found:
        pytest.skip(reason)


def _ends(job: Pretraining, ranks: int) -> list[dict[str, Any]]:
    ends = [job.lines(rank)[-1] for rank in range(ranks)]
    return [{name: value for name, value in end.items() if name != "pid"} for end in ends]


def _steps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a rank's iterations as written, those that were done again too."""
    return [
        {name: value for name, value in line.items() if name != "pid"}
        for line in lines
        if "step" in line
    ]


@LONG
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_kills_change_no_bit(tmp_path: Path, layout: str) -> None:
    """A rank is killed, then agent and ranks: losses, norms and state are those of Megatron alone.

    The run beside it is not hurt, and has neither Holdfast's functions nor a checkpoint.
    """
    ranks, arguments = LAYOUTS[layout]
    seed = random.randrange(2**32)
    victim = random.Random(seed).randrange(ranks)
    steps = f"--train-iters={STEPS}"
    with Pretraining(tmp_path / "calm", ranks, arguments, steps) as calm:
        calm.finish(SECONDS)
    root, folder = tmp_path / "checkpoints", tmp_path / "hurt"
    folder.mkdir()
    for step in KILLS:
        (folder / f"gate_{step}").touch()
    own = [steps, "--drop-in", f"--save={root}", f"--load={root}", f"--save-interval={SAVES}"]
    with Pretraining(folder, ranks, arguments, *own) as hurt:
        pids = hurt.wait_for(KILLS[0], 1, SECONDS)
        os.kill(pids[victim], signal.SIGKILL)
        (folder / f"gate_{KILLS[0]}").unlink()
        hurt.wait_for(KILLS[1], 2, SECONDS)
        kept = KILLS[1] // SAVES * SAVES
        hurt.wait((root / f"step_{kept}" / ".metadata").exists, SECONDS)
        hurt.kill()
    (folder / f"gate_{KILLS[1]}").unlink()
    with Pretraining(folder, ranks, arguments, *own) as again:
        again.finish(SECONDS)
    for rank in range(ranks):
        told, wanted = again.lines(rank), _steps(calm.lines(rank))
        begun = [line["start"] for line in told if "start" in line]
        assert begun == [0, KILLS[0] // SAVES * SAVES, kept], f"seed {seed}, rank {rank}"
        done = _steps(told)
        assert {one["step"] for one in done} == set(range(1, STEPS + 1))
        for one in done:
            assert one == wanted[one["step"] - 1], f"seed {seed}, rank {rank}"
    assert _ends(again, ranks) == _ends(calm, ranks), f"seed {seed}"
