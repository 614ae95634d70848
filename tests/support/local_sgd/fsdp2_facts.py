"""Facts about torch's FSDP2 that local SGD builds on, each shown by one world of ranks.

Belongs here: what a rank does and finds out. Does not belong here: what is expected of it
(tests/local_sgd/process/test_fsdp2_facts.py). No line of `holdfast` runs here: a fact is torch's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from checkpoints.forked_worlds import Jobs, serve

_ROWS: Final = 4
"""Samples of one rank."""


def mesh_of(world: Mapping[str, Any]) -> Any:
    """Return the 2-D mesh of replicas and shards that a world names, `[N, M]`."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = tuple(world["mesh"])
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def small_model(mesh: Any, **options: Any) -> Any:
    """Return two linear layers, each a unit, and the root with nothing of its own."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def data() -> Any:
    """Return this rank's own samples."""
    import torch

    generator = torch.Generator().manual_seed(10 + int(os.environ["RANK"]))
    return torch.randn(_ROWS, 6, generator=generator)


def _gradients(model: Any) -> list[list[float]]:
    return [one.grad.full_tensor().flatten().tolist() for one in model.parameters()]


def _backward(model: Any) -> None:
    model(data()).square().mean().backward()


def without_all_reduce(world: Mapping[str, Any], pipe: Any) -> None:
    """HSDP's mesh with its all-reduce turned off: where do the gradients go?"""
    model = small_model(mesh_of(world))
    model.set_requires_all_reduce(False)
    _backward(model)
    pipe.send({"none": [one.grad is None for one in model.parameters()]})


def hook_for_all_reduce(world: Mapping[str, Any], pipe: Any) -> None:
    """HSDP's gradients, and those of a shard mesh whose hook averages over the replicas."""
    import torch.distributed as dist

    mesh = mesh_of(world)
    hybrid = small_model(mesh)
    _backward(hybrid)
    model, dtypes = small_model(mesh["shard"]), set()
    group = mesh.get_group("replicate")

    def average(gradient: Any) -> None:
        dtypes.add(str(gradient.dtype))
        dist.all_reduce(gradient, group=group)
        gradient.div_(group.size())

    for layer in (*model, model):
        layer.set_all_reduce_hook(average)
    _backward(model)
    pipe.send({"hybrid": _gradients(hybrid), "hooked": _gradients(model), "dtypes": sorted(dtypes)})


def gradients_of_a_shard_mesh(world: Mapping[str, Any], pipe: Any) -> None:
    """The gradients of a replica alone, and the mean over the samples of its own ranks."""
    import torch
    import torch.distributed as dist

    mesh = mesh_of(world)
    model = small_model(mesh["shard"])
    _backward(model)
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    _backward(plain)
    gradients = [one.grad for one in plain.parameters() if one.grad is not None]
    for one in gradients:
        dist.all_reduce(one, group=mesh.get_group("shard"))
        one.div_(mesh.size(1))
    pipe.send({"got": _gradients(model), "mean": [one.flatten().tolist() for one in gradients]})


def divide_factor(world: Mapping[str, Any], pipe: Any) -> None:
    """The sum that an all-reduce hook sees, and the gradients, of three ways to divide.

    Gloo has no PREMUL_SUM, so a factor of the script's own needs sums.
    """
    for name in ("mean", "forced sum", "factor 1"):
        model, seen = small_model(mesh_of(world)["shard"]), list[float]()
        for layer in (*model, model):
            if name != "mean":
                layer.set_force_sum_reduction_for_comms(True)
            if name == "factor 1":
                layer.set_gradient_divide_factor(1.0)
        model[1].set_all_reduce_hook(lambda gradient, seen=seen: seen.append(gradient.sum().item()))
        _backward(model)
        total = sum(one.grad.to_local().sum().item() for one in model[1].parameters())
        pipe.send({name: [seen, total]})


def reduce_dtype(world: Mapping[str, Any], pipe: Any) -> None:
    """The dtype in which gradients are reduced when only `param_dtype` is given."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    found = {}
    for name, policy in {
        "default": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "bfloat16": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16),
    }.items():
        model, seen = small_model(mesh_of(world)["shard"], mp_policy=policy), set[str]()
        for layer in model:
            layer.set_all_reduce_hook(lambda gradient, seen=seen: seen.add(str(gradient.dtype)))
        _backward(model)
        found[name] = sorted(seen)
    pipe.send(found)


def _written(model: Any, *, prepend: bool) -> float:
    """Write 7 into the shards of the second layer from a pre-hook; return its output's bias."""
    import torch

    def write(module: Any, _: Any) -> None:
        with torch.no_grad():
            for one in module.parameters():
                local = one.to_local() if hasattr(one, "to_local") else one
                local.fill_(7.0)

    handle = model[1].register_forward_pre_hook(write, prepend=prepend)
    with torch.no_grad():
        model(data())
        handle.remove()
        again = model[1](torch.zeros(1, 5))
    model[1].reshard()
    return float(again[0, 0])


