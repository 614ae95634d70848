"""The flash checkpoint of a whole job: what a world starts from after each kind of loss."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_wire.messages import JobStatus
from house.extended import usual
from jobs.local_job import ROOT, STEPS, RunningJob, StartJob, assert_same_curve, losses

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
KILLS = 5
CAMPAIGN = ROOT / "tests" / "support" / "campaigns" / "whole_job_kills.py"
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "recovery/test_checkpoints.py::test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left",
    ],
)
MEGATRON = pytest.mark.extended(
    "the same kills of ranks that save Megatron's shards, which have tests of their own",
    held_by=[
        "recovery/test_checkpoints.py::test_a_campaign_of_kills_loses_no_announcement_and_mixes_no_state",
        "flash/process/test_kills.py::test_kills_lose_no_announcement_and_mix_no_state",
    ],
)
CAMPAIGN_KILLS = 15
"""`make soak` does hundreds."""
MEGATRON_KILLS = 4
"""Each costs five seconds: two layouts of four ranks on two cores."""


def _starts(job: RunningJob) -> list[str]:
    return [event.text for event in job.events() if event.reason == "CheckpointRestored"]


def _step(text: str) -> int:
    """Return the step that `round 2 starts from step 40 in memory …` names."""
    return int(text.split("from step ")[1].split(maxsplit=1)[0])


@pytest.mark.parametrize("parallel", usual(["ddp", "fsdp2"], "fsdp2", more=MORE))
def test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path, parallel: str
) -> None:
    """A rank's crash, a save on request, a node's loss: half of a sharded state goes with it."""
    flags = f"--parallel={parallel}", "--save-every=100000", "--extra-work-ms=50"
    job = start_job(*flags, cold=True)
    state = _after_a_crash(job)
    asked = _on_request(job, state, tmp_path / "checkpoints")
    os.kill(job.agent_pid(1), signal.SIGKILL)
    after = job.wait_step(asked, round_above=state.round)
    assert after.world_size == 1
    text = _starts(job)[-1]
    assert ("in memory" if parallel == "ddp" else "in storage") in text
    assert _step(text) >= asked
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


def _after_a_crash(job: RunningJob) -> JobStatus:
    """Both nodes start from the newest step that both had, which is durable from then on."""
    before = job.wait_step(20)
    assert before.stored_step == 0
    os.kill(job.rank_pid(1), signal.SIGKILL)
    after = job.wait_step(21, round_above=before.round)
    (text,) = _starts(job)
    assert "in memory" in text
    assert _step(text) >= before.step - 3
    job.wait_for("what it started from on storage", lambda: job.status().stored_step == _step(text))
    return after


def _on_request(job: RunningJob, before: JobStatus, folder: Path) -> int:
    """All ranks save after the same step and go on: no round, nothing done again."""
    job.wait_for("the SDK in every rank", lambda: not job.status().degraded_progress)
    said = job.cli("checkpoint", job.name, "--reason", "an upgrade", "-o", "json")
    assert said.returncode == 0, said.stderr
    answer = json.loads(said.stdout)
    step: int = answer["step"]
    assert step > before.step
    assert Path(answer["path"]) == folder / f"step_{step}"
    assert (folder / f"step_{step}" / "holdfast.json").is_file()
    after = job.wait_step(step + 5)
    assert (after.round, after.stored_step) == (before.round, step)
    reasons = [event.reason for event in job.events()]
    assert reasons.count("CheckpointBarrierSet") == 1
    return step


@pytest.mark.extended(
    "five kills more, beside a campaign of them with the same promises",
    held_by=[
        "recovery/test_checkpoints.py::test_a_campaign_of_kills_loses_no_announcement_and_mixes_no_state",
        "recovery/test_checkpoints.py::test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left",
    ],
)
def test_kills_at_random_instants_lose_nothing_that_was_announced(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """Ranks, agents and the master; each world starts from what was durable, or from newer."""
    seed = int(os.environ.get("FLASH_SEED", random.randrange(2**32)))
    print(f"FLASH_SEED={seed}")
    rng = random.Random(seed)
    parallel = rng.choice(["ddp", "fsdp2"])
    job = start_job(f"--parallel={parallel}", "--extra-work-ms=100", "--save-every=5")
    state = job.wait_step(3)
    for number in range(KILLS):
        state = job.wait_step(state.step + rng.randrange(1, 8))
        victim = rng.choice(["rank 0", "rank 1", "agent 0", "agent 1", "master"])
        told = f"seed {seed}, kill {number}: {victim} at step {state.step}"
        announced, starts = state.stored_step, len(_starts(job))
        if victim == "master":
            endpoint = job.home.endpoint()
            assert endpoint is not None
            os.kill(endpoint.pid, signal.SIGKILL)
            job.wait_for("a new epoch", lambda: job.status().epoch > state.epoch)  # noqa: B023
            state = job.wait_step(state.step)
            assert state.stored_step >= announced, told
            continue
        kind, _, index = victim.partition(" ")
        pid = job.rank_pid(int(index)) if kind == "rank" else _agent_of(job, int(index))
        os.kill(pid, signal.SIGKILL)
        state = job.wait_step(1, round_above=state.round)
        begun = _starts(job)[starts:]
        assert begun, told
        assert min(map(_step, begun)) >= announced, f"{told}: {begun}"
    assert job.finish() == 0, f"seed {seed}\n{job.evidence()}"
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()} - {"owners"}
    assert all(name.removeprefix("step_").isdecimal() for name in left), f"seed {seed}: {left}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("flags", "kills"),
    [
        ((), CAMPAIGN_KILLS),
        pytest.param(("--parallel=megatron-turns",), MEGATRON_KILLS, marks=MEGATRON),
    ],
)
def test_a_campaign_of_kills_loses_no_announcement_and_mixes_no_state(
    flags: tuple[str, ...], kills: int
) -> None:
    """Every number that a rank restores is of one step, and of none older than announced."""
    seed = int(os.environ.get("FLASH_SEED", random.randrange(2**32)))
    done = subprocess.run(
        [sys.executable, CAMPAIGN, "--seed", str(seed), "--kills", str(kills), *flags],
        env={**os.environ, "PYTHONPATH": str(CAMPAIGN.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), f"seed {seed}: {done.stderr}"
    said = json.loads(done.stdout)
    assert said["wrong"] == [], f"seed {seed}"
    assert sum(said["kills"].values()) == kills
    # From storage only where a killed agent's successor came later than the world went on: chance.
    assert said["resumed"].get("memory", 0) > 0, f"seed {seed}: {said}"


def _agent_of(job: RunningJob, number: int) -> int:
    """Return the pid of one of the agents that are there."""
    nodes = sorted(job.wait_for("an agent", job.nodes).values(), key=lambda node: node.node_rank)
    there = [node.agent_pid for node in nodes if node.agent_pid]
    return there[number % len(there)]


def test_a_second_job_in_the_same_directory_takes_it_and_the_first_is_told(
    start_job: StartJob, tmp_path: Path
) -> None:
    """It goes on where the first one is; what the first saves from then on is refused by name."""
    first = start_job("--extra-work-ms=100", "--save-every=5", replicas=1)
    first.wait_for("a step on storage", lambda: first.status().stored_step)
    second = start_job("--extra-work-ms=100", "--save-every=5", replicas=1)
    begun = second.wait_for("a step of the second", lambda: second.status().stored_step)
    assert _step(_starts(second)[0]) >= 5
    text = first.wait_for("the first to be told", lambda: _not_saved(first))
    assert f"belongs to job {second.status().uid}, which began to save there after" in text
    assert second.wait_step(begun + 10).stored_step >= begun
    assert not _not_saved(second)
    for job in (first, second):
        job.cli("stop", job.name)
        job.finish()


def _not_saved(job: RunningJob) -> str:
    """Return why the first step that was not committed was not."""
    failed = [event.text for event in job.events() if event.reason == "CheckpointFailed"]
    return next((text for text in failed if "belongs to job" in text), "")
