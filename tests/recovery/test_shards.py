"""Shards that the master leases, in real jobs whose agents and masters are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.data.counting import count
from holdfast.data.record import files_of, lines_of
from holdfast.data.samples_report import is_once
from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]

SHARDS = 36
EPOCHS = 2

_TRAIN = f'''
    """Counts each record in a model's weights, which the checkpoint has: those of lost steps go."""
    import json, os, pathlib, sys, time
    import torch, torch.distributed as dist
    import holdfast
    from holdfast.data.shards import ShardReader
    from holdfast.flash.schedule import Schedule

    folder, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [5 + 7 * index % 13 for index in range({SHARDS})]
    first = [sum(sizes[:index]) for index in range({SHARDS})]

    def read(shard, start):
        """The numbers of the shard's records."""
        index = int(shard)
        yield from range(first[index] + start, first[index] + sizes[index])

    shards = ShardReader([str(i) for i in range({SHARDS})], read, epochs={EPOCHS}, seed=3,
                         record=folder / "samples")
    model = torch.nn.Module()
    model.register_parameter("counts", torch.nn.Parameter(torch.zeros(sum(sizes))))
    flash = holdfast.Checkpointer(folder / "checkpoints", model=model,
                                  schedule=Schedule(memory_every=1, storage_every=20),
                                  per_rank={{"shards": shards}})
    step = flash.load()
    (folder / f"start-{{os.getpid()}}").write_text(json.dumps([rank, world, step]))
    while True:
        seen = torch.zeros(sum(sizes) + 1)
        for _, record in zip(range(1 + rank), shards):  # unlike readers
            seen[record.value] += 1
            seen[-1] += 1
        dist.all_reduce(seen)
        if not seen[-1]:
            break
        step += 1
        time.sleep(pause)
        with torch.no_grad():
            model.counts += seen[:-1]
        shards.commit(step)
        if flash.step(step) is holdfast.SAVE_AND_STOP:
            flash.close()
            sys.exit()
    if rank == 0:
        (folder / "counts.new").write_text(json.dumps(model.counts.tolist()))
        os.replace(folder / "counts.new", folder / "counts")
    dist.barrier()
    flash.close()
