"""Scripts whose every number is the step that made it, for jobs that are killed at random.

Belongs here: the text of the scripts, for torch's own modules and for other frameworks. Does not
belong here: the kills (`whole_job_kills`).
"""

from __future__ import annotations

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
_END = """
own, count = Own(), Value()
flash = holdfast.Checkpointer(
    f"{args.folder}/checkpoints", **given,
    extra={"count": count}, per_rank={"own": own}, overlap=args.overlap,
    schedule=holdfast.Schedule(memory_every=1, storage_every=SAVE_EVERY),
)
start = flash.load()
seen = {float(x) for t in tensors() for x in t.unique()} if start else {0.0}
found = {"round": int(os.environ["HOLDFAST_ROUND"]), "rank": rank, "world": world,
         "start": start, "seen": sorted(seen), "count": count.value, "own": own.value}
with open(f"{args.folder}/starts.jsonl", "a") as log:
    log.write(json.dumps(found) + "\\n")
step = start
while True:
    step += 1
    time.sleep(0.005)
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
STATES = {
    "ddp": _TORCH,
    "fsdp2": _TORCH,
    "zero1": _DEEPSPEED,
    "zero2": _DEEPSPEED,
    "zero3": _DEEPSPEED,
}
"""By what `--parallel` says."""


def script(parallel: str, save_every: int) -> str:
    """Return the script of a rank; save_every: steps between saves to storage."""
    text = "\n\n".join(part.strip() for part in (_BEGIN, STATES[parallel], _END))
    return text.replace("SAVE_EVERY", str(save_every)) + "\n"
