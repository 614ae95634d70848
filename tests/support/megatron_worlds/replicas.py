"""Replicas of a tiny GPT that train with local SGD, and their reference: whole replicas in a rank.

Belongs here: what the ranks of a world do. Does not belong here: the model (`gpt`), what is
expected (tests/local_sgd/process). The reference has no line in common with what it judges: it adds
the replicas' weights up by the formulas of EDiT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatron_worlds.gpt import (
    GlobalBox,
    Setup,
    Training,
    backward,
    batch,
    build,
    fresh,
    gathered,
    hash_of,
    parameters,
    share_of,
    spoil,
    step,
    update,
)


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train `steps` with Megatron's calls alone, patched; tell weights and what rounds did."""
    training, local = patched(world)
    told, sums = [], []
    for number in range(world["steps"]):
        _run(training, number, local.replicas.rank, world.get("spoiled"))
        told.append([[one.round, list(one.norms), list(one.weights)] for one in local.outcomes])
        sums.append(_sum(training))
        local.outcomes = []
    factors = [
        bucket.gradient_scaling_factor
        for chunk in training.chunks
        for buffer in chunk.buffers
        for bucket in buffer.buckets
    ]
    pipe.send({"weights": weights_of(training), "outcomes": told, "sums": sums})
    pipe.send({"factors": factors, "units": [one.name for one in local.units]})


def _run(training: Training, number: int, replica: int, spoiled: Sequence[int] | None) -> None:
    """Make a step; `spoiled`, (step, replica), has gradients that are not finite."""
    from megatron.core import parallel_state

    if spoiled is None:
        step(training, number)
        return
    place = parallel_state.get_data_parallel_rank()
    backward(training, batch(number)[place : place + 1])
    if tuple(spoiled) == (number, replica):
        spoil(training)
    update(training)


def patched(world: Mapping[str, Any]) -> tuple[Training, Any]:
    """Return a training that was built behind the patch, and what the patch has attached."""
    from holdfast.local_sgd.megatron import local_sgd_of, patch_megatron_for_local_sgd

    patch_megatron_for_local_sgd(*configs(world), replicas=world["replicas"])
    training = build(Setup(**world.get("setup", {})), world.get("seed", 1))
    return training, local_sgd_of(training.optimizer)


def saved(world: Mapping[str, Any], pipe: Any) -> None:
    """Load, train to step `until`, saving at `saves`; tell hashes that no layout changes."""
    from holdfast import Checkpointer

    training, local = patched(world)
    objects = {"opt_param_scheduler": training.scheduler}
    flash = Checkpointer(world["root"], shards=local.shards(objects))
    start = flash.load()
    pipe.send({"start": start, "loaded": digests(local), "clock": local.clock()})
    for number in range(start, world["until"]):
        step(training, number)
        if number + 1 in world.get("saves", ()):
            flash.save(number + 1)
            flash.wait()
            pipe.send({f"saved {number + 1}": digests(local)})
    flash.close()
    known = {unit.name: sorted(unit.detectors) for unit in local.units}
    pipe.send({"end": digests(local), "weights": _sum(training), "detectors": known})


def digests(local: Any) -> dict[str, str]:
    """Return hashes of a replica's whole anchors, momentum, masters and Adam state."""
    return {
        kind: _hash(local, read)
        for kind, read in {
            "anchors": lambda unit, _: unit.anchors.values[0] if unit.has_anchors else None,
            "momentum": lambda unit, _: _momentum(unit),
            "masters": lambda _, part: part.values(),
            "inner": lambda _, part: _inner(part),
        }.items()
    }


def _momentum(unit: Any) -> Any:
    if not unit.has_anchors or unit.anchors.optimizer is None:
        return None
    return unit.anchors.optimizer.state.get(unit.anchors.values[0], {}).get("momentum_buffer")


def _inner(part: Any) -> Any:
    state = part.owned.state.get("exp_avg")
    begin = part.begin - part.owned.begin
    return None if state is None else state.view(-1)[begin : begin + part.end - part.begin]


def _hash(local: Any, read: Callable[[Any, Any], Any]) -> str:
    """Return the hash of the global tensors that a replica's ranks have in parts."""
    own = list[GlobalBox]()
    for unit, part in zip(local.units, local.trained, strict=True):
        values: Any = None if part is None else read(unit, part)
        for piece in () if values is None else part.pieces:
            for box in piece.boxes(part.begin, part.end):
                at = box.begin - part.begin
                view = values.detach()[at : at + math.prod(box.sizes)].reshape(box.sizes)
                ends = zip(box.offsets, box.sizes, strict=True)
                place = tuple(slice(first, first + size) for first, size in ends)
                own.append((piece.key, piece.shape, place, view.clone()))
    whole = gathered(own, local.replicas.rank)
    return hash_of(whole[key] for key in sorted(whole))


