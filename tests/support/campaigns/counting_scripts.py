"""Scripts whose every number is the step that made it, for jobs that are killed at random.

Belongs here: the text of the scripts, for torch's own modules and for other frameworks. Does not
belong here: the kills (`whole_job_kills`).
"""

from __future__ import annotations

from collections.abc import Sequence

_BEGIN = '''
"""Counts: every number of its state is the step; says what it has found after each restore."""
import argparse, json, os, time
import torch, torch.distributed as dist
import holdfast

parser = argparse.ArgumentParser()
parser.add_argument("--parallel", required=True)
parser.add_argument("--folder", required=True)
parser.add_argument("--device", default="cpu")
parser.add_argument("--overlap", action="store_true")
args = parser.parse_args()

class Value:
    """A value that is no tensor."""
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]

class Own(Value):
    """A value of each rank's own."""

    @staticmethod
    def reshard(states, rank, world):
        return {"value": [states[0]["value"][0], rank]}

def work(step):
    """Do what a step does before it is counted."""
    time.sleep(0.005)

def counts():
    """Return the framework's own numbers of steps."""
    return []
'''
_TORCH = """
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("cpu:gloo,cuda:gloo" if args.device == "cuda" else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
model.to(args.device)
if args.parallel == "fsdp2":
    fully_shard(model, mesh=dist.init_device_mesh(args.device, (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()  # so that there are moments

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

def tensors():
    for parameter in model.parameters():
        yield local(parameter.data)
        for moment in ("exp_avg", "exp_avg_sq"):
            yield local(optimizer.state[parameter][moment])

given = {"model": model, "optimizer": optimizer}
"""
_DEEPSPEED = """
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
from holdfast.flash.trainer.leaves import Leaves
from holdfast.integrations.deepspeed import EngineShards

torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
stage = int(args.parallel.removeprefix("zero"))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
engine = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.0),
    config={"train_micro_batch_size_per_gpu": 1, "steps_per_print": 10**9,
            "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}},
)[0]
engine.backward(engine(torch.zeros(1, 64, dtype=torch.bfloat16)).sum())
engine.step()  # so that there are moments
shards = EngineShards(engine)

def tensors():
    leaves = Leaves()
    shards.collect(leaves)
    for leaf in leaves.tensors:
        if leaf.name.startswith("model.") or ".exp_avg" in leaf.name:
            yield leaf.tensor

given = {"shards": shards}
"""
_MEGATRON = """
import logging
import megatron_worlds.preloaded  # the CPU in CUDA's place
from holdfast.flash.trainer.leaves import Leaves
from holdfast.integrations.megatron import MegatronShards
from holdfast.integrations.megatron.owned_ranges import owned
from megatron_worlds.gpt import Setup, build, step as train

logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
turn = int(os.environ["HOLDFAST_ROUND"]) // 2
tensor, pipeline = LAYOUTS[turn % len(LAYOUTS)]
tensor = min(tensor, world)
pipeline = min(pipeline, world // tensor)
training = build(
    Setup(tensor=tensor, pipeline=pipeline, precision="bf16", buckets=4000, gated=True, tied=True),
    seed=1 + turn,
)
shards = MegatronShards(training.chunks, training.optimizer, {"scheduler": training.scheduler})

def tensors():
    leaves = Leaves()
    shards.collect(leaves)
    for leaf in leaves.tensors:
        yield leaf.tensor  # masters and moments
    for chunk in training.chunks:
        for parameter in chunk.parameters():
            yield parameter.data

def work(step):
    train(training, step)

def counts():
    for inner in owned(training.optimizer).inner:
        yield from (float(state["step"]) for state in inner.state.values())
    yield training.scheduler.num_steps / 4  # samples

given = {"shards": shards}
"""
_END = """
own, count = Own(), Value()
flash = holdfast.Checkpointer(
    f"{args.folder}/checkpoints", **given,
    extra={"count": count}, per_rank={"own": own}, overlap=args.overlap,
    schedule=holdfast.Schedule(memory_every=1, storage_every=SAVE_EVERY),
)
start = flash.load()
seen = {0.0}
if start:
    # weights may be rounded masters: then the step is rounded alike
    seen = {
        float(start) if x == torch.tensor(float(start)).to(x) else float(x)
        for t in tensors() for x in t.unique()
    } | set(counts())
found = {"round": int(os.environ["HOLDFAST_ROUND"]), "rank": rank, "world": world,
         "start": start, "seen": sorted(seen), "count": count.value, "own": own.value}
with open(f"{args.folder}/starts.jsonl", "a") as log:
    log.write(json.dumps(found) + "\\n")
step = start
while True:
    step += 1
    work(step)
    mine = torch.tensor([float(step)], device=args.device)
    dist.all_reduce(mine)
    flash.join()  # what follows writes to parameters, and is no optimizer's step
    for tensor in tensors():
        tensor.fill_(step)
    count.value = step
    own.value = [step, rank]
    if flash.step(step, samples=1, loss=0.0) is holdfast.SAVE_AND_STOP:
        break
flash.close()
dist.destroy_process_group()
"""
LAYOUTS = ((2, 1), (1, 2), (2, 2), (1, 1))
"""Megatron's tensor and pipeline parallel ranks, at most; the rest of a world is data parallel."""
STATES = {
    "ddp": _TORCH,
    "fsdp2": _TORCH,
    "zero1": _DEEPSPEED,
    "zero2": _DEEPSPEED,
    "zero3": _DEEPSPEED,
    "megatron": _MEGATRON,
    "megatron-turns": _MEGATRON,
}
"""By what `--parallel` says."""


def script(parallel: str, save_every: int, layouts: Sequence[tuple[int, int]] = LAYOUTS) -> str:
    """Return the script of a rank.

    save_every: Steps between saves to storage. layouts: Megatron's in turn, each for two rounds, so
    that half of the starts cut the state anew.
    """
    text = "\n\n".join(part.strip() for part in (_BEGIN, STATES[parallel], _END))
    text = text.replace("SAVE_EVERY", str(save_every))
    return text.replace("LAYOUTS", repr(tuple(layouts))) + "\n"
