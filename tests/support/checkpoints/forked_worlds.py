"""Worlds of real ranks, forked by one process that has imported torch and its framework once.

Belongs here: the process as seen by a test, the start of the ranks, their answers. Does not belong
here: what the ranks do, by framework (`flash_world`, `deepspeed_world`, `megatron_worlds`).

The process reads one JSON line per world from standard input and answers each with a line: what
each rank says. It stays for the next file of tests: to import a framework takes up to eight seconds
of a core, and files of one framework are shared out among the workers of a run.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from house import forks

SUPPORT = Path(__file__).parents[1]
Jobs = Mapping[str, Callable[[Mapping[str, Any], Any], None]]
"""Name of a job → the function that a rank runs: (world, pipe to the test)."""


class _Server:
    """A script that ends in `serve`."""

    def __init__(self, script: str, *, before_torch: bool, environment: Mapping[str, str]) -> None:
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT), **environment}
        begin, given = os.pipe()
        told, end = os.pipe()
        self._process: forks.Fork | subprocess.Popen[bytes]
        if before_torch:
            self._process = subprocess.Popen(
                [sys.executable, script], stdin=begin, stdout=end, env={**os.environ, **own}
            )
        else:
            self._process = forks.start([script], env={**os.environ, **own}, files=[begin, end, 2])
        os.close(begin)
        os.close(end)
        self._asked, self._told = os.fdopen(given, "w"), os.fdopen(told)
        forks.keep(self._process.pid)
        atexit.register(self.close)

    def ask(self, world: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._asked.write(json.dumps(world, default=str) + "\n")  # paths too
        self._asked.flush()
        answers: list[dict[str, Any]] = json.loads(self._told.readline())
        return answers

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._asked.close()
        self._process.wait(timeout=60)
        self._told.close()


@functools.cache
def _servers() -> dict[tuple[str, ...], _Server]:
    return {}


class ForkedWorlds:
    """A script that ends in `serve`, as seen by a test."""

    script: ClassVar[str]
    before_torch: ClassVar[bool] = False
    """Whether it imports something that must come before torch: then it is no fork (`forks`)."""

    def __init__(self, **environment: str) -> None:
        """Start it, unless it runs already."""
        kept, key = _servers(), (self.script, *map(str, sorted(environment.items())))
        if key not in kept or kept[key].ended():
            kept[key] = _Server(
                self.script, before_torch=self.before_torch, environment=environment
            )
        self._server = kept[key]

    def run(self, **world: Any) -> list[dict[str, Any]]:
        """Run a world to its end; return what each rank says. Fails when one fails."""
        answers = self._server.ask(world)
        errors = [answer["error"] for answer in answers if "error" in answer]
        assert not errors or world.get("may_fail"), "\n".join(errors)
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it to the next file."""


def serve(jobs: Jobs) -> None:
    """Run the worlds that standard input names, each with its job."""
    import torch
    import torch._dynamo  # what the first optimizer imports: a second, in each rank
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    import holdfast.flash.checkpointer
    import holdfast.local_sgd.driver.replicas
    import holdfast.local_sgd.frameworks.ddp
    import holdfast.local_sgd.frameworks.fsdp2  # noqa: F401 - forked ranks find them imported

    gc.freeze()  # and share what they do not write
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a framework's own prints would stand between the answers
    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        world = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            pairs = [context.Pipe(duplex=False) for _ in range(world["world"])]
            ranks = [
                context.Process(target=_rank, args=(jobs, rank, world, folder, pairs[rank][1]))
                for rank in range(world["world"])
            ]
            for rank in ranks:
                rank.start()
            for _, end in pairs:
                end.close()
            answers = [_answer(begin) for begin, _ in pairs]
            for rank in ranks:
                rank.join()
        out.write(json.dumps(answers) + "\n")
        out.flush()


def _answer(pipe: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        while True:
            found |= pipe.recv()
    except EOFError:
        return found


def _rank(jobs: Jobs, rank: int, world: Mapping[str, Any], folder: str, pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    # Before autograd's threads ask for the pool, which a fork has to make anew.
    torch.set_num_threads(1)
    count = world["world"]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "HOLDFAST_ROUND": str(world.get("round", 0)),
        "HOLDFAST_ARENA": world.get("arena", ""),
    }
    try:
        if world.get("kind") != "plain":
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count
            )
        jobs[world.get("job", "train")](world, pipe)
    except Exception:  # noqa: BLE001 - it is what the test is to see
        pipe.send({"error": traceback.format_exc()})
    finally:
        pipe.close()
        os._exit(0)
