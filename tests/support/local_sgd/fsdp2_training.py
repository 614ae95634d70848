"""Training under FSDP2 with local SGD, and its reference: whole replicas in one process.

Belongs here: what the ranks of a world do. Does not belong here: the model (`tiny_model`), what is
expected (tests/local_sgd/process).
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from checkpoints.forked_worlds import Jobs, serve
from local_sgd.fsdp2_facts import mesh_of
from local_sgd.tiny_model import loss_of, sharded, tiny_model, tokens_of


def configs_of(world: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the configurations that a world names: `config`, `outer`, `gta`."""
    import torch

    from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig

    outer, gta = world.get("outer"), world.get("gta")
    return (
        LocalSGDConfig(**world.get("config", {})),
        OuterOptimizerConfig(torch.optim.SGD, outer) if outer else None,
        GTAConfig(**gta) if gta else None,
    )


def optimizer_of(model: Any, world: Mapping[str, Any]) -> Any:
    """Return AdamW, or SGD where the world wants that."""
    import torch

    trained = [one for one in model.parameters() if one.requires_grad]
    if world.get("inner") == "sgd":
        return torch.optim.SGD(trained, lr=0.1)
    return torch.optim.AdamW(trained, lr=1e-2)


def disturb(world: Mapping[str, Any], step: int, replica: int, optimizer: Any) -> None:
    """Have one replica take a step that is too long, or of NaN: `disturbed`, [step, replica, x]."""
    lr = 0.1 if world.get("inner") == "sgd" else 1e-2
    for group in optimizer.param_groups:
        group["lr"] = lr
        for at, who, factor in world.get("disturbed", ()):
            if at == step and who in (replica, "all"):
                group["lr"] = lr * (math.nan if factor == "nan" else factor)


def made(world: Mapping[str, Any], **more: Any) -> tuple[Any, Any, Any, Any]:
    """Return mesh, model, optimizer and local SGD of a world."""
    from holdfast.local_sgd import LocalSGD

    mesh, options = mesh_of(world), world.get("options", {})
    model = sharded(tiny_model(options), mesh["shard"], options)
    optimizer = optimizer_of(model, world)
    return mesh, model, optimizer, LocalSGD(model, optimizer, mesh, *configs_of(world), **more)


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train for `steps`; send the weights of this rank's replica and what the rounds did."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    from holdfast import local_sgd
    from holdfast.local_sgd import LocalSGD

    mesh, options = mesh_of(world), world.get("options", {})
    replica, shard = mesh.get_coordinate()
    own, replicas = mesh["shard"], mesh
    if world.get("members"):
        replicas = local_sgd.StaticMembers(mesh["shard"].size())
        own = local_sgd.mesh_of(replicas, "cpu")
    model = sharded(tiny_model(options), own, options)
    optimizer = optimizer_of(model, world)
    local = LocalSGD(model, optimizer, replicas, *configs_of(world))
    told = []
    model.train(not options.get("eval"))
    if options.get("helped"):  # makes a step of an optimizer that has no state
        get_optimizer_state_dict(model, optimizer)
    for step in range(world["steps"]):
        if step == options.get("forgets"):
            model.eval()  # as an evaluation that leaves the model so
        disturb(world, step, replica, optimizer)
        run_step(world, model, optimizer, step, (replica, shard))
        told.append([[one.name, one.round, list(one.weights)] for one in local.outcomes])
        local.outcomes = []
    if world.get("closing"):
        local.sync()
    weights = {name: one.full_tensor().tolist() for name, one in model.named_parameters()}
    counts = {"steps": local.steps, "rounds": local.rounds}
    pipe.send({"weights": weights, "outcomes": told, **counts})


def saved(world: Mapping[str, Any], pipe: Any) -> None:
    """Load, train `steps` more, save; send hashes that do not depend on the layout."""
    from holdfast.flash.checkpointer import Checkpointer

    mesh, model, optimizer, local = made(world)
    replica, shard = mesh.get_coordinate()

    def step(number: int) -> None:
        disturb(world, number, replica, optimizer)
        run_step(world, model, optimizer, number, (replica, shard))

    flash = Checkpointer(world["root"], shards=local.shards())
    train_on(world, pipe, flash, step, local, lambda: digests(local))


def train_on(
    world: Mapping[str, Any],
    pipe: Any,
    flash: Any,
    step: Callable[[int], None],
    local: Any,
    digests: Callable[[], Any],
) -> None:
    """Load, train, save and end as `saved` says, under any framework."""
    import torch.distributed as dist

    start = flash.load()
    pipe.send({"start": start, "loaded": digests(), "clock": local.clock()})
    ends = {}
    for number in range(start, start + world["steps"]):
        step(number)
        if number + 1 in world.get("saves", ()):
            flash.save(number + 1, durable=not world.get("arena"))
            flash.wait()
            ends[str(number + 1)] = digests()
    pipe.send({"saved": ends})
    pipe.send({"end": digests(), "detectors": detectors_of(local)})
    if world.get("die"):
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    flash.close()