def order_of_hooks(world: Mapping[str, Any], pipe: Any) -> None:
    """Writes of a pre-hook into the shards, prepended or not: do they last?"""
    import torch

    for prepend in (True, False):
        model, mine = small_model(mesh_of(world)["shard"]), list[bool]()
        before = model[1].bias.to_local().clone()

        def look(module: Any, _: Any, mine: list[bool] = mine) -> None:
            mine.append(hasattr(module.bias, "to_local"))

        model[1].register_forward_pre_hook(look, prepend=prepend)
        lasting = _written(model, prepend=prepend)
        same = torch.equal(model[1].bias.to_local(), before)
        pipe.send({f"prepend {prepend}": [mine[0], lasting, same]})


def prefetch(world: Mapping[str, Any], pipe: Any) -> None:
    """A unit that is prefetched before its hook writes its shards: stale, until it is turned off.

    Found: the output with prefetch, with prefetch turned off, with a reshard in the hook.
    """
    import torch

    found = {}
    for name in ("on", "off", "reshard"):
        model = small_model(mesh_of(world)["shard"])
        with torch.no_grad():
            model(data())  # so that the root is known
        for layer in (*model, model):
            layer.reshard()
        model[0].set_modules_to_forward_prefetch([model[1]] if name != "off" else [])

        def write(module: Any, _: Any, name: str = name) -> None:
            if name == "reshard":
                module.unshard()
                module.reshard()
            with torch.no_grad():
                for one in module.parameters():
                    (one.to_local() if hasattr(one, "to_local") else one).zero_()

        model[1].register_forward_pre_hook(write, prepend=True)
        with torch.no_grad():
            found[name] = float(model(data()).abs().max())
    pipe.send(found)


def evaluation(world: Mapping[str, Any], pipe: Any) -> None:
    """Shards written after a forward without a backward: does the next forward see them?"""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    found: dict[str, Any] = {}
    for name in ("as it is", "resharded"):
        torch.manual_seed(0)
        model: Any = fully_shard(nn.Linear(6, 3), mesh=mesh_of(world)["shard"])
        with torch.no_grad():
            model(data())
            found[f"{name}: whole"] = not hasattr(model.weight, "to_local")
            if name == "resharded":
                model.reshard()

            def write(module: Any, _: Any) -> None:
                for one in module.parameters():
                    (one.to_local() if hasattr(one, "to_local") else one).zero_()

            model.register_forward_pre_hook(write, prepend=True)
            model(data())
            model.reshard()
            found[name] = float(model.weight.to_local().abs().max())
    pipe.send(found)


def recompute(world: Mapping[str, Any], pipe: Any) -> None:
    """Calls of a pre-hook in one step, with activation checkpointing outside and inside a unit."""
    import torch
    from torch import nn
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    mesh, found = mesh_of(world)["shard"], {}
    for where in ("none", "outside", "inside"):
        torch.manual_seed(0)
        layer: Any = nn.Linear(6, 6)
        inner: Any = checkpoint_wrapper(layer) if where == "inside" else layer
        unit = fully_shard(inner, mesh=mesh)
        outer = checkpoint_wrapper(unit) if where == "outside" else unit
        model, calls = fully_shard(nn.Sequential(nn.Linear(6, 6), outer), mesh=mesh), list[int]()
        unit.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1), prepend=True)
        _backward(model)
        found[where] = len(calls)
    pipe.send(found)


def sizes(world: Mapping[str, Any], pipe: Any) -> None:
    """The sizes of the shards of 16 numbers and of 1 number on each rank."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    model = nn.ParameterDict(
        {"a": nn.Parameter(torch.ones(3, 2)), "b": nn.Parameter(torch.ones(1))}
    )
    fully_shard(model, mesh=mesh_of(world)["shard"])
    pipe.send({"sizes": [model[key].to_local().numel() for key in ("a", "b")]})


def outer_optimizer(world: Mapping[str, Any], pipe: Any) -> None:
    """Nesterov SGD on a DTensor: the first step, and the kind of its momentum."""
    import torch
    from torch.distributed.tensor import DTensor

    model = small_model(mesh_of(world)["shard"])
    anchor: Any = torch.nn.Parameter(model[0].weight.detach().clone())
    before = anchor.full_tensor().clone()
    outer = torch.optim.SGD([anchor], lr=0.7, momentum=0.8, nesterov=True)
    anchor.grad = torch.ones_like(anchor)
    outer.step()
    moved = (before - anchor.full_tensor()).flatten().tolist()
    momentum = outer.state[anchor]["momentum_buffer"]
    pipe.send({"moved": moved, "momentum": isinstance(momentum, DTensor)})


def step_hook(world: Mapping[str, Any], pipe: Any) -> None:
    """Calls of an optimizer's post-hook for two micro-batches and one step."""
    import torch

    model, calls = small_model(mesh_of(world)["shard"]), []
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    _backward(model)
    _backward(model)
    optimizer.step()
    pipe.send({"calls": len(calls)})


_JOBS: Jobs = {
    one.__name__: one
    for one in (
        without_all_reduce,
        hook_for_all_reduce,
        gradients_of_a_shard_mesh,
        divide_factor,
        reduce_dtype,
        order_of_hooks,
        prefetch,
        evaluation,
        recompute,
        sizes,
        outer_optimizer,
        step_hook,
    )
}

if __name__ == "__main__":
    serve(_JOBS)