def by_hand(world: Mapping[str, Any], pipe: Any) -> None:
    """Train as a script with a loop of its own does, without the patch; tell the last weights."""
    from holdfast.local_sgd.megatron import MegatronLocalSGD

    training = build(Setup(**world.get("setup", {}), replicas=world["replicas"]), 1)
    local = MegatronLocalSGD(training.chunks, training.optimizer, *configs(world))
    for number in range(world["steps"]):
        step(training, number)
    parted = _sum(training)
    local.sync()
    pipe.send({"parted": parted, "equal": _sum(training)})
    local.detach()
    step(training, world["steps"])
    pipe.send({"alone": _sum(training), "steps": local.steps})


def survive(world: Mapping[str, Any], pipe: Any) -> None:
    """Train; the last replica ends before the second round, and the others go on without it."""
    import os

    import torch.distributed as dist

    from holdfast.local_sgd.sync.group import SyncError

    training, local = patched(world)
    last = local.replicas.size - 1
    rounds: list[int] = []
    for number in range(world["steps"]):
        if number == world["ends_at"] and local.replicas.rank == last == dist.get_rank():
            os._exit(0)
        try:
            _run(training, number, local.replicas.rank, (-1, -1))
        except SyncError as error:
            pipe.send({"failed": str(error), "at": number})
        if local.alone == world["config"]["local_sgd_sync_interval"]:
            local.replicas.close()
            ranks = list(range(last))
            local.regroup(dist.new_group(ranks, use_local_synchronization=True))
            local.sync()
            training.scheduler.step(increment=4)
        rounds.append(local.units[0].round)
    pipe.send({"sum": _sum(training), "rounds": rounds, "steps": local.steps})


def by_flags(world: Mapping[str, Any], pipe: Any) -> None:
    """Train as Megatron-LM does: flags, its own calls, and the patch without an argument."""
    from holdfast.integrations.megatron import checkpointing, load_checkpoint, save_checkpoint
    from holdfast.local_sgd.megatron import patch_megatron_for_local_sgd
    from holdfast.local_sgd.megatron.training import find_local_sgd
    from megatron_worlds.jobs import use_arguments

    use_arguments(save=world["root"], **world["args"])
    patch_megatron_for_local_sgd()
    training = build(Setup(**world.get("setup", {})), 1)
    state = training.chunks, training.optimizer, training.scheduler
    start, _ = load_checkpoint(*state)
    pipe.send({"start": start, "loaded": _sum(training)})
    for number in range(start, world["until"]):
        step(training, number)
        if number + 1 == world.get("save"):
            save_checkpoint(number + 1, *state, 0.0, None, non_persistent_ckpt=False)
            pipe.send({"saved": _sum(training)})
    local = find_local_sgd(training.optimizer)
    replicas = 0 if local is None else local.replicas.size
    pipe.send({"end": _sum(training), "replicas": replicas})
    checkpointing.finish()


def refuse(world: Mapping[str, Any], pipe: Any) -> None:
    """Tell what the patch, or the build behind it, raises."""
    from holdfast.local_sgd.errors import LocalSGDError
    from holdfast.local_sgd.megatron import MegatronLocalSGD

    try:
        if world.get("unpatched"):
            training = build(Setup(**world.get("setup", {})), 1)
            MegatronLocalSGD(training.chunks, training.optimizer, *configs(world))
        patched(world)
    except LocalSGDError as error:
        pipe.send({"refused": str(error)})


def reference(world: Mapping[str, Any], pipe: Any) -> None:
    """Train all replicas in this rank, by the formulas; tell the weights of each."""
    trainings, judge = judged(world)
    for number in range(world["steps"]):
        for place, training in enumerate(trainings):
            backward(training, share_of(number, place, len(trainings)))
        if number < judge.config.local_sgd_warmup_steps:
            average_gradients(trainings)
        update(*trainings)
        judge.after(number + 1)
    pipe.send({"replicas": [weights_of(training) for training in trainings]})


def judged(world: Mapping[str, Any]) -> tuple[list[Training], ReferenceRounds]:
    """Return all replicas of a world, with equal weights, and the rounds that they make."""
    import torch

    config, outer, _ = configs(world)
    first = build(Setup(**world.get("setup", {}), distributed=False), world.get("seed", 1))
    trainings = [first, *(fresh(first) for _ in range(world["replicas"] - 1))]
    with torch.no_grad():
        for several in zip(*map(parameters, trainings), strict=True):
            for one in several[1:]:
                one.copy_(several[0])
    return trainings, ReferenceRounds(trainings, config, outer)