def by_time(world: Mapping[str, Any], pipe: Any) -> None:
    """Train by A-EDiT, each replica at its own pace, `steps` each; tell its rounds and weights.

    With `ends` all end at the start of that round, whoever has data.
    """
    from holdfast.flash.checkpointer import Checkpointer

    mesh, model, optimizer, local = made(world)
    replica, shard = mesh.get_coordinate()
    flash = Checkpointer(world.get("root"), shards=local.shards())
    outcomes = list[list[Any]]()
    pipe.send({"start": flash.load(), "loaded": digests(local), "clock": local.clock()})

    def save() -> bool:
        outcomes.extend([one.round, list(one.weights)] for one in local.outcomes[:1])
        local.outcomes = []  # a replica without data may take several rounds in one call
        if local.due and world.get("root"):
            flash.save(local.rounds)
            flash.wait()
            pipe.send({"saved": digests(local), "saved clock": local.clock()})
        return bool(local.due and local.rounds == world.get("ends"))

    is_over = False
    for step in range(world["steps"][replica]):
        time.sleep(world["seconds"][replica])
        run_step(world, model, optimizer, step, (replica, shard))
        if is_over := save():
            break
    parted = digests(local)["weights"]
    if not is_over:
        local.finish(save)
    outcomes += [[one.round, list(one.weights)] for one in local.outcomes[:1]]
    pipe.send({"outcomes": outcomes, "parted": parted, "end": digests(local)})


def survive(world: Mapping[str, Any], pipe: Any) -> None:
    """Train; the last replica is killed before the round, and the others go on without it."""
    import torch.distributed as dist

    from holdfast.local_sgd.sync.group import SyncError

    mesh, model, optimizer, local = made(world)
    replica, shard = mesh.get_coordinate()
    errors = []
    for step in range(world["steps"]):
        if step == world["killed_at"] and replica == mesh.size(0) - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            run_step(world, model, optimizer, step, (replica, shard))
        except SyncError as error:
            errors.append(str(error))
            model.reset_iter_state()
            left = list(range(mesh.size(0) - 1))
            group: Any = dist.new_group(left, use_local_synchronization=True)
            local.regroup(group)
            run_step(world, model, optimizer, step, (replica, shard))
    weights = {name: one.full_tensor().tolist() for name, one in model.named_parameters()}
    pipe.send({"weights": weights, "errors": errors, "steps": local.steps})


def given_up(world: Mapping[str, Any], pipe: Any) -> None:
    """Three replicas: one comes to no round, one gives it up, one tells how long it has waited."""
    import torch.distributed as dist

    from holdfast.local_sgd.sync.group import SyncError

    store = dist.distributed_c10d._get_default_store()
    _, model, optimizer, local = made(world, timeout=world["timeout"])
    run_step(world, model, optimizer, 0, (dist.get_rank(), 0))
    if dist.get_rank() == 1:
        begun = time.monotonic()
        try:
            run_step(world, model, optimizer, 1, (1, 0))
        except SyncError as error:
            pipe.send({"said": str(error), "took": time.monotonic() - begun})
        store.set("told", "")
    elif dist.get_rank() == 2:
        local.replicas.close()
    store.wait(["told"])  # a process that ends would close its connections


