"""A small classifier under DDP with the averager and the optimizer of `holdfast.local_sgd`.

Runs in the ranks of `replica_world`. `alone` trains the same replicas one after another in one
process, without the product and without DDP: the reference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from local_sgd.digests import digest

WIDE, CLASSES, BATCH = 16, 10, 32


def classifier(*, unused: bool = False) -> nn.Module:
    """Return the model, with equal weights wherever it is made."""
    torch.manual_seed(3)
    made = nn.Sequential(nn.Linear(WIDE, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    if unused:  # in front of the others, so that a list without it would be one off
        made.register_parameter("unused", nn.Parameter(torch.ones(64)))
    return made


def batch(replica: int, step: int, rows: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a replica sees in a step: points, and the classes a fixed teacher gives them."""
    draw = torch.Generator().manual_seed(1000 * replica + step)
    points = torch.randn(rows, WIDE, generator=draw)
    fixed = torch.Generator().manual_seed(17)
    hidden, out = (torch.randn(*one, generator=fixed) for one in ((WIDE, 32), (32, CLASSES)))
    return points, ((points @ hidden).tanh() @ out).argmax(1)


def loss_of(model: nn.Module, replica: int, step: int, rows: int = BATCH) -> torch.Tensor:
    """Return the loss of a batch."""
    points, classes = batch(replica, step, rows)
    return nn.functional.cross_entropy(model(points), classes)


def inner(world: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """Return the script's own optimizer."""
    if world.get("inner") == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=world["lr"])
    return torch.optim.SGD(model.parameters(), lr=world["lr"])


class Training:
    """A script's course, as docs/local-sgd.md shows it."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        """Make model, averager and optimizer."""
        from holdfast.local_sgd import (
            OuterOptimPeriodicModelAverager,
            StatefulPostLocalSGDOptimizer,
            local_sgd_under_ddp,
        )
        from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig

        self.world, self.replica = world, dist.get_rank()
        self.model = nn.parallel.DistributedDataParallel(
            classifier(unused=world.get("unused", False)),
            find_unused_parameters=world.get("unused", False),
        )
        config = LocalSGDConfig(**world["config"])
        outer = None
        if world.get("outer"):
            outer = OuterOptimizerConfig(
                outer_optim_class=torch.optim.SGD, outer_optim_kwargs=world["outer"]
            )
        gta = GTAConfig(**world["gta"]) if world.get("gta") else None
        if world.get("by_one_call"):
            self.optim = local_sgd_under_ddp(
                self.model, inner(world, self.model), config, outer, gta, members=_members(world)
            )
            self.averager = self.optim.averager
            return
        register_hook(self.model, config.local_sgd_warmup_steps, world.get("from", 0))
        self.averager = OuterOptimPeriodicModelAverager(
            process_group=None,
            local_sgd_config=config,
            gta_config=gta,
            outer_optim_config=outer,
        )
        self.optim = StatefulPostLocalSGDOptimizer(
            optim=inner(world, self.model), averager=self.averager
        )

    def step(self, number: int) -> None:
        """Train on one batch."""
        wild = number in range(*self.world.get("wild", (0, 0))) and (
            self.world.get("all_wild") or self.replica == 1
        )
        for group in self.optim.param_groups:
            group["lr"] = self.world["lr"] * (30 if wild else 1)
        self.optim.zero_grad()
        micros = self.world.get("micros", 1)
        for _ in range(micros):
            (loss_of(self.model, self.replica, number) / micros).backward()
        self.optim.step()
        if (self.replica, number) == (self.world.get("struck", -1), self.world.get("struck_at")):
            with torch.no_grad():
                next(self.model.parameters()).view(-1)[0] = float(self.world["strike"])

    def weights(self) -> list[torch.Tensor]:
        """Return the weights as they are now."""
        return [one.detach().clone() for one in self.model.parameters()]

    def digest(self) -> str:
        """Return a hash of the weights and of all that lasts."""
        return digest(self.weights(), self.optim.state_dict())


def _members(world: Mapping[str, Any]) -> Any:
    """Return fixed members of so many `shards` a replica; None: a world without that."""
    from holdfast.local_sgd import members_of_environment

    return members_of_environment(world["shards"]) if "shards" in world else None


def register_hook(model: nn.parallel.DistributedDataParallel, warmup: int, done: int) -> None:
    """Have DDP reduce the gradients of the warm-up only."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
        PostLocalSGDState,
        post_localSGD_hook,
    )

    state = PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=warmup,
        post_local_gradient_allreduce=False,
    )
    state.iter = done
    model.register_comm_hook(state, post_localSGD_hook)