class ReferenceRounds:
    """EDiT with norm weights, one norm for the clipping, and Nesterov."""

    def __init__(self, trainings: Sequence[Training], config: Any, outer: Any) -> None:
        self._all = [parameters(training) for training in trainings]
        self.config, self._outer = config, dict(outer.outer_optim_kwargs) if outer else {}
        self._anchors = [one.detach().clone() for one in self._all[0]]
        self._momentum: list[Any] = [None] * len(self._anchors)
        self.shares: list[float] = [1 / len(self._all)] * len(self._all)
        """Weights of the replicas, where norms have none."""

    def after(self, steps: int) -> None:
        """Take anchors at the end of the warm-up; make a round each H steps after it."""
        lone = steps - self.config.local_sgd_warmup_steps
        if lone == 0:
            self._anchors = [one.detach().clone() for one in self._all[0]]
        elif lone > 0 and lone % self.config.local_sgd_sync_interval == 0:
            self.make()

    def make(self) -> None:
        """Make a round."""
        import torch

        with torch.no_grad():
            means = [self._mean(number) for number in range(len(self._anchors))]
            clip = self.config.clip_pseudo_grad
            norm = float(self._whole(means))
            factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
            for number, mean in enumerate(means):
                self._step(number, mean * factor)
                for parameters in self._all:
                    parameters[number].copy_(self._anchors[number])

    def _mean(self, number: int) -> Any:
        import torch

        deltas = [self._anchors[number] - parameters[number] for parameters in self._all]
        weights = self.shares
        if self.config.temperature is not None:
            norms = [self._norm(number, delta) for delta in deltas]
            scores = [math.exp(-(one - min(norms)) / self.config.temperature) for one in norms]
            weights = [one / sum(scores) for one in scores]
        return torch.stack([w * d for w, d in zip(weights, deltas, strict=True)]).sum(0)

    def _norm(self, number: int, delta: Any) -> float:
        """Return a whole tensor's norm: its parts are on the tensor parallel ranks."""
        return math.sqrt(float(self._summed(self._square(number, delta), whole=False)))

    def _whole(self, means: Sequence[Any]) -> float:
        squares = sum(self._square(number, mean) for number, mean in enumerate(means))
        return math.sqrt(float(self._summed(squares, whole=True)))

    def _square(self, number: int, values: Any) -> Any:
        from megatron.core import parallel_state

        parameter = self._all[0][number]
        is_cut = getattr(parameter, "tensor_model_parallel", False)
        if not is_cut and parallel_state.get_tensor_model_parallel_rank():
            return values.double().square().sum() * 0
        return values.double().square().sum()

    def _summed(self, square: Any, *, whole: bool) -> Any:
        import torch.distributed as dist
        from megatron.core import parallel_state

        find = parallel_state
        group = find.get_model_parallel_group() if whole else find.get_tensor_model_parallel_group()
        dist.all_reduce(square, group=group)
        return square

    def _step(self, number: int, mean: Any) -> None:
        lr, momentum = self._outer.get("lr", 1.0), self._outer.get("momentum", 0.0)
        held = self._momentum[number]
        held = mean if held is None else momentum * held + mean
        self._momentum[number] = held
        along = mean + momentum * held if self._outer.get("nesterov") else held
        self._anchors[number] -= lr * along


def configs(world: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the configurations that a world names: `config`, `outer`, `gta`."""
    import torch

    from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig

    outer, gta = world.get("outer"), world.get("gta")
    return (
        LocalSGDConfig(**world.get("config", {})),
        OuterOptimizerConfig(torch.optim.SGD, outer) if outer else None,
        GTAConfig(**gta) if gta else None,
    )


def average_gradients(trainings: Sequence[Training]) -> None:
    """Give all replicas the mean of their gradients."""
    import torch

    for several in zip(*map(parameters, trainings), strict=True):
        mean = torch.stack([one.main_grad for one in several]).mean(0)
        for one in several:
            one.main_grad.copy_(mean)


def weights_of(training: Training) -> dict[str, list[float]]:
    """Return this rank's parameters by name, whole as far as data parallelism goes."""
    for chunk in training.chunks if training.setup.late_gather else ():
        chunk.start_param_sync(force_sync=True)
    return {
        f"{number}.{name}": one.detach().float().flatten().tolist()
        for number, chunk in enumerate(training.chunks)
        for name, one in chunk.module.named_parameters()
    }


def _sum(training: Training) -> float:
    """Return a number that two replicas have alike only if their weights are equal."""
    for chunk in training.chunks if training.setup.late_gather else ():
        chunk.start_param_sync(force_sync=True)
    return float(sum(one.detach().double().square().sum() for one in parameters(training)))


CALLS: Mapping[str, Callable[[Mapping[str, Any], Any], None]] = {
    "train": train,
    "by hand": by_hand,
    "survive": survive,
    "by flags": by_flags,
    "refuse": refuse,
    "saved": saved,
    "reference": reference,
}