def refused(world: Mapping[str, Any], pipe: Any) -> None:
    """Make a `LocalSGD` in ways that it refuses; send the messages."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from holdfast.local_sgd import LocalSGD
    from holdfast.local_sgd.config import LocalSGDConfig
    from holdfast.local_sgd.errors import LocalSGDError
    from holdfast.local_sgd.files import save_local_sgd_state_dict

    mesh, config, said = mesh_of(world), LocalSGDConfig(local_sgd_sync_interval=2), {}

    def tell(name: str, call: Any) -> None:
        try:
            call()
        except LocalSGDError as error:
            said[name] = str(error)

    def local_of(model: Any, on: Any) -> Any:
        return LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), on, config)

    tell("hybrid mesh", lambda: local_of(sharded(tiny_model({}), mesh, {}), mesh))
    tell(
        "one dimension", lambda: local_of(sharded(tiny_model({}), mesh["shard"], {}), mesh["shard"])
    )
    first: Any = fully_shard(nn.Linear(4, 4), mesh=mesh["shard"])
    half = nn.Sequential(first, nn.Linear(4, 4))
    tell("left out", lambda: local_of(half, mesh))
    tell("no LocalSGD", lambda: save_local_sgd_state_dict(half))
    model = sharded(tiny_model({"frozen": True}), mesh["shard"], {})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LocalSGD(model, optimizer, mesh, config)
    tell("second", lambda: local_of(model, mesh))
    model.blocks[1].requires_grad_(requires_grad=True)
    tell("thawed", lambda: run_step(world, model, optimizer, 0, tuple(mesh.get_coordinate())))
    pipe.send(said)


def in_files(world: Mapping[str, Any], pipe: Any) -> None:
    """Train, write the state to files, or read it from there; tell its hashes."""
    from holdfast.local_sgd.files import load_local_sgd_state_dict, save_local_sgd_state_dict

    mesh, model, optimizer, local = made(world)
    if world.get("load"):
        load_local_sgd_state_dict(model, load_dir=world["root"], full_state_dict=world["full"])
    for step in range(world["steps"]):
        run_step(world, model, optimizer, step, tuple(mesh.get_coordinate()))
    before = digests(local)
    if not world.get("load"):
        group = mesh.get_group("shard")
        save_local_sgd_state_dict(
            model, group=group, save_dir=world["root"], full_state_dict=world["full"]
        )
    pipe.send({"before": before, "end": digests(local)})
    pipe.send({"clock": local.clock(), "detectors": detectors_of(local)})


def plain(world: Mapping[str, Any], pipe: Any) -> None:
    """Load and save as a job that knows nothing of local SGD; send a hash of the weights."""
    from holdfast.flash.checkpointer import Checkpointer

    mesh = mesh_of(world)
    model = sharded(tiny_model({}), mesh["shard"], {})
    optimizer = optimizer_of(model, world)
    flash = Checkpointer(world["root"], model=model, optimizer=optimizer)
    start = flash.load()
    pipe.send({"start": start, "weights": _hash_of(model)})
    for step in range(start, start + world["steps"]):
        run_step(world, model, optimizer, step, tuple(mesh.get_coordinate()))
    if world["steps"]:
        flash.save(start + world["steps"])
        flash.wait()
    pipe.send({"end": _hash_of(model)})
    flash.close()


def _hash_of(model: Any) -> str:
    """Return the hash of the weights that `digests` has, by units: the root's come first."""
    named = sorted(model.named_parameters(), key=lambda one: one[0].startswith("blocks"))
    whole = b"".join(one.detach().full_tensor().numpy().tobytes() for _, one in named)
    return hashlib.sha256(whole).hexdigest()[:16]


def detectors_of(local: Any) -> dict[str, dict[int, list[float]]]:
    """Return the detectors of all replicas, by unit."""
    return {
        unit.name: {number: list(one.state()) for number, one in unit.detectors.items()}
        for unit in local.units
    }


def digests(local: Any) -> dict[str, str]:
    """Return hashes of the whole anchors, momentum, weights and Adam state of this replica."""
    import torch.distributed as dist

    found = {key: hashlib.sha256() for key in ("anchors", "momentum", "weights", "inner")}
    optimizer, mesh = local.optimizers[0], local.trained[0].trained[0].parameter.device_mesh
    group = mesh.get_group()

    def add(kind: str, tensor: Any) -> None:
        parts: list[Any] = [None] * mesh.size()
        dist.all_gather_object(parts, tensor.detach().numpy().tobytes(), group=group)
        found[kind].update(b"".join(parts))

    for unit, module in zip(local.units, local.trained, strict=True):
        for number, one in enumerate(module.trained):
            add("weights", one.local)
            for key, value in sorted(optimizer.state.get(one.parameter, {}).items()):
                if value.dim():
                    add("inner", value.to_local())
                else:
                    found["inner"].update(f"{key} {value.item()}".encode())
            if unit.has_anchors:
                anchor = unit.anchors.values[number]
                add("anchors", anchor)
                state = unit.anchors.optimizer.state if unit.anchors.optimizer else {}
                for _, value in sorted(state.get(anchor, {}).items()):
                    add("momentum", value)
    return {key: one.hexdigest()[:16] for key, one in found.items()}


def run_step(
    world: Mapping[str, Any], model: Any, optimizer: Any, step: int, at: tuple[int, int]
) -> None:
    """Do one step of all micro-batches, with an evaluation before it if the options say so."""
    import torch

    options = world.get("options", {})
    micros = world.get("micros", 1)
    if options.get("evaluate"):
        with torch.no_grad():
            loss_of(model, tokens_of(99, 0, *at))
    if options.get("early"):
        model.unshard(async_op=True)
    for micro in range(micros):
        (loss_of(model, tokens_of(step, micro, *at)) / micros).backward()
    optimizer.step()
    optimizer.zero_grad()


