"""An agent is killed under `holdfast run`: its node's next agent has its checkpoints in memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast_cli.runner.processes import descendants
from house.extended import usual
from jobs.local_job import STEPS, RunningJob, StartJob, assert_same_curve, elastic_job, losses

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "the case between the two others",
    held_by=[
        "recovery/test_killed_agents.py::test_a_runner_that_is_killed_leaves_no_memory",
    ],
)

_TRAIN = '''
    """Fills a model with the number of the step; keeps it in memory only; says what it found."""
    import json, os, pathlib, sys, time
    import torch, torch.distributed as dist
    import holdfast
    from holdfast.flash.schedule import Schedule

    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), torch.nn.Linear(300, 200)
    flash = holdfast.Checkpointer(None, model=model, schedule=Schedule(storage_every=0))
    start = flash.load()
    value = float(model.weight.detach().double().mean()) if start else 0.0
    saved = [int(file.read_text()) for file in folder.glob("saved-?")]
    with (folder / "starts").open("a") as file:
        file.write(json.dumps([rank, start, value, min(saved, default=0)]) + "\\n")
    step = start
    while True:
        step += 1
        time.sleep(0.1)
        dist.barrier()
        with torch.no_grad():
            model.weight.fill_(step)
        before = flash.skipped
        answer = flash.step(step)
        if flash.skipped == before:  # the agent of a busy machine may have no free slot yet
            (folder / f"saved-{rank}.new").write_text(str(step))
            os.replace(folder / f"saved-{rank}.new", folder / f"saved-{rank}")
        if answer is holdfast.SAVE_AND_STOP or (folder / "enough").exists():
            break
    dist.barrier()
    flash.close()
'''


def _script(folder: Path) -> list[str]:
    (folder / "train.py").write_text(textwrap.dedent(_TRAIN))
    return [str(folder / "train.py"), str(folder)]


def _starts(folder: Path) -> list[list[Any]]:
    text = (folder / "starts").read_text() if (folder / "starts").exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _saved(folder: Path, ranks: int) -> int:
    files = [folder / f"saved-{rank}" for rank in range(ranks)]
    return min(int(file.read_text()) if file.exists() else 0 for file in files)


def _arenas(pids: list[int]) -> dict[int, set[int]]:
    """Return who holds each arena open or mapped, by its inode."""
    found: dict[int, set[int]] = {}
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:holdfast-arena" in str(entry.readlink()):
                    found.setdefault(entry.stat().st_ino, set()).add(pid)
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "memfd:holdfast-arena" in line:
                    found.setdefault(int(line.split()[4]), set()).add(pid)
        except OSError:
            continue
    return found


def _of(job: RunningJob) -> dict[int, set[int]]:
    return _arenas([job.process.pid, *descendants(job.process.pid)])


def _nothing_left(held: set[int]) -> bool:
    return not _arenas(psutil.pids()).keys() & held


def test_a_lone_agent_that_is_killed_comes_back_to_the_step_saved_last(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Twice: two ranks, nothing on storage, the same memory; and none at the job's end."""
    job = start_job(
        script=_script(tmp_path),
        replicas=1, minReplicas=1, flags=("--nproc-per-node=2",),
    )  # fmt: skip
    job.wait_for("ten steps", lambda: _saved(tmp_path, 2) >= 10)
    held = _of(job)
    assert len(held) == 2
    assert all(job.process.pid in pids for pids in held.values()), "the runner holds both"
    for number in (1, 2):
        os.kill(job.agent_pid(0), signal.SIGKILL)
        job.wait_for("both start again", lambda: len(_starts(tmp_path)) >= 2 + 2 * number)  # noqa: B023
        first, second = _starts(tmp_path)[-2:]
        assert {first[0], second[0]} == {0, 1}
        assert first[1:] == second[1:]
        assert first[1] == first[2], "the weights are those of the step"
        complete = first[3]
        assert complete >= 10 * number
        # A rank may have saved a step that it had no time to say.
        assert complete <= first[1] <= complete + 1
        job.wait_for("more steps", lambda: _saved(tmp_path, 2) >= complete + 10)  # noqa: B023
    texts = [event.text for event in job.events() if event.reason == "CheckpointRestored"]
    assert len(texts) == 2
    assert all("in memory" in text for text in texts)
    assert _of(job).keys() == held.keys(), "the memory that was there is used, and no other"
    (tmp_path / "enough").touch()
    assert job.finish() == 0, job.evidence()
    assert _nothing_left(set(held))


def _files_in_memory() -> set[Path]:
    """Return the files of arenas that lie in /dev/shm, which no process's end frees."""
    return {*Path("/dev", "shm").rglob("arena-*"), *Path("/dev", "shm").rglob("holdfast*")}