'''


def start(start_job: StartJob, folder: Path, replicas: int, pause: float = 0.08) -> RunningJob:
    """Start a job that counts its records."""
    (folder / "train.py").write_text(textwrap.dedent(_TRAIN))
    script = [str(folder / "train.py"), str(folder), str(pause)]
    return start_job(script=script, replicas=replicas, minReplicas=1)


def starts(folder: Path) -> list[tuple[int, int, int]]:
    """Rank, size of the world and first step of each process, oldest first."""
    files = sorted(folder.glob("start-*"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text()) for file in files]


def agents(job: RunningJob) -> list[int]:
    """Return the pids of the agents that are there."""

    def there() -> list[int]:
        nodes = sorted(job.nodes().items())
        return [node.agent_pid for _, node in nodes if node.agent_pid]

    return job.wait_for("agents", there)


def assert_all_once(folder: Path) -> None:
    """Assert that each record is in the final weights once for each epoch, and on record so."""
    counts = json.loads((folder / "counts").read_text())
    wrong = {record: count for record, count in enumerate(counts) if count != EPOCHS}
    assert not wrong, f"records that are not there {EPOCHS} times: {wrong}; {starts(folder)}"
    counted = count(map(lines_of, files_of(folder / "samples")))
    assert is_once(counted), counted
    assert [(one.used, one.unfinished) for one in counted.epochs] == [(len(counts), ())] * EPOCHS


def test_each_record_is_read_once_though_agents_are_killed(
    start_job: StartJob, tmp_path: Path
) -> None:
    """At drawn instants, three times: worlds of other sizes go on from the step that was saved."""
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    luck = random.Random(seed)
    job = start(start_job, tmp_path, replicas=3)
    job.wait_step(3)
    for _ in range(3):
        time.sleep(luck.uniform(0.2, 1.2))
        number = job.status().round
        os.kill(luck.choice(agents(job)), signal.SIGKILL)
        job.wait_for("another round", lambda: job.status().round > number)  # noqa: B023
        job.wait_step(1, round_above=number)
    assert job.finish() == 0, f"seed {seed}\n{job.evidence()}"
    assert_all_once(tmp_path)
    began = starts(tmp_path)
    assert max(step for _, _, step in began) > 0, "some went on from a checkpoint"


def test_a_killed_master_leases_no_shard_twice(start_job: StartJob, tmp_path: Path) -> None:
    """Twice, at drawn instants: its successor has the journal, and no process begins again."""
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    luck = random.Random(seed)
    job = start(start_job, tmp_path, replicas=2)
    job.wait_step(3)
    for _ in range(2):
        time.sleep(luck.uniform(0.2, 1.0))
        endpoint, epoch = job.home.endpoint(), job.status().epoch
        assert endpoint is not None
        os.kill(endpoint.pid, signal.SIGKILL)
        job.wait_for("a new epoch", lambda: job.status().epoch > epoch)  # noqa: B023
    assert job.finish() == 0, f"seed {seed}\n{job.evidence()}"
    assert_all_once(tmp_path)
    assert len(starts(tmp_path)) == 2


_REPLICAS = f'''
    """Replicas in step that read shards: the mean of a step is over the records that are there."""
    import itertools, pathlib, sys, time
    import torch, torch.distributed as dist
    import holdfast
    from holdfast.data.shards import ShardReader
    from holdfast.replicas import Replicated, members_of_environment

    folder, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    job = holdfast.init()
    dist.init_process_group("gloo")

    def read(shard, start):
        """Numbers; each shard has another count of them."""
        yield from range(start, 5 + 7 * int(shard) % 13)

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    replicated = Replicated(model, optimizer, members_of_environment(), micro_batches=6,
                            on_loss="fewer")
    shards = ShardReader([str(i) for i in range({SHARDS})], read, epochs={EPOCHS}, seed=3,
                         record=folder / "samples", replicated=replicated)
    while True:
        for _ in replicated.dealt():
            records = [float(one.value) for one in itertools.islice(shards, 1)]
            replicated.weigh(len(records))
            if records:
                model(torch.tensor(records).unsqueeze(1)).sum().backward()
        if replicated.weight == 0:
            break
        optimizer.step()
        time.sleep(pause)
        shards.commit(replicated.steps)
        if job.step(replicated.steps) is holdfast.SAVE_AND_STOP:
            break
'''


def test_replicas_that_nobody_restarts_read_each_record_once(
    start_job: StartJob, tmp_path: Path
) -> None:
    """One is killed with its agent, then one alone: what is in no sum of the others, they read."""
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    luck = random.Random(seed)
    (tmp_path / "train.py").write_text(textwrap.dedent(_REPLICAS))
    job = start_job(
        script=[str(tmp_path / "train.py"), str(tmp_path), "0.08"],
        replicas=3,
        minReplicas=1,
        replicaPolicy={"nodesPerReplica": 1},
    )
    job.wait_for("three in step", lambda: len(job.status().outer_replicas) == 3)
    job.wait_step(3)
    for node in (1, 2):
        time.sleep(luck.uniform(0.2, 1.0))
        found = job.nodes()[node]
        os.kill(found.agent_pid if node == 1 else found.ranks[0].pid, signal.SIGKILL)
    assert job.finish() == 0, job.evidence()
    records = sum(5 + 7 * index % 13 for index in range(SHARDS))
    counted = count(map(lines_of, files_of(tmp_path / "samples")))
    assert is_once(counted), counted
    assert [(one.used, one.unfinished) for one in counted.epochs] == [(records, ())] * EPOCHS