def _resume(training: Training) -> None:
    """Load what this replica has saved, or rank 0."""
    number = training.replica if training.world["own"] else 0
    state = torch.load(f"{training.world['resume']}.{number}")
    training.model.load_state_dict(state["model"])
    training.optim.load_state_dict(state["optim"])


def _train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train; tell the weights, how far each step moved them, and losses on held-out batches."""
    training = Training(world)
    steps, moved, held_out = range(world.get("from", 0), world["steps"]), [], []
    if world.get("resume"):
        _resume(training)
    for number in steps:
        before = training.weights()
        training.step(number)
        after = training.weights()
        moved.append(max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True)))
        if world.get("held_out"):
            with torch.no_grad():
                held_out.append(loss_of(training.model.module, 99, 0, 2048).item())
        if world.get("ask_every_step"):
            training.optim.state_dict()
    if path := world.get("save"):
        state = {"model": training.model.state_dict(), "optim": training.optim.state_dict()}
        torch.save(state, f"{path}.{training.replica}")
        dist.barrier()  # the first rank has the store, in which the others look until their end
    pipe.send(
        {
            "weights": [one.flatten().tolist() for one in training.weights()],
            "digest": training.digest(),
            "equal": digest(training.weights()),
            "moved": moved,
            "held_out": held_out,
            "step": training.averager.step,
            "anomalous": [list(one.anomalous) for one in training.averager.outcomes],
            "detectors": [len(one["detectors"]) for one in training.averager.state_dict()["units"]],
        }
    )


def alone(world: Mapping[str, Any], replicas: int) -> list[list[list[float]]]:
    """Return each replica's weights after the steps, by EDiT with uniform weights and SGD inside.

    The warm-up applies the mean of all gradients; then A and v move as Nesterov says. A replica of
    several `shards` has the mean gradient of its ranks, each with data of its own.
    """
    shards = world.get("shards", 1)
    warmup, interval = (
        world["config"].get(f"local_sgd_{name}", default)
        for name, default in (("warmup_steps", 0), ("sync_interval", 1))
    )
    models = [classifier() for _ in range(replicas)]
    outer = world.get("outer") or {"lr": 1.0, "momentum": 0.0}
    anchors: list[torch.Tensor] = []
    momenta = [torch.zeros_like(one) for one in models[0].parameters()]
    for number in range(world["steps"]):
        if number == warmup:
            anchors = [one.detach().clone() for one in models[0].parameters()]
        grads = [
            torch.autograd.grad(_mean_loss(model, replica, number, shards), [*model.parameters()])
            for replica, model in enumerate(models)
        ]
        mean = [torch.stack(some).mean(0) for some in zip(*grads, strict=True)]
        with torch.no_grad():
            for model, own in zip(models, grads, strict=True):
                taken = mean if number < warmup else own
                for weight, grad in zip(model.parameters(), taken, strict=True):
                    weight.sub_(world["lr"] * grad)
            local = number + 1 - warmup
            if local > 0 and local % interval == 0:
                _agree(models, anchors, momenta, outer)
    return [[one.flatten().tolist() for one in model.parameters()] for model in models]


def _mean_loss(model: nn.Module, replica: int, step: int, shards: int) -> torch.Tensor:
    ranks = range(replica * shards, (replica + 1) * shards)
    return torch.stack([loss_of(model, rank, step) for rank in ranks]).mean()


def _agree(
    models: list[nn.Module],
    anchors: list[torch.Tensor],
    momenta: list[torch.Tensor],
    outer: Mapping[str, Any],
) -> None:
    for at, (anchor, momentum) in enumerate(zip(anchors, momenta, strict=True)):
        weights = [list(model.parameters())[at] for model in models]
        delta = anchor - torch.stack([one.detach() for one in weights]).mean(0)
        momentum.mul_(outer["momentum"]).add_(delta)
        ahead = delta + outer["momentum"] * momentum if outer.get("nesterov") else momentum
        anchor.sub_(outer["lr"] * ahead)
        for one in weights:
            one.copy_(anchor)


def _with_torch_state(world: Mapping[str, Any], pipe: Any) -> None:
    """Tell what a scheduler and torch's own state make of the optimizer."""
    training = Training(world)
    given: Any = training.optim  # torch's class is a base at run time only
    scheduler = torch.optim.lr_scheduler.StepLR(given, 1, gamma=0.5)
    plain = inner(world, training.model).state_dict()
    training.optim.load_state_dict(plain)
    training.optim.zero_grad()
    loss_of(training.model, training.replica, 0).backward()
    calls: list[int] = []
    training.optim.register_step_post_hook(lambda *_: calls.append(1))
    training.optim.step()
    scheduler.step()
    pipe.send(
        {
            "lr": training.optim.optim.param_groups[0]["lr"],
            "same": training.optim.param_groups is training.optim.optim.param_groups,
            "is_optimizer": isinstance(training.optim, torch.optim.Optimizer),
            "calls": len(calls),
            "step": training.averager.step,
        }
    )


