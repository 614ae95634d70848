"""Steps between checkpoints under real ranks: the master sets them, and all ranks follow."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from holdfast_wire.messages import Tier
from jobs.local_job import STEPS, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]


@pytest.mark.extended(
    "one real job: the agreement on steps is tested by itself",
    held_by=[
        "flash/unit/test_interval_change.py::test_a_rank_follows_what_all_ranks_may_know",
        "master/unit/job/test_save_intervals.py::test_all_ranks_are_told_one_schedule_and_then_that_all_know_it",
        "master/unit/job/test_save_intervals.py::test_a_rank_that_had_passed_the_step_makes_it_a_later_one",
    ],
)
def test_the_interval_changes_in_the_run_and_all_ranks_save_the_same_steps(
    start_job: StartJob,
) -> None:
    """After a change two nodes have in memory what the new interval asks for, and start from it."""
    job = start_job("--save-every=auto", "--extra-work-ms=20", steps=1_000_000)
    job.wait_step(5)
    begun = {one.tier: one.every for one in job.status().checkpoint_intervals}
    assert begun == {Tier.MEMORY: 1, Tier.STORAGE: 100}
    told = job.wait_event("CheckpointScheduled")
    found = re.search(r"from step (\d+) on memory: every (\d+) steps \((.*?)\); storage", told.text)
    assert found, told.text
    first, every = int(found[1]), int(found[2])
    assert every > 1
    assert "a save stops training for" in found[3]
    assert "assumed; none has been charged yet" in found[3]
    due = (first // every + 1) * every
    # One more step may be on its way to the master, and so may what a node has of it.
    before = job.wait_step(due + 5)
    os.kill(job.rank_pid(1), signal.SIGKILL)
    after = job.wait_step(1, round_above=before.round)
    (text,) = [one.text for one in job.events() if one.reason == "CheckpointRestored"]
    assert "in memory" in text
    step = int(text.split("from step ")[1].split(maxsplit=1)[0])
    assert step >= due
    assert step % every == 0, f"{text}; every {every} from {first} on"
    shown = job.wait_for("ranks that follow", lambda: job.status().checkpoint_intervals)
    assert after.round > before.round
    assert shown[0].every == every, "ranks made anew begin with what held"
    assert "Memory:      saved every" in job.cli("status", job.name).stdout
    assert job.cli("stop", job.name).returncode == 0


@pytest.mark.extended(
    "the numbers reach the ranks as a schedule that changes does",
    held_by=[
        "master/unit/job/test_save_intervals.py::test_all_ranks_are_told_one_schedule_and_then_that_all_know_it",
        "flash/process/test_checkpointer.py::test_steps_follow_the_schedule_and_the_newest_stay",
        "master/unit/job/test_save_intervals.py::test_the_spec_s_numbers_hold_from_the_start_and_when_they_change",
    ],
)
def test_a_number_in_the_job_s_file_is_kept_to(start_job: StartJob, tmp_path: Path) -> None:
    """Every rank saves to storage by it, from the first step on, and as many stay as it says."""
    kept = {"keepLast": 2, "keepEverySteps": 35}
    tiers = {"memory": {"interval": 2}, "storage": {"interval": 7, **kept}}
    job = start_job("--save-every=auto", "--extra-work-ms=10", checkpoint=tiers)
    job.wait_step(20)
    intervals = job.status().checkpoint_intervals
    assert [(one.tier, one.every) for one in intervals] == [(Tier.MEMORY, 2), (Tier.STORAGE, 7)]
    assert job.finish() == 0, job.evidence()
    paths = (tmp_path / "checkpoints").glob("step_*")
    there = {int(path.name.removeprefix("step_")) for path in paths}
    assert there == {35, 70, 105, 119, STEPS}
