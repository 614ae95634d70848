"""What a rank under Megatron's `pretrain()` writes down for a test, and where it waits for one.

Lines of JSON in `rank_<n>.jsonl`: where a process starts, each iteration's numbers to the last bit,
and at the end a hash of all that the rank holds of the state.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.training import get_args, training


class Record:
    """One rank's lines; made after the arguments are parsed, before `pretrain()`."""

    def __init__(self, folder: Path) -> None:
        """Wrap the two functions of Megatron's training that know what is recorded."""
        self._folder = folder
        self._path = folder / f"rank_{os.environ['RANK']}.jsonl"
        self._state: tuple[Any, ...] = ()
        set_up, log = training.setup_model_and_optimizer, training.training_log

        def built(*args: Any, **kwargs: Any) -> Any:
            self._state = set_up(*args, **kwargs)
            self._write(start=get_args().iteration)
            return self._state

        def logged(losses: Any, *args: Any, **kwargs: Any) -> Any:
            given = {name: _exact(value) for name, value in sorted(losses.items())}
            _, rate, iteration, scale, _, skipped, norm, *_ = args
            numbers = {"rate": rate, "scale": scale, "skipped": skipped, "norm": norm}
            self._write(
                step=iteration,
                samples=get_args().consumed_train_samples,
                **given,
                **{name: _exact(value) for name, value in numbers.items()},
            )
            self._wait(iteration)
            return log(losses, *args, **kwargs)

        training.setup_model_and_optimizer, training.training_log = built, logged

    def end(self) -> None:
        """Write the hash of model and optimizer, after the last iteration."""
        model, optimizer, scheduler = self._state
        total = hashlib.sha256()
        for chunk in model:
            for name, tensor in [*chunk.named_parameters(), *chunk.named_buffers()]:
                total.update(name.encode() + _bytes(tensor))
        for inner in _inner(optimizer):
            for group in inner.param_groups:
                for one in group["params"]:
                    total.update(_bytes(one))
                    for name, value in sorted(inner.state[one].items()):
                        total.update(name.encode() + _bytes(torch.as_tensor(value)))
        self._write(state=total.hexdigest(), scheduled=scheduler.num_steps)

    def _wait(self, iteration: int) -> None:
        """Stop before an iteration's save until the test lets the ranks pass."""
        gate = self._folder / f"gate_{iteration}"
        while gate.exists():
            time.sleep(0.02)

    def _write(self, **line: Any) -> None:
        text = json.dumps({"pid": os.getpid(), **line}) + "\n"
        with self._path.open("a") as file:
            file.write(text)


def _inner(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield torch's optimizers below Megatron's."""
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if one.optimizer is not None:
            yield one.optimizer


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _exact(value: Any) -> Any:
    """Return a number so that JSON keeps each of its bits."""
    if isinstance(value, torch.Tensor):
        return [one.hex() for one in value.detach().double().view(-1).tolist()]
    return value.hex() if isinstance(value, float) else value
