"""Log of the training loop: lines for people, one JSON line per step for programs.

Losses here are means over the global batch, so the ranks add up their parts; they do that only for
steps that are shown or written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from english_text import Share
from gpt_model import CONTEXT
from progress import Progress


class LossLog:
    """Shows a line every so many steps; appends every step to a file if there is one."""

    def __init__(self, file: Path | None, every: int, steps: int) -> None:
        """Take the file for JSON lines (None: no file), the steps between lines, and the goal."""
        self._every = every
        self._steps = steps
        self._writes = file is not None
        self._file = file.open("a", buffering=1) if file and dist.get_rank() == 0 else None
        self._shown = (time.perf_counter(), -1)

    def step(self, done: Progress, share: Share, loss: torch.Tensor) -> None:
        """Log the step just done; collective. `loss`: nats, summed over this rank's bytes."""
        show = done.step % self._every == 0 or done.step == self._steps
        if not (show or self._writes):
            return
        facts = torch.tensor(
            [float(loss), len(share.samples), share.fingerprint()], dtype=torch.float64
        )
        dist.all_reduce(facts)
        if dist.get_rank() == 0:
            nats, samples, fingerprint = facts.tolist()
            mean = nats / (samples * CONTEXT)
            self._write(done.step, mean, int(samples), int(fingerprint))
            if show:
                self._show(done.step, mean, int(samples))

    def _write(self, step: int, loss: float, samples: int, fingerprint: int) -> None:
        if not self._file:
            return
        line = {
            "step": step,
            "loss": loss,
            "samples": samples,
            "fingerprint": fingerprint,
            "world_size": dist.get_world_size(),
            "round": int(os.environ.get("HOLDFAST_ROUND", "0")),
            "time": time.time(),
        }
        self._file.write(json.dumps(line) + "\n")

    def _show(self, step: int, loss: float, samples: int) -> None:
        now = time.perf_counter()
        since, last = self._shown
        self._shown = (now, step)
        speed = ""
        if last >= 0:
            seconds = (now - since) / (step - last)
            speed = f"  {seconds * 1e3:.0f} ms/step  {samples * CONTEXT / seconds:,.0f} tokens/s"
        world = dist.get_world_size()
        print(f"step {step}/{self._steps}  loss {loss:.3f}  world {world}{speed}", flush=True)