def _stop_all(pids: list[int]) -> None:
    """Stop every process, so that none of them sees another one's death and sweeps behind it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


@pytest.mark.exclusive  # it compares all shared memory of the machine
@pytest.mark.parametrize(
    "killed",
    usual(["runner", "runner and agent", "all at once"], "runner", "all at once", more=MORE),
)
def test_a_runner_that_is_killed_leaves_no_memory(
    killed: str, start_job: StartJob, tmp_path: Path
) -> None:
    """Nobody is left to sweep after the last case, and nothing is left to be swept."""
    before = _files_in_memory()
    job = start_job(script=_script(tmp_path), replicas=1, minReplicas=1)
    job.wait_for("three steps", lambda: _saved(tmp_path, 1) >= 3)
    held = set(_of(job))
    assert len(held) == 1
    below = descendants(job.process.pid)
    family = [psutil.Process(pid) for pid in below]
    others = {"runner": [], "runner and agent": [job.agent_pid(0)], "all at once": below}[killed]
    victims = [job.process.pid, *others]
    if killed == "all at once":
        _stop_all(victims)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    _, alive = psutil.wait_procs(family, 20)
    assert not alive
    assert _nothing_left(held)
    assert _files_in_memory() - before == set()


_STEPS = """
import pathlib, sys, time, os
while True:
    (pathlib.Path(sys.argv[1]) / f"lives-{os.getpid()}").touch()
    time.sleep(0.05)
"""


@pytest.fixture
def shell_job(tmp_path: Path) -> Iterator[RunningJob]:
    """A job whose agents have two shells above them, which wait for their end."""
    (tmp_path / "steps.py").write_text(_STEPS)
    job = elastic_job("shells", [], minReplicas=2, model=False)
    agent = f"holdfast-run {tmp_path}/steps.py {tmp_path}; true"
    (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", f"sh -c '{agent}'; true"]
    with RunningJob(job, tmp_path) as running:
        running.wait_for("both ranks", lambda: len(list(tmp_path.glob("lives-*"))) >= 2)
        yield running


def _ended(process: psutil.Process) -> bool:
    """Return whether the process runs no more. The runner reaps orphans only at its end."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _family(job: RunningJob) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in descendants(job.process.pid)]


def test_an_agent_below_a_shell_ends_with_the_runner(shell_job: RunningJob) -> None:
    """The runner's death kills the first shell alone; the agent would train for ever."""
    family = _family(shell_job)
    shell_job.process.kill()
    shell_job.process.wait()
    _, alive = psutil.wait_procs(family, 20)
    assert not alive, [one.cmdline() for one in alive]


def test_an_agent_below_a_shell_ends_with_that_shell(shell_job: RunningJob) -> None:
    """As in a container: it would train on beside the agent that is started in its place."""
    agent = psutil.Process(shell_job.agent_pid(0))
    below = [agent, *agent.children(recursive=True)]
    shell = psutil.Process(psutil.Process(agent.ppid()).ppid())
    assert shell.ppid() == shell_job.process.pid
    shell.kill()
    shell_job.wait_for("the end of all below it", lambda: all(map(_ended, below)))
    shell_job.wait_for("a new agent", lambda: shell_job.agent_pid(0) != agent.pid)


def test_a_sharded_world_that_waits_for_its_node_starts_from_memory(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """FSDP2 on two nodes that are both needed: half of the state was the killed agent's."""
    job = start_job("--parallel=fsdp2", "--save-every=100000", "--extra-work-ms=50", minReplicas=2)
    before = job.wait_step(20)
    assert before.stored_step == 0
    os.kill(job.agent_pid(1), signal.SIGKILL)
    job.wait_step(21, round_above=before.round)
    (text,) = [event.text for event in job.events() if event.reason == "CheckpointRestored"]
    found = re.search(r"starts from step (\d+) in memory", text)
    assert found is not None, text
    assert int(found[1]) >= before.step - 3
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


def test_a_node_that_is_scaled_away_leaves_no_memory(start_job: StartJob, tmp_path: Path) -> None:
    """Killed on its way: the runner lets go of what nobody will come back for."""
    job = start_job(script=_script(tmp_path), replicas=2, minReplicas=1)
    job.wait_for("three steps", lambda: _saved(tmp_path, 2) >= 3)
    before = job.status()
    held = _of(job)
    assert len(held) == 2
    agent = job.agent_pid(1)
    family = {agent, *descendants(agent)}
    gone = {inode for inode, pids in held.items() if pids & family}
    assert len(gone) == 1
    done = job.cli("scale", job.name, "1")
    assert done.returncode == 0, done.stderr
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGKILL)
    job.wait_for("the memory to go", lambda: not _of(job).keys() & gone)
    job.wait_for("a world of one", lambda: job.status().world_size == 1)
    assert job.status().round > before.round
    (tmp_path / "enough").touch()
    assert job.finish() == 0, job.evidence()
    assert _nothing_left(set(held))
