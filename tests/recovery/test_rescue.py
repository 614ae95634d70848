"""Steps that only memory has are on storage before the job ends, or its nodes go apart."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.reader import verify
from holdfast_wire import channel, keys
from holdfast_wire.messages import JobPhase, MasterSpec, StopRequest
from house.extended import usual
from jobs.local_job import STEPS, RunningJob, StartJob, assert_same_curve, event_times, losses
from masters.scripted_operator import ScriptedOperator
from masters.worlds import spec_of

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "recovery/test_rescue.py::test_a_job_that_fails_leaves_its_newest_step_on_storage",
    ],
)
ONLY_MEMORY = "--save-every=100000"
NO_FAILURE = {"budgets": {"failures": {"limit": 0}}}
ENDLESS = 1_000_000
"""Steps of a job that ends by its failure, or with the test."""


def _steps(folder: Path) -> list[int]:
    """Return what is committed; anything else in the directory is a fault."""
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def _tensors(step: Path) -> Mapping[str, torch.Tensor]:
    """Return every tensor of a checkpoint, read by torch alone."""
    metadata = dcp.FileSystemReader(step).read_metadata()
    target = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    loaded: dict[str, Any] = dict(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch tells that it reads alone
        dcp.load(loaded, checkpoint_id=step, no_dist=True)
    return target


@pytest.mark.parametrize("parallel", usual(["ddp", "fsdp2"], "fsdp2", more=MORE))
def test_a_job_that_fails_leaves_its_newest_step_on_storage(
    start_job: StartJob, tmp_path: Path, parallel: str
) -> None:
    """No budget for a failure: what all ranks had in memory is committed, bit for bit."""
    folder = tmp_path / "checkpoints"
    job = start_job(
        f"--parallel={parallel}", ONLY_MEMORY, "--extra-work-ms=20",
        steps=ENDLESS, failurePolicy=NO_FAILURE,
    )  # fmt: skip
    before = job.wait_step(30)
    assert before.stored_step == 0
    assert before.memory_step > 0
    os.kill(job.rank_pid(1), signal.SIGKILL)
    assert job.finish() == 1, job.evidence()
    assert "FailureBudgetExhausted" in job.output
    (step,) = _steps(folder)
    assert step >= before.step - 3, job.evidence()
    assert event_times(job.output, "CheckpointRescued"), job.evidence()
    found = folder / f"step_{step}"
    assert verify(Disk(), str(found)).version.step == step
    unbroken = tmp_path / "unbroken"
    again = start_job(
        f"--parallel={parallel}",
        f"--save-every={step}",
        f"--checkpoint-dir={unbroken}",
        steps=ENDLESS,  # the learning rate follows from it
        checkpoint={"storage": {"keepLast": 100}},  # it trains on while the step is read
    )
    again.wait_for("the same step", (unbroken / f"step_{step}").exists)
    kept, wanted = _tensors(found), _tensors(unbroken / f"step_{step}")
    assert kept.keys() == wanted.keys()
    assert kept
    different = [name for name, tensor in kept.items() if not tensor.equal(wanted[name])]
    assert different == []


def test_a_world_of_one_node_that_fails_leaves_its_newest_step_on_storage(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Its keeper alone sees what is complete: the master has it written all the same."""
    job = start_job(
        ONLY_MEMORY, "--extra-work-ms=20",
        steps=ENDLESS, replicas=1, minReplicas=1, failurePolicy=NO_FAILURE,
    )  # fmt: skip
    before = job.wait_step(30)
    os.kill(job.rank_pid(0), signal.SIGKILL)
    assert job.finish() == 1, job.evidence()
    (step,) = _steps(tmp_path / "checkpoints")
    assert step >= before.step - 3, job.evidence()


