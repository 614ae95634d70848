"""Checkpoints that the real frameworks write: a process imports one, then forks its worlds."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any

from checkpoints.forked_worlds import ForkedWorlds, serve


class _Worlds(ForkedWorlds):
    """The script as seen by a test."""

    script = __file__
    before_torch = True


_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "PYTHONWARNINGS": "ignore",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",  # frameworks ask for it; the group is made of a file
    "LOCAL_SIZE": "0",  # DeepSpeed's shared memory has one name for all worlds of a machine
}


def run(framework: str, worlds: Sequence[dict[str, Any]]) -> None:
    """Run worlds of a framework one after another; fails when a rank fails.

    framework: "deepspeed", "megatron" or "torch_checkpointing".
    worlds: "call", a function of the framework's module here, "world", its ranks, and arguments.
    """
    with _Worlds(FRAMEWORK=framework, **_ENVIRONMENT) as started:
        for world in worlds:
            started.run(job="write", **world)


def main() -> None:
    """Import a framework, then run the worlds that standard input names."""
    module = importlib.import_module(f"foreign_checkpoints.{os.environ['FRAMEWORK']}_files")
    module.prepare()

    def write(world: Mapping[str, Any], _: Any) -> None:
        import torch.distributed as dist

        given = {key: one for key, one in world.items() if key not in ("job", "call", "world")}
        try:
            getattr(module, world["call"])(**given)
            dist.barrier()
        finally:
            for child in multiprocessing.active_children():
                child.kill()  # Megatron's, which would keep the pipe to the test open

    serve({"write": write})


if __name__ == "__main__":
    main()
