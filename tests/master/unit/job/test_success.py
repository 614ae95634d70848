"""A job that ends well keeps what only memory has, and says what no checkpoint has."""

from __future__ import annotations

from holdfast_wire.messages import CheckpointVersion, FlushToStorage, Leave, ShardsPersisted
from masters.checkpoint_words import Words
from simulation.steered.job import SteeredJob, training

V9 = CheckpointVersion(lineage=1, step=9)


def succeed(job: SteeredJob) -> None:
    """Let the script come to its end."""
    job.training.retarget(job.step(1) + 1)
    job.run(3.0)


def test_a_job_that_succeeds_has_its_newest_steps_written_too() -> None:
    """The script ended off its schedule: what is in memory is saved, what is nowhere is said."""
    job = training(2)
    words = Words(job)
    words.hold(V9)
    succeed(job)
    assert not words.told(Leave)
    for rank in (0, 1):
        words.write(rank, words.told(FlushToStorage, rank)[0])
    words.commit()
    job.run_until("SUCCEEDED")
    status = job.status
    assert status.stored_step == 9
    done = job.training.target
    [text] = words.events("StepsNotSaved")
    assert f"ended after step {done}" in text
    assert "on storage is step 9" in text


def test_a_success_whose_last_step_is_on_storage_ends_at_once() -> None:
    """Nothing is waited for, and nothing is said."""
    job = training(2)
    words = Words(job)
    last = CheckpointVersion(lineage=1, step=job.step(1) + 1)
    words.hold(last)
    for rank in (0, 1):
        part = ShardsPersisted(version=last, world_size=2, ranks=(rank,), root="/r", attempt="a")
        words.say(rank, part)
    words.commit()
    succeed(job)
    job.run_until("SUCCEEDED")
    assert not words.told(FlushToStorage)
    assert words.events("StepsNotSaved") == words.events("CheckpointNotRescued") == []


def test_a_success_does_not_wait_for_ever_for_memory() -> None:
    """A disk that hangs makes the success late and says what is lost; it remains a success."""
    job = training(2)
    words = Words(job)
    words.hold(V9)
    succeed(job)
    job.run_until("SUCCEEDED", limit=400.0)
    assert "step 9 was in memory and is lost" in words.events("CheckpointNotRescued")[0]
