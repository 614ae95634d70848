"""Counts a million samples of real jobs whose size changes and whose processes are killed.

Run as a script (`--way`, `--data`, `--seed`); prints as JSON what it did, and what went wrong. A
job has 4, 3, 5, 2, then 6 workers. In each phase a process is killed at a drawn instant: an agent
with its ranks, or a rank; and after some the master, within a second. Each sample has to be used
once, by the ranks' records and, where the weights can tell, by the weights. One thing is allowed,
and counted: of shards under local SGD, a replica that is killed with its agent has some records of
its last steps read again. No master knows of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from campaigns.kill_records import record
from holdfast.data.counting import count
from holdfast.data.record import files_of, lines_of
from holdfast.data.samples_report import is_once
from jobs.local_job import RunningJob, elastic_job

SAMPLES: Final = 1_000_000
SIZES: Final = (4, 3, 5, 2, 6)
_STEPS: Final = 25
"""Of a phase, before its kill and after it."""
_MICRO_BATCH: Final = 250
_MICRO_BATCHES: Final = 8
_SHARDS: Final = 1000
_AGAIN: Final = 2000
"""Records that a killed agent may have had on their way: those of some steps of one replica."""
_MASTERS: Final = 0.4
"""Share of the kills that the master follows within a second."""
_LIMIT_SECONDS: Final = 900.0

_BEGIN = """
import itertools, json, os, pathlib, sys, time
import torch, torch.distributed as dist
import holdfast
from holdfast.flash.schedule import Schedule

folder, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
job = holdfast.init()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

def loss(ids):
    # Its gradient is minus the number of the samples, and minus the sum of their numbers.
    rows = torch.tensor([[1.0, float(one)] for one in ids], dtype=torch.float64).reshape(-1, 2)
    return -model(rows).sum()

def tell(factor):
    found = [value * factor for value in model.weight[0].tolist()]
    (folder / f"weights-{os.getpid()}").write_text(json.dumps(found))

class Done:
    step = 0
    def state_dict(self):
        return {"step": self.step}
    def load_state_dict(self, state):
        self.step = state["step"]

done = Done()
"""
_CHECKPOINTER = """
flash = holdfast.Checkpointer(folder / "checkpoints", model=model, extra={"done": done},
                              schedule=Schedule(memory_every=1, storage_every=50), PER_RANK)
"""
_SHARDED = f"""
from holdfast.data.shards import ShardReader

