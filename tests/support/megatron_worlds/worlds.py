"""Worlds that train a tiny GPT with Megatron: one process imports it, then forks their ranks.

Run as a script. It reads one JSON line per world from standard input and answers each with a line:
what each rank says.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

SUPPORT = Path(__file__).parents[1]


class Worlds:
    """The script as seen by a test."""

    def __init__(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)},
        )

    def run(self, **world: Any) -> list[dict[str, Any]]:
        """Run a world to its end; return what each rank says. Fails when one fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(world) + "\n")
        self._process.stdin.flush()
        answers: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        errors = [answer["error"] for answer in answers if "error" in answer]
        assert not errors, "\n".join(errors)
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _serve() -> None:
    from megatron_worlds.cpu_shim import install, mend_router

    install()
    # Of what is not installed (Apex, Transformer Engine), and of gradients of views.
    warnings.filterwarnings("ignore", category=UserWarning)
    import torch
    import torch.distributed.checkpoint
    from megatron.core.models.gpt import gpt_model  # noqa: F401 - forked ranks find it imported
    from megatron.core.optimizer import get_megatron_optimizer  # noqa: F401

    import holdfast.flash.checkpointer
    import holdfast.integrations.megatron.shards  # noqa: F401

    mend_router()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        world = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            pairs = [context.Pipe(duplex=False) for _ in range(world["world"])]
            ranks = [
                context.Process(target=_rank, args=(rank, world, folder, pairs[rank][1]))
                for rank in range(world["world"])
            ]
            for rank in ranks:
                rank.start()
            for _, end in pairs:
                end.close()
            answers = [_answer(begin) for begin, _ in pairs]
            for rank in ranks:
                rank.join()
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


def _answer(pipe: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        while True:
            found |= pipe.recv()
    except EOFError:
        return found


def _rank(rank: int, world: Mapping[str, Any], folder: str, pipe: Any) -> None:
    import torch.distributed as dist

    from megatron_worlds.jobs import JOBS

    count = world["world"]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "HOLDFAST_ROUND": str(world.get("round", 0)),
        "HOLDFAST_ARENA": world.get("arena", ""),
    }
    os.dup2(2, 1)  # Megatron prints
    logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count
        )
        JOBS[world.get("job", "train")](world, pipe)
    except Exception:  # noqa: BLE001 - it is what the test is to see
        pipe.send({"error": traceback.format_exc()})
    finally:
        pipe.close()
        os._exit(0)


if __name__ == "__main__":
    _serve()