def _refusals(world: Mapping[str, Any], pipe: Any) -> None:
    """Tell what an averager alone, and replicas that differ, are told."""
    from holdfast.local_sgd import OuterOptimPeriodicModelAverager
    from holdfast.local_sgd.config import LocalSGDConfig

    lone = OuterOptimPeriodicModelAverager(local_sgd_config=LocalSGDConfig())
    params = [nn.Parameter(torch.ones(3) * (1 + dist.get_rank() * world["apart"]))]
    said = []
    for call in (lone.average_parameters, lone.before_step):
        try:
            call(params)
            said.append("")
        except RuntimeError as error:
            said.append(f"{type(error).__name__}: {error}")
    pipe.send({"said": said})


def _by_time(world: Mapping[str, Any], pipe: Any) -> None:
    """Train as many steps as this replica has data for, at its pace, and join the others' rounds.

    Tells of each round its number, weights of the replicas and a hash of this one's weights. With
    `ends` all end after that round, whoever has data.
    """
    training = Training(world)
    rounds: list[dict[str, Any]] = []
    if world.get("resume"):
        _resume(training)

    def note() -> bool:
        averager = training.averager
        made = averager.units[0].round if averager.units else 0
        if made and made != (rounds[-1]["round"] if rounds else world.get("rounds", 0)):
            (outcome, *_) = averager.outcomes
            told = {"round": made, "weights": outcome.weights}
            rounds.append({**told, "step": averager.step, "equal": digest(training.weights())})
        return made == world.get("ends")

    begin, steps = training.averager.step, world["steps_of"][training.replica]
    is_over = False
    for number in range(begin, begin + steps):
        time.sleep(world["paces"][training.replica])
        training.step(number)
        if is_over := note():
            break
    counted, kept = training.averager.alone, training.digest()
    if path := world.get("save"):
        state = {"model": training.model.state_dict(), "optim": training.optim.state_dict()}
        torch.save(state, f"{path}.{training.replica}")
        dist.barrier()  # the first rank has the store, in which the others look until their end
    elif not is_over:
        training.averager.finish(note)
    pipe.send({
        "begin": begin, "step": training.averager.step, "rounds": rounds, "kept": kept,
        "alone": counted, "equal": digest(training.weights()),
    })  # fmt: skip


def _spans(world: Mapping[str, Any], pipe: Any) -> None:
    """Train fixed members by time, and average a value over all ranks in each step, as logs do."""
    from torch.distributed.fsdp import fully_shard

    from holdfast.local_sgd import LocalSGD, local_sgd_under_ddp, members_of_environment, mesh_of
    from holdfast.local_sgd.config import LocalSGDConfig
    from holdfast.local_sgd.errors import LocalSGDError

    model: Any = classifier()
    config, members = LocalSGDConfig(**world["config"]), members_of_environment()
    if world["framework"] == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
        optimizer: Any = local_sgd_under_ddp(model, inner(world, model), config, members=members)
    else:
        fully_shard(model, mesh=mesh_of(members, "cpu"))
        optimizer = inner(world, model)
        LocalSGD(model, optimizer, members, config)
    said = ""
    for number in range(world["steps"]):
        loss = loss_of(model, dist.get_rank(), number)
        loss.backward()
        dist.all_reduce(loss.detach())
        try:
            optimizer.step()
        except LocalSGDError as error:
            said = str(error)
            break
        optimizer.zero_grad()
    pipe.send({"said": said})


JOBS = {
    "by time": _by_time,
    "ddp": _train,
    "torch": _with_torch_state,
    "refusals": _refusals,
    "spans": _spans,
}