def read(shard, start):
    # Shards of unlike size: their mean is {SAMPLES // _SHARDS}.
    number = int(shard)
    unlike = number // 2 % 37 * (1 if number % 2 else -1)
    yield from range(start, {SAMPLES // _SHARDS} + unlike)

def reader(**more):
    return ShardReader([str(one) for one in range({_SHARDS})], read, seed=3,
                       record=folder / "samples", **more)
"""
_MAP_PLAIN = f"""
from holdfast.data import QuotaRecord, QuotaSampler, SampleMap

flash.load()
samples = SampleMap(samples={SAMPLES}, micro_batch={_MICRO_BATCH},
                    micro_batches={_MICRO_BATCHES}, seed=3)
sampler = QuotaSampler(samples, rank, world, start=done.step)
record, lists = QuotaRecord(folder / "samples", sampler), iter(sampler)
for step in range(done.step, sampler.end):
    optimizer.zero_grad()
    for ids in itertools.islice(lists, sampler.quota):
        loss(ids).backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    time.sleep(pause)
    done.step = step + 1
    record.commit(done.step)
    if flash.step(done.step) is holdfast.SAVE_AND_STOP:
        flash.close()
        sys.exit()
tell(1)
flash.close(done.step)
"""
_MAP_REPLICAS = f"""
from holdfast.data import Batches, BatchOptions
from holdfast.replicas import Replicated, members_of_environment

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return {SAMPLES}
    def __getitem__(self, number):
        return number

replicated = Replicated(model, optimizer, members_of_environment(), micro_batches={_MICRO_BATCHES})
flash.load()
batches = Batches(Numbers(), replicated, micro_batch={_MICRO_BATCH}, seed=3,
                  options=BatchOptions(record=folder / "samples"))
for step in batches.steps(done.step):
    for ids in step:
        loss(ids.tolist()).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(pause)
    done.step = step.number
    save = flash.step if replicated.saves else job.step
    if save(done.step) is holdfast.SAVE_AND_STOP:
        flash.close()
        sys.exit()
tell({_MICRO_BATCHES})
flash.close(done.step if replicated.saves else None)
"""
_SHARDS_PLAIN = f"""
flash.load()
while True:
    ids = [one.value for one in itertools.islice(shards, {2 * _MICRO_BATCH})]
    optimizer.zero_grad()
    loss(ids).backward()
    total = torch.cat([model.weight.grad[0], torch.tensor([len(ids)], dtype=torch.float64)])
    dist.all_reduce(total)
    if not total[2]:
        break
    model.weight.grad[0] = total[:2]
    optimizer.step()
    time.sleep(pause)
    done.step += 1
    shards.commit(done.step)
    if flash.step(done.step) is holdfast.SAVE_AND_STOP:
        flash.close()
        sys.exit()
tell(1)
flash.close(done.step)
"""
_SHARDS_REPLICAS = f"""
from holdfast.replicas import Replicated, members_of_environment

replicated = Replicated(model, optimizer, members_of_environment(), micro_batches={_MICRO_BATCHES},
                        on_loss="fewer")
shards = reader(replicated=replicated)
while True:
    for _ in replicated.dealt():
        ids = [one.value for one in itertools.islice(shards, {_MICRO_BATCH // 2})]
        replicated.weigh(len(ids))
        if ids:
            loss(ids).backward()
    if replicated.weight == 0:
        break
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(pause)
    shards.commit(replicated.steps)
    if job.step(replicated.steps) is holdfast.SAVE_AND_STOP:
        break
"""
_SHARDS_LOCAL = f"""
from torch.distributed.fsdp import fully_shard
from holdfast.local_sgd import LocalSGD, members_of_environment, mesh_of
from holdfast.local_sgd.config import LocalSGDConfig

members = members_of_environment()
fully_shard(model, mesh=mesh_of(members, "cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
config = LocalSGDConfig(local_sgd_sync_interval=4, local_sgd_warmup_steps=0)
local = LocalSGD(model, optimizer, members, config)
local.carry("done", done)
shards = reader()
while ids := [one.value for one in itertools.islice(shards, {_MICRO_BATCH})]:
    optimizer.zero_grad()
    (loss(ids) * 1e-9).backward()
    optimizer.step()
    time.sleep(pause)
    done.step += 1
    shards.commit(done.step)
    if job.step(done.step) is holdfast.SAVE_AND_STOP:
        break
local.finish()
"""
_BODIES: Final = {
    ("plain", "map"): _MAP_PLAIN,
    ("plain", "shards"): _SHARDS_PLAIN,
    ("replicas", "map"): _MAP_REPLICAS,
    ("replicas", "shards"): _SHARDS_REPLICAS,
    ("local SGD", "shards"): _SHARDS_LOCAL,
}


def script(way: str, data: str) -> str:
    """Return the text of a training script."""
    text = _BEGIN + (_SHARDED if data == "shards" else "")
    if (way, data) == ("plain", "shards"):
        text += "shards = reader()\n"
        text += _CHECKPOINTER.replace("PER_RANK", 'per_rank={"shards": shards}')
    elif data == "map":
        text += _CHECKPOINTER.replace("PER_RANK", "")
    return text + _BODIES[way, data]


class CountedJob:
    """One job that changes its size and is hurt."""

    def __init__(self, way: str, data: str, seed: int, pause: float) -> None:
        """Draw what befalls it; `pause`: of each step, s."""
        self._way, self._data, self._pause = way, data, pause
        self._luck = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.again = 0
        """Samples that were used a second time."""
        self.wrong: list[str] = []

    def run(self, folder: Path) -> None:
        """Have it from its first step to its end, and count."""
        file = folder / "train.py"
        file.write_text(script(self._way, self._data))
        replicas: dict[str, Any] = {}
        if self._way != "plain":
            replicas = {"replicaPolicy": {"nodesPerReplica": 1}}
        job = elastic_job(
            "counted",
            [str(file), str(folder), str(self._pause)],
            replicas=SIZES[0],
            minReplicas=1,
            maxReplicas=max(SIZES),
            failurePolicy={"budgets": {"failures": {"limit": 1000}}},
            **replicas,
        )
        with RunningJob(job, folder) as running:
            self._hurt(running)
            code = running.finish(_LIMIT_SECONDS)
            if code:
                self.wrong.append(f"exit code {code}: {running.evidence()}")
        self._judge(folder)

    def _hurt(self, job: RunningJob) -> None:
        for size in SIZES:
            if size != SIZES[0]:
                job.cli("scale", job.name, str(size)).check_returncode()
            self._until(job, f"{size} workers", lambda s: self._workers(job) == size)  # noqa: B023
            self._forward(job)
            time.sleep(self._luck.uniform(0.0, 1.0))
            self._kill(job)
            self._forward(job)

    def _workers(self, job: RunningJob) -> int:
        status = job.status()
        return status.world_size if self._way == "plain" else len(status.outer_replicas)

    def _forward(self, job: RunningJob) -> None:
        begun = job.status().step
        self._until(job, f"step {begun + _STEPS}", lambda s: s.step >= begun + _STEPS)

    def _until(self, job: RunningJob, what: str, true: Callable[[Any], bool]) -> None:
        job.wait_for(what, lambda: true(job.status()), _LIMIT_SECONDS)

    def _kill(self, job: RunningJob) -> None:
        ranked = [one for one in job.nodes().values() if one.ranks and one.ranks[0].pid]
        chosen = self._luck.choice(ranked)
        whole = self._luck.random() < 0.5
        os.kill(chosen.agent_pid if whole else chosen.ranks[0].pid, signal.SIGKILL)
        self.kills["agent" if whole else "rank"] += 1
        if self._luck.random() < _MASTERS:
            time.sleep(self._luck.uniform(0.0, 1.0))
            endpoint, epoch = job.home.endpoint(), job.status().epoch
            assert endpoint is not None
            os.kill(endpoint.pid, signal.SIGKILL)
            self.kills["master"] += 1
            self._until(job, "the next master", lambda s: s.epoch > epoch)

    def _judge(self, folder: Path) -> None:
        counted = count(map(lines_of, files_of(folder / "samples")))
        (epoch,) = counted.epochs
        self.again = epoch.used - SAMPLES
        whole = not (epoch.lost or epoch.unused or epoch.unfinished or counted.missing)
        repeats = self._data == "shards" and self._way == "local SGD"
        allowed = _AGAIN * self.kills["agent"] if repeats else 0
        if not whole or not 0 <= self.again <= allowed or (not allowed and not is_once(counted)):
            self.wrong.append(f"{self.again} again, {str(counted)[:2000]}")
        told = [json.loads(file.read_text()) for file in folder.glob("weights-*")]
        wanted = [float(SAMPLES), SAMPLES * (SAMPLES - 1) / 2]
        if self._data == "map" and (not told or any(one != wanted for one in told)):
            self.wrong.append(f"the weights say {told}, not {wanted}")
        if self._way == "plain" and (not told or any(one[0] != SAMPLES for one in told)):
            self.wrong.append(f"the weights say {told}, not {SAMPLES} samples")


def main() -> int:
    """Carry out a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=sorted({way for way, _ in _BODIES}), default="replicas")
    parser.add_argument("--data", choices=["map", "shards"], default="map")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.05, help="of a step, s")
    parser.add_argument("--keep", type=Path, help="folder for the job's files, which are kept")
    parser.add_argument("--record", default="", help="file to add a line of JSON to")
    given = parser.parse_args()
    if (given.way, given.data) not in _BODIES:
        parser.error(f"--way={given.way!r} has no --data={given.data}: replicas of local SGD have "
                     "no common step, so take shards")  # fmt: skip
    begun, job = time.monotonic(), CountedJob(given.way, given.data, given.seed, given.pause)
    with tempfile.TemporaryDirectory() as folder:
        job.run(given.keep or Path(folder))
    said = {
        "parallel": f"{given.way}, {given.data}",
        "seed": given.seed,
        "kills": job.kills,
        "resumed": {"samples": SAMPLES, "samples again": job.again},
        "seconds": round(time.monotonic() - begun, 1),
        "wrong": job.wrong,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    record(given.record, "each sample once", said)
    return bool(job.wrong)


if __name__ == "__main__":
    sys.exit(main())