def reference(world: Mapping[str, Any], pipe: Any) -> None:
    """Train whole replicas one after another, and synchronise them by the formula, unit by unit."""
    replicas, shards = world["mesh"]
    config, outer, _ = configs_of(world)
    first = tiny_model(world.get("options", {}))
    models = [copy.deepcopy(first) for _ in range(replicas)]
    optimizers = [optimizer_of(model, world) for model in models]
    rounds = _Rounds(models, config, outer.outer_optim_kwargs if outer else None)
    for step in range(world["steps"]):
        if rounds.due(step):
            rounds.sync()
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            disturb(world, step, number, optimizer)
            _whole_backward(world, model, step, number, shards)
        if step < config.local_sgd_warmup_steps:
            _average_gradients(models)
        if step == config.local_sgd_warmup_steps:
            rounds.take_anchors()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if world.get("closing"):
        rounds.sync()
    weights = [{name: one.tolist() for name, one in model.named_parameters()} for model in models]
    pipe.send({"weights": weights, "rollbacks": rounds.rollbacks, "flagged": rounds.flagged})


def _whole_backward(
    world: Mapping[str, Any], model: Any, step: int, replica: int, shards: int
) -> None:
    import torch

    micros = world.get("micros", 1)
    for micro in range(micros):
        parts = [tokens_of(step, micro, replica, shard) for shard in range(shards)]
        (loss_of(model, torch.cat(parts)) / micros).backward()


def _average_gradients(models: list[Any]) -> None:
    for several in zip(*(model.parameters() for model in models), strict=True):
        if several[0].grad is not None:
            mean = sum(one.grad for one in several) / len(several)
            for one in several:
                one.grad.copy_(mean)


class _Rounds:
    """The formula on whole parameters: no shard, no collective, no code of the engine."""

    def __init__(self, models: list[Any], config: Any, outer: Any) -> None:
        self._models, self._config, self._outer = models, config, outer
        self._anchors: dict[str, Any] = {}
        self._momentum: dict[str, Any] = {}
        self._ewma: dict[tuple[int, str], Any] = {}
        self.rollbacks: list[str] = []
        self.flagged: list[list[Any]] = []

    def due(self, step: int) -> bool:
        lone = step - self._config.local_sgd_warmup_steps
        return bool(lone > 0 and lone % self._config.local_sgd_sync_interval == 0)

    def take_anchors(self) -> None:
        for name, one in self._models[0].named_parameters():
            self._anchors[name] = one.detach().clone()

    def sync(self) -> None:
        """Synchronise the root's own parameters, and each block's, as one unit."""
        import torch

        units: dict[str, list[str]] = {}
        for name, one in self._models[0].named_parameters():
            if one.requires_grad:
                begin = ".".join(name.split(".")[:2]) if name.startswith("blocks") else "root"
                units.setdefault(begin, []).append(name)
        with torch.no_grad():
            for unit, names in units.items():
                self._unit(unit, names)

    def _unit(self, unit: str, names: list[str]) -> None:
        from holdfast.local_sgd.policies import anomaly, weights

        held = [dict(model.named_parameters()) for model in self._models]
        deltas = [{name: self._anchors[name] - one[name] for name in names} for one in held]
        norms = [
            math.sqrt(sum(float(d.double().square().sum()) for d in one.values())) for one in deltas
        ]
        reports = []
        for number, norm in enumerate(norms):
            bad = not math.isfinite(norm)
            if self._config.skip_anomaly:
                before = self._ewma.get((number, unit), anomaly.Ewma())
                bad, self._ewma[number, unit] = anomaly.judge(before, norm, self._config)
            if bad:
                self.flagged.append([unit, number])
            reports.append(weights.Report(norm if math.isfinite(norm) else math.inf, bad, 1.0))
        verdict = weights.weigh(reports, self._config)
        if verdict.rollback:
            self.rollbacks.append(unit)
        else:
            used = [i for i, one in enumerate(reports) if not one.anomalous]
            mean = {name: sum(verdict.weights[i] * deltas[i][name] for i in used) for name in names}
            size = math.sqrt(sum(float(one.double().square().sum()) for one in mean.values()))
            clip = self._config.clip_pseudo_grad
            factor = 1.0 if clip is None else min(1.0, clip / (size + 1e-6))
            for name in names:
                self._step(name, mean[name] * factor)
        for one in held:
            for name in names:
                one[name].copy_(self._anchors[name])

    def _step(self, name: str, mean: Any) -> None:
        if not self._outer:
            self._anchors[name] -= mean
            return
        before = self._momentum.get(name)
        momentum = mean if before is None else self._outer["momentum"] * before + mean
        self._momentum[name] = momentum
        self._anchors[name] -= self._outer["lr"] * (mean + self._outer["momentum"] * momentum)


_JOBS: Jobs = {
    "train": train,
    "reference": reference,
    "saved": saved,
    "by time": by_time,
    "in files": in_files,
    "plain": plain,
    "survive": survive,
    "given up": given_up,
    "refused": refused,
}

if __name__ == "__main__":
    serve(_JOBS)
