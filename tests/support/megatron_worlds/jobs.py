"""What a rank of a Megatron world does, by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from megatron_worlds.gpt import Setup, build, digest, step

_CHANGED = 7


def _train(world: Mapping[str, Any], pipe: Any) -> None:
    """Load, tell the state, train to step `until`, saving at `save_at`."""
    from holdfast import Checkpointer, RestoreError
    from holdfast.integrations.megatron import MegatronShards

    training = build(Setup(**world.get("setup", {})), world.get("seed", 1))
    shards = MegatronShards(
        training.chunks, training.optimizer, {"opt_param_scheduler": training.scheduler}
    )
    flash = Checkpointer(world["root"], shards=shards, overlap=world.get("overlap", False))
    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            start = flash.load()
    except RestoreError as error:
        pipe.send({"refused": str(error), "weights": _weights(training)})
        return
    pipe.send({"start": start, "notes": [str(note.message) for note in notes]})
    if start:
        pipe.send({"loaded": digest(training)})
    losses = []
    for number in range(start, world["until"]):
        losses.append(step(training, number))
        if number + 1 in world.get("save_at", ()):
            flash.save(number + 1)
            flash.wait()
            pipe.send({"saved": digest(training)})
    pipe.send({"losses": losses, "final": digest(training)})
    flash.close()


def _weights(training: Any) -> float:
    return float(sum(p.double().sum() for chunk in training.chunks for p in chunk.parameters()))


JOBS: dict[str, Callable[[Mapping[str, Any], Any], None]] = {"train": _train}
