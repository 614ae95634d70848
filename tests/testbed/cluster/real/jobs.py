"""A job for real nodes: the product's image, torch from the checkout, checkpoints in memory."""

from __future__ import annotations

import dataclasses
import sysconfig
import textwrap
from pathlib import Path
from typing import Any, Final

from cluster.jobs import Job, manifest
from cluster.real.images import SITE, training_image

STEPS: Final = "/steps"
"""Where pods write when they made which step: a folder of this machine."""
SCRIPT: Final = "train.py"
_CONFIG: Final = "script"
_TRAIN: Final = '''
    """Fits a line of noise on gloo; says in files when it has made which step."""
    import os, pathlib, time

    instants = [time.time()]
    import holdfast

    holdfast.init()
    instants.append(time.time())

    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = int(os.environ.get("WIDTH", "256"))
    model = DistributedDataParallel(torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    instants.append(time.time())
    flash = holdfast.Checkpointer(None, model=model, optimizer=optimizer)
    rank, world, folder = dist.get_rank(), dist.get_world_size(), pathlib.Path("/steps")
    begun = flash.load()
    instants.append(time.time())
    print(f"rank {rank} of {world} begins after step {begun}", flush=True)
    log = (folder / f"rank-{rank}").open("a", buffering=1)
    with (folder / f"starts-{rank}").open("a") as starts:
        starts.write(" ".join([os.environ["HOLDFAST_ROUND"], *map(str, instants)]) + "\\n")
    for step in range(begun + 1, int(os.environ.get("STEPS", "1000000")) + 1):
        time.sleep(0.05)
        loss = (model(torch.randn(4, width)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = torch.tensor([(folder / "end").exists()], dtype=torch.int)
        dist.all_reduce(end, dist.ReduceOp.MAX)
        if step == int(os.environ.get("EAT_AT", "0")) and rank and not (folder / "eaten").exists():
            (folder / "eaten").touch()
            eaten = [bytearray(os.urandom(1 << 20)) for _ in range(1 << 20)]
        log.write(f"{time.time():.3f} {step} {world} {os.environ['HOLDFAST_ROUND']} {begun}\\n")
        if flash.step(step, samples=4, loss=loss.item()) is holdfast.SAVE_AND_STOP or end:
            break
    flash.close()
    dist.destroy_process_group()
'''


def script() -> dict[str, Any]:
    """Return the ConfigMap with the script."""
    data = {SCRIPT: textwrap.dedent(_TRAIN).lstrip()}
    metadata = {"name": _CONFIG}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def real_job(folder: Path, memory: str = "2Gi", **spec: Any) -> dict[str, Any]:
    """A job of two workers that obeys the Pod Security standard but for its two folders."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    body = manifest("holdfast-run", "--nproc-per-node=1", f"/train/{SCRIPT}", **spec)
    body["spec"] |= {"replicas": 2, "minReplicas": 1}
    pod = body["spec"]["worker"]["template"]["spec"]
    pod["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    pod["volumes"] = [
        {"name": "script", "configMap": {"name": _CONFIG}},
        {"name": "torch", "hostPath": {"path": sysconfig.get_path("purelib"), "type": "Directory"}},
        {"name": "steps", "hostPath": {"path": str(folder), "type": "Directory"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    pod["containers"][0] |= {
        "env": [],  # its agents import what ranks need, as a user's do
        "image": training_image(),
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": memory}},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "script", "mountPath": "/train"},
            {"name": "torch", "mountPath": SITE, "readOnly": True},
            {"name": "steps", "mountPath": STEPS},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }
    return body


@dataclasses.dataclass(frozen=True, slots=True)
class RealStep:
    """One step of one rank."""

    at: float
    """Unix time."""
    number: int
    world: int
    round: int
    begun: int
    """The step that its round went on from; 0: from the start."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankStart:
    """How one rank started; Unix times."""

    round: int
    script: float
    """The script's first line ran."""
    joined: float
    """`holdfast.init()` was done."""
    model: float
    """torch was imported, and the model was made."""
    loaded: float
    """The checkpoint was loaded."""


def starts(folder: Path, round_: int) -> list[RankStart]:
    """Return how the ranks of a round started."""
    lines = [line for file in folder.glob("starts-*") for line in file.read_text().splitlines()]
    found = [RankStart(int(one[0]), *map(float, one[1:])) for one in map(str.split, lines)]
    return [one for one in found if one.round == round_]


def steps(folder: Path) -> list[RealStep]:
    """Return all steps that were made, by time."""
    lines = [line for file in folder.glob("rank-*") for line in file.read_text().splitlines()]
    words = [line.split() for line in lines]
    found = [RealStep(float(one[0]), *map(int, one[1:])) for one in words if len(one) == 5]
    return sorted(found, key=lambda one: one.at)


def later_steps(folder: Path, since: float, world: int = 0) -> list[RealStep]:
    """Return the steps of rounds that began after a moment, in worlds of a size; 0: of any."""
    made = steps(folder)
    before = max((one.round for one in made if one.at <= since), default=-1)
    return [one for one in made if one.round > before and world in {0, one.world}]


def next_step(job: Job, folder: Path, since: float, world: int = 0) -> RealStep:
    """Wait for the first step of a round that began after a moment."""
    what = f"a step in a world of {world or 'any size'}"
    job.until(what, lambda: bool(later_steps(folder, since, world)))
    return later_steps(folder, since, world)[0]
