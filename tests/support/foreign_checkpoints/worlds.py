"""Checkpoints that the real frameworks write: a process imports one, then forks its worlds.

Run as a script: `worlds.py FOLDER`, with the framework and its worlds as JSON on standard input.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parents[1]
_SECONDS = 100


def run(folder: Path, framework: str, worlds: Sequence[dict[str, Any]]) -> None:
    """Run worlds of a framework one after another; fails when a rank fails.

    framework: "deepspeed", "megatron" or "torch_checkpointing".
    worlds: "run", a function of the framework's module here, "ranks", and its arguments.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(folder)],
        input=json.dumps({"framework": framework, "worlds": list(worlds)}),
        text=True,
        capture_output=True,
        check=False,
        timeout=_SECONDS * len(worlds),
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def _rank(store: str, rank: int, module: Any, world: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    ranks = world.pop("ranks")
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # frameworks ask for it; the group is made of a file
        "LOCAL_SIZE": "0",  # DeepSpeed's shared memory has one name for all worlds of a machine
    }
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        getattr(module, world.pop("run"))(**world)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - told to the process that waits
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    """Fork the worlds that standard input names."""
    asked = json.load(sys.stdin)
    module = importlib.import_module(f"foreign_checkpoints.{asked['framework']}_files")
    module.prepare()
    context = multiprocessing.get_context("fork")
    for number, world in enumerate(asked["worlds"]):
        store = str(Path(sys.argv[1]) / f".store_{number}")
        started = [
            context.Process(target=_rank, args=(store, rank, module, dict(world)))
            for rank in range(world["ranks"])
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(_SECONDS)
        if any(process.exitcode for process in started):
            sys.exit(1)


if __name__ == "__main__":
    main()
