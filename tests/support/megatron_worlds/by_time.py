"""Replicas of a tiny GPT whose rounds end by time, each at its own pace, and their reference.

Belongs here: what the ranks of a world do. Does not belong here: the model (`gpt`), the formulas of
a round (`replicas`), what is expected (tests/local_sgd/process).
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

from megatron_worlds.gpt import Training, backward, hash_of, share_of, spoil, update
from megatron_worlds.replicas import average_gradients, digests, judged, patched, weights_of


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train, each replica as many `steps` as it has data for, at its own pace; tell its rounds.

    `saves` is a number of rounds, or, where rounds end with the data alone, each replica's steps.
    """
    training, local = patched(world)
    flash = (_MegatronsCalls if world.get("drop_in") else _flash)(world, training, local)
    replica, rounds = local.replicas.rank, list[dict[str, Any]]()
    pipe.send({"start": flash.load(), "loaded": digests(local), "clock": local.clock()})
    pipe.send({"loaded schedule": training.scheduler.num_steps})

    def look() -> None:
        if local.outcomes:
            rounds.append(_told(local))
            local.outcomes = []
        if _is_to_save(world.get("saves"), local):
            flash.save(local.rounds or 1)
            flash.wait()
            pipe.send({"saved": digests(local), "saved clock": local.clock()})
            pipe.send({"saved schedule": training.scheduler.num_steps})

    while local.steps < world["steps"][replica]:
        time.sleep(world["seconds"][replica])
        _step(training, local.steps, is_spoiled=[local.steps, replica] == world.get("spoiled"))
        look()
    pipe.send({"parted": hash_of(part.values() for part in local.trained if part is not None)})
    local.finish(look)
    flash.close()
    local.sync()
    pipe.send({"rounds": rounds, "units": len(local.units), "end": digests(local)})
    pipe.send({"weights": weights_of(training), "steps": local.steps})


def _flash(world: Mapping[str, Any], training: Training, local: Any) -> Any:
    from holdfast import Checkpointer

    objects = {"opt_param_scheduler": training.scheduler}
    return Checkpointer(world.get("root"), shards=local.shards(objects))


class _MegatronsCalls:
    """Megatron's own two calls, by the names of a `Checkpointer`."""

    def __init__(self, world: Mapping[str, Any], training: Training, _: Any) -> None:
        from megatron_worlds.jobs import use_arguments

        use_arguments(save=world["root"], num_layers=world["setup"]["layers"])
        self._state = training.chunks, training.optimizer, training.scheduler

    def load(self) -> int:
        from holdfast.integrations.megatron import load_checkpoint

        return load_checkpoint(*self._state)[0]

    def save(self, iteration: int) -> None:
        from holdfast.integrations.megatron import save_checkpoint

        save_checkpoint(iteration, *self._state)

    def wait(self) -> None:
        """Wait for nothing: a load waits for what is on its way."""

    def close(self) -> None:
        from holdfast.integrations.megatron import checkpointing

        checkpointing.finish()


def _is_to_save(saves: Any, local: Any) -> bool:
    if isinstance(saves, list):
        return bool(local.steps == saves[local.replicas.rank] and not local.rounds)
    return bool(local.together and local.rounds == saves)


def _told(local: Any) -> dict[str, Any]:
    """Return what a round has done; with a hash of this rank's anchors."""
    return {
        "round": local.rounds,
        "at": local.steps,
        "weights": sorted({tuple(one.weights) for one in local.outcomes}),
        "anchors": hash_of(one for unit in local.units for one in unit.anchors.values),
        "together": local.together,
    }


def _step(training: Training, number: int, *, is_spoiled: bool) -> None:
    """Make a step without a collective over replicas; a spoiled one has gradients of infinity."""
    from megatron.core import parallel_state

    parallel = parallel_state.get_data_parallel_world_size()
    backward(training, share_of(number, parallel_state.get_data_parallel_rank(), parallel))
    if is_spoiled:
        spoil(training)
    update(training)


def reference(world: Mapping[str, Any], pipe: Any) -> None:
    """Train all replicas in this rank, with `rounds` after each one's numbers of steps."""
    trainings, judge = judged(world)
    warm_up = judge.config.local_sgd_warmup_steps
    steps = [warm_up] * len(trainings)
    for number in range(warm_up):
        for place, training in enumerate(trainings):
            backward(training, share_of(number, place, len(trainings)))
        average_gradients(trainings)
        update(*trainings)
    judge.after(warm_up)
    for counts in world["rounds"]:
        for place, training in enumerate(trainings):
            for number in range(steps[place], steps[place] + counts[place]):
                backward(training, share_of(number, place, len(trainings)))
                update(training)
            steps[place] += counts[place]
        if any(counts):  # else nobody had data, and all are at the anchors
            judge.shares = [one / sum(counts) for one in counts]
            judge.make()
    pipe.send({"replicas": [weights_of(training) for training in trainings]})


def refuse(world: Mapping[str, Any], pipe: Any) -> None:
    """Tell what a script's calls raise that rounds by time cannot have: `call`s by name."""
    import torch.distributed as dist

    from holdfast.local_sgd.driver.replicas import FixedMembers
    from holdfast.local_sgd.errors import LocalSGDError
    from holdfast.local_sgd.megatron.refusals import check_store

    module: Any = types.ModuleType("megatron.training.training")
    module.train_step = lambda: None
    sys.modules[module.__name__] = module
    training, local = patched(world)
    _step(training, 0, is_spoiled=False)
    others: Any = types.SimpleNamespace(size=dist.get_world_size())
    calls: dict[str, Callable[[], Any]] = {
        "train_step": module.train_step,
        "sync": local.sync,
        "regroup": lambda: local.regroup(None),
        "worlds of their own": lambda: check_store(FixedMembers(others, local.shard_group)),
    }
    told = {}
    for name, call in calls.items():
        try:
            call()
        except LocalSGDError as error:
            told[name] = str(error)
    pipe.send({"refused": told})


CALLS: Mapping[str, Callable[[Mapping[str, Any], Any], None]] = {
    "train": train,
    "reference": reference,
    "refuse": refuse,
}
