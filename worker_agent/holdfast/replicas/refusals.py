"""Models that cannot be replicated as they are: refused by name, with the remedy.

Belongs here: what is looked at before the first step, and in each. Does not belong here: what
replicas do with a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.replicas.errors import ModelError

if TYPE_CHECKING:
    from torch import nn


def check_model(models: Sequence[nn.Module], ranks: int) -> None:
    """Refuse what reduces over replicas by itself, or what no sum of gradients fits.

    Args:
        models: Whose parameters are trained.
        ranks: Of a replica.

    Raises:
        ModelError: it names the module or the parameter.
    """
    for model in models:
        for name, module in model.named_modules():
            _check_module(name or type(model).__name__, module)
        for name, parameter in model.named_parameters():
            _check_parameter(name, parameter, ranks)


def _check_module(name: str, module: nn.Module) -> None:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(module, DistributedDataParallel):
        raise ModelError(
            f"{name}: DistributedDataParallel reduces gradients itself; pass the module inside it"
        )
    if type(module).__name__ == "FullyShardedDataParallel":
        raise ModelError(
            f"{name}: FullyShardedDataParallel (FSDP1) has its gradients where no hook sees them; "
            "use fully_shard(module, mesh=mesh_of(members, device_type))"
        )
    if isinstance(module, nn.SyncBatchNorm):
        raise ModelError(
            f"{name}: SyncBatchNorm reduces over ranks in each forward, and replicas make unlike "
            "numbers of forwards; use a norm without statistics of the batch, such as GroupNorm"
        )
    if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
        raise ModelError(f"{name}: its gradient is sparse; pass sparse=False")


def _check_parameter(name: str, parameter: Any, ranks: int) -> None:
    from torch.distributed.tensor import DTensor

    if parameter.requires_grad and not parameter.is_floating_point():
        raise ModelError(f"{name}: {parameter.dtype} is no real floating point dtype")
    wide = parameter.device_mesh.size() if isinstance(parameter, DTensor) else 1
    if wide > ranks:
        raise ModelError(
            f"{name}: its mesh has {wide} ranks, and a replica has {ranks}; "
            "shard it with fully_shard(module, mesh=mesh_of(members, device_type))"
        )


def check_parameters(models: Sequence[nn.Module], known: Sequence[Any]) -> None:
    """Refuse parameters that came later, or are not trained any more.

    Args:
        models: Whose parameters are trained.
        known: Parameters whose gradients are reduced.

    Raises:
        ModelError: it names the parameter.
    """
    ids = {id(one) for one in known}
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in ids:
                raise ModelError(
                    f"{name}: it was added, or began to need a gradient, after Replicated was "
                    "made; make Replicated behind it"
                )
            if id(parameter) in ids and not parameter.requires_grad:
                raise ModelError(
                    f"{name}: its requires_grad was changed; make another Replicated behind that"
                )


def check_gradients(models: Sequence[nn.Module]) -> None:
    """Refuse parameters that the first step has left without a gradient; raises ModelError."""
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise ModelError(
                    f"{name}: no loss of this step reached it, and with other micro-batches one "
                    "might; set requires_grad=False, or let each loss reach it (sum() * 0)"
                )


def check_optimizers(optimizers: Sequence[Any], known: Sequence[Any]) -> None:
    """Refuse to step what is no parameter of the model: its gradients would not be reduced.

    Args:
        optimizers: Torch's own.
        known: Parameters whose gradients are reduced.

    Raises:
        ModelError: it names the place in the optimizer.
    """
    ids = {id(one) for one in known}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for at, one in enumerate(group["params"]):
                if one.requires_grad and id(one) not in ids:
                    raise ModelError(
                        f"param_groups[{number}]['params'][{at}] of {type(optimizer).__name__}, "
                        f"of shape {tuple(one.shape)}, is in no model that Replicated was given; "
                        "pass its module too: Replicated([model, other], ...)"
                    )


def names_of(models: Sequence[nn.Module]) -> dict[int, str]:
    """Return the names of parameters, by their ids."""
    return {id(one): name for model in models for name, one in model.named_parameters()}