@pytest.mark.extended(
    "the same restore as after a kill",
    held_by=[
        "recovery/test_checkpoints.py::test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left",
    ],
)
def test_a_world_that_shrinks_without_a_barrier_starts_from_the_newest_step_of_memory(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """A rank dies while all are to save and stop: both agents still have what was complete."""
    job = start_job("--parallel=fsdp2", ONLY_MEMORY, "--extra-work-ms=100")
    before = job.wait_step(30)
    victim = job.rank_pid(1)
    os.kill(victim, signal.SIGSTOP)
    done = job.cli("drain", job.name, "1")
    assert done.returncode == 0, done.stderr
    job.wait_event("BarrierSet")
    os.kill(victim, signal.SIGKILL)
    after = job.wait_step(31, round_above=before.round)
    assert after.world_size == 1
    [start] = [event.text for event in job.events() if event.reason == "CheckpointRestored"]
    found = re.search(r"starts from step (\d+) in storage", start)
    assert found, start
    assert int(found[1]) >= before.step - 3
    reasons = [event.reason for event in job.events()]
    assert reasons.count("CheckpointRescued") == 1
    assert "CheckpointNotRescued" not in reasons
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


WITHOUT_CLOSE = """
import sys, time
import torch, holdfast
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
every = holdfast.Schedule(memory_every=7, storage_every=100_000)
flash = holdfast.Checkpointer(sys.argv[1], model=model, optimizer=optimizer, schedule=every)
flash.prepare()
for step in range(flash.load(), 30):
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    flash.step(step + 1)
"""


def test_a_run_that_ends_well_without_close_leaves_what_memory_has_on_storage(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Step 28 was in memory alone when it ended after 30: it is saved, and the rest is named."""
    script = tmp_path / "without_close.py"
    script.write_text(WITHOUT_CLOSE)
    job = start_job(script=[str(script), str(tmp_path / "checkpoints")])
    assert job.finish() == 0, job.evidence()
    assert _steps(tmp_path / "checkpoints") == [28], job.evidence()
    assert verify(Disk(), str(tmp_path / "checkpoints" / "step_28")).version.step == 28
    assert "StepsNotSaved" in job.output
    assert "ended after step 30" in job.output


@contextlib.contextmanager
def _as_operator(job: RunningJob) -> Iterator[ScriptedOperator]:
    """Speak to the job's master as an operator in a cluster does, until the runner is back."""
    where = job.home.endpoint()
    assert where is not None
    credentials = channel.channel_credentials(job.home.tls(keys.ROLE_OPERATOR))
    options = channel.master_channel_options(job.home.record().uid)
    with grpc.secure_channel(f"{where.host}:{where.port}", credentials, options=options) as made:
        operator = ScriptedOperator(made)
        try:
            yield operator
        finally:
            operator.close()


@pytest.mark.parametrize(
    ("word", "then"),
    [
        (
            spec_of(generation=1000, replicas=2, suspend=True),
            JobPhase.SUSPENDED,
        ),
        (StopRequest(reason="the job is being deleted", grace_seconds=60.0), JobPhase.FAILED),
    ],
    ids=["suspend", "delete"],
)
def test_a_job_that_is_suspended_or_deleted_is_on_storage_first(
    start_job: StartJob, tmp_path: Path, word: MasterSpec | StopRequest, then: JobPhase
) -> None:
    """Its schedule would never save to storage: the step at which it stops is committed whole."""
    job = start_job(ONLY_MEMORY, "--extra-work-ms=20", steps=1_000_000)
    before = job.wait_step(20)
    assert before.stored_step == 0
    with _as_operator(job) as operator:
        if isinstance(word, StopRequest):  # only after a spec; one that is known says nothing
            operator.send(spec_of(generation=1))
        operator.send(word)
        if then is JobPhase.SUSPENDED:
            job.wait_for("it is suspended", lambda: job.status().phase is then)
        else:
            assert job.finish() == 1, f"{operator.error}: {job.evidence()}"
    (step,) = _steps(tmp_path / "checkpoints")
    found = tmp_path / "checkpoints" / f"step_{step}"
    assert (found / "holdfast.json").is_file()
    assert verify(Disk(), str(found)).version.step == step
    assert step >= before.step, job.evidence()
