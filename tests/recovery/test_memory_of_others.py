"""Worlds of other nodes start from what the nodes have in memory together, without storage."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from house.extended import usual
from jobs.local_job import STEPS, RunningJob, StartJob, assert_same_curve, losses

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "recovery/test_memory_of_others.py::test_a_newcomer_reads_what_it_needs_from_the_memory_of_the_others",
        "recovery/test_memory_of_others.py::test_a_newcomer_reads_what_it_needs_from_the_memory_of_the_others",
    ],
)
ONLY_MEMORY = "--save-every=100000"


def _starts(job: RunningJob) -> list[tuple[int, str]]:
    """Return the step and the tier that each round started from."""
    texts = [event.text for event in job.events() if event.reason == "CheckpointRestored"]
    found = [re.search(r"starts from step (\d+) in (.*)", text) for text in texts]
    return [(int(one[1]), one[2]) for one in found if one is not None]


@pytest.mark.extended(
    "a smaller case of the same reads",
    held_by=[
        "recovery/test_memory_of_others.py::test_a_newcomer_reads_what_it_needs_from_the_memory_of_the_others",
        "recovery/test_checkpoints.py::test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left",
    ],
)
def test_a_survivor_with_the_whole_state_goes_on_when_a_node_is_lost(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """DDP: nothing is on storage, and nothing is done again but what was not yet in memory."""
    job = start_job(ONLY_MEMORY, "--extra-work-ms=50")
    before = job.wait_step(30)
    assert before.stored_step == 0
    os.killpg(job.agent_pid(1), signal.SIGKILL)
    job.wait_step(31, round_above=before.round)
    (step, tier), *_ = _starts(job)
    assert step >= before.step - 3
    assert tier.startswith("memory (the newest that the node has is in its memory")
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


@pytest.mark.parametrize("parallel", usual(["ddp", "fsdp2"], "fsdp2", more=MORE))
def test_a_newcomer_reads_what_it_needs_from_the_memory_of_the_others(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path, parallel: str
) -> None:
    """2 -> 3 nodes: all of it from one of them, or its rows from each; storage is not read."""
    job = start_job(f"--parallel={parallel}", ONLY_MEMORY, "--extra-work-ms=100", maxReplicas=3)
    before = job.wait_step(15)
    done = job.cli("scale", job.name, "3")
    assert done.returncode == 0, done.stderr
    after = job.wait_step(before.step, round_above=before.round)
    assert after.world_size == 3
    [(step, tier)] = _starts(job)
    assert step >= before.step
    assert tier.startswith("memory (the newest that all nodes have is in the memory of all nodes")
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    assert "RolledBack" not in job.output
