"""Runs of Megatron's own `pretrain()` under `holdfast-run`, for tests: watched, killed, ended.

Belongs here: the environment, processes and what they wrote down. Does not belong here: the
training itself (`pretrain_gpt`, `pretrain_record`), nor layouts and verdicts.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from holdfast_cli.runner.processes import descendants
from house.patience import patience
from house.repository import ROOT

_SCRIPT: Final = ROOT / "tests/support/megatron_worlds/pretrain_gpt.py"
_ROOTS: Final = ("worker_agent", "master", "operator", "proto", "cli", "tests/support")
_SMALL: Final = (
    *("--num-layers=4", "--hidden-size=32", "--num-attention-heads=4", "--seq-length=16"),
    *("--max-position-embeddings=16", "--micro-batch-size=2", "--global-batch-size=8", "--lr=1e-3"),
    *("--min-lr=1e-4", "--lr-decay-iters=20", "--lr-warmup-iters=4", "--vocab-size=90"),
    *("--mock-data", "--num-workers=0", "--eval-interval=1000", "--eval-iters=0"),
    *("--log-interval=1", "--transformer-impl=local", "--distributed-backend=gloo"),
    *("--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-persist-layer-norm"),
    *("--no-bias-gelu-fusion", "--no-bias-dropout-fusion"),
)
"""A model for the CPU, without the kernels that only CUDA has; dropout is on, as by default."""


@functools.cache
def python() -> tuple[str, str]:
    """Return (a Python with Megatron's training, why there is none); the other one is empty."""
    made = subprocess.run(
        [ROOT / "scripts" / "megatron_training.sh"], capture_output=True, text=True, check=False
    )
    if made.returncode not in (0, 3):
        raise RuntimeError(made.stderr)
    return made.stdout.strip(), "" if made.stdout else made.stderr.strip()


class Pretraining:
    """One process of `holdfast-run` with its ranks; a folder outlives several."""

    def __init__(self, folder: Path, ranks: int, layout: Sequence[str], *more: str) -> None:
        """Start it. `folder` gets the ranks' lines and output; `layout`, `more`: its arguments."""
        folder.mkdir(exist_ok=True)
        self._folder, self._ranks = folder, ranks
        environ = {
            **os.environ,
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron asserts it where tensors are parted
            "PYTHONPATH": os.pathsep.join(str(ROOT / one) for one in _ROOTS),
            # Each rank would import torch and Megatron for ten seconds.
            "HOLDFAST_PRELOAD": "megatron_worlds.preloaded_training",
            "TORCHDYNAMO_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
        }
        agent = [python()[0], "-c", "from holdfast_agent.main import main; main()"]
        run = [*agent, f"--nproc-per-node={ranks}", str(_SCRIPT)]
        record = f"--record={folder}"
        with (folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [*run, *_SMALL, record, *layout, *more],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the agent and all ranks with SIGKILL, whatever they do."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, seconds: float) -> None:
        """Wait for its end, which is a good one."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, self.evidence(f"ended with {code}")

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank wrote down, of all its processes."""
        path = self._folder / f"rank_{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def wait_for(self, step: int, after: int, seconds: float) -> list[int]:
        """Wait until each rank has begun `after` times and is at a step; return their processes."""
        self.wait(lambda: all(self._is_at(rank, step, after) for rank in self._all()), seconds)
        return [self.lines(rank)[-1]["pid"] for rank in self._all()]

    def _is_at(self, rank: int, step: int, after: int) -> bool:
        lines = self.lines(rank)
        begun = sum("start" in line for line in lines)
        return begun == after and lines[-1].get("step") == step

    def _all(self) -> range:
        return range(self._ranks)

    def wait(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until something is so, while the process runs."""
        until = time.monotonic() + seconds * patience()
        while not is_so():
            assert self.process.poll() is None, self.evidence(f"ended: {self.process.returncode}")
            assert time.monotonic() < until, self.evidence(f"nothing came in {seconds:.0f} s")
            time.sleep(0.1)

    def evidence(self, why: str) -> str:
        """Return the reason, each rank's last line and the end of the output."""
        last = [str(self.lines(rank)[-1:]) for rank in self._all()]
        output = (self._folder / "output.txt").read_text(errors="replace")
        return "\n".join([why, *last, output[-6000:]])
