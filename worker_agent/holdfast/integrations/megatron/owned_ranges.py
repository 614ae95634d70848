"""The ranges of parameters that a rank's optimizer keeps in fp32, with their state.

Belongs here: where Megatron's optimizers keep masters and moments; the weights of the model after a
change of the masters outside the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.flash.trainer.leaves import StateError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRange:
    """A range of a parameter that this rank's optimizer updates."""

    parameter: torch.Tensor
    """The model's parameter."""
    begin: int
    """First element of the flattened parameter."""
    end: int
    """The element after the last one."""
    master: torch.Tensor
    """The elements in the optimizer's precision, flat; a view of the parameter if that has it."""
    inner: torch.optim.Optimizer
    """Optimizer that updates the master."""
    slot: torch.Tensor
    """Key of its state there."""
    group: int
    """Number of its group among all inner optimizers' groups."""
    sharded: bool
    """False: all data parallel ranks have the same."""
    spare: bool
    """True: another instance of the distributed optimizer has the same."""

    @property
    def state(self) -> dict[str, Any]:
        """The optimizer's state of the range; empty if there is none yet."""
        return self.inner.state.get(self.slot) or {}


@dataclass(frozen=True, slots=True)
class Owned:
    """Ranges that a rank's optimizers own."""

    ranges: tuple[OwnedRange, ...]
    inner: tuple[torch.optim.Optimizer, ...]
    """Torch's optimizers, in order; the groups' numbers go through all of them."""
    parameters: frozenset[int]
    """Ids of the parameters that some rank's optimizer updates."""

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of all inner optimizers."""
        return [group for inner in self.inner for group in inner.param_groups]


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return Megatron's optimizers without the chain, and without those that update nothing."""
    if optimizer is None:
        return []
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained is not None:
        return [one for part in chained for one in optimizers_of(part)]
    return [] if getattr(optimizer, "is_stub_optimizer", False) else [optimizer]


def owned(optimizer: Any) -> Owned:
    """Return the ranges of this rank's optimizer; raises `StateError` for an unknown kind."""
    inner: list[torch.optim.Optimizer] = []
    ranges, ids = list[OwnedRange](), set[int]()
    for one in optimizers_of(optimizer):
        kind = _kind(one)
        number = sum(len(each.param_groups) for each in inner)
        inner.append(one.optimizer)
        if kind == "DistributedOptimizer":
            ranges += _distributed(one, number)
            ids |= {id(parameter) for buffer in one.buffers for parameter in buffer.params}
        else:
            whole = list(_whole(one, number, kind))
            ranges += whole
            ids |= {id(each.parameter) for each in whole}
    return Owned(tuple(ranges), tuple(inner), frozenset(ids))


def _kind(optimizer: Any) -> str:
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer

    known = DistributedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
    for kind in known:
        if type(optimizer) is kind:
            _refuse_elsewhere(optimizer)
            return str(kind.__name__)
    raise StateError(
        f"optimizer={type(optimizer).__name__}: expected one of "
        f"{', '.join(kind.__name__ for kind in known)}, or a chain of them"
    )


def _refuse_elsewhere(optimizer: Any) -> None:
    """Refuse settings under which masters or moments are no plain tensors of an optimizer."""
    config = optimizer.config
    ddp = getattr(optimizer, "ddp_config", None)
    for holder, name, value in (
        (config, "use_precision_aware_optimizer", False),
        (config, "optimizer_cpu_offload", False),
        (ddp, "use_megatron_fsdp", False),
        (ddp, "fp8_param_gather", False),
        (ddp, "fp4_param_gather", False),
    ):
        found = getattr(holder, name, value)
        if found != value:
            raise StateError(
                f"{name}={found}: masters and moments are kept in a form that is not known here; "
                f"set {name}={value}, or save with Megatron's own save_checkpoint"
            )


def _distributed(optimizer: Any, first: int) -> Iterator[OwnedRange]:
    """Yield the ranges of a DistributedOptimizer: a part of each bucket."""
    for buffer in optimizer.gbuf_ranges:
        for bucket in (bucket for buckets in buffer.values() for bucket in buckets):
            for parameter, ranges in bucket["param_map"].items():
                group, order = optimizer.model_param_group_index_map[parameter]
                slot = optimizer.optimizer.param_groups[group]["params"][order]
                yield OwnedRange(
                    parameter=parameter,
                    begin=ranges["param"].start,
                    end=ranges["param"].end,
                    master=slot.detach().view(-1),
                    inner=optimizer.optimizer,
                    slot=slot,
                    group=first + group,
                    sharded=True,
                    spare=bool(optimizer.distributed_optimizer_instance_id),
                )


def _whole(optimizer: Any, first: int, kind: str) -> Iterator[OwnedRange]:
    """Yield whole parameters: every data parallel rank updates all of them."""
    for number, group in enumerate(optimizer.optimizer.param_groups):
        for parameter, slot in _pairs(optimizer, number, group["params"], kind):
            yield OwnedRange(
                parameter=parameter,
                begin=0,
                end=slot.numel(),
                master=slot.detach().view(-1),
                inner=optimizer.optimizer,
                slot=slot,
                group=first + number,
                sharded=False,
                spare=False,
            )


def _pairs(
    optimizer: Any, number: int, slots: Sequence[torch.Tensor], kind: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the parameter of the model of each of a group's masters."""
    if kind == "FP32Optimizer":
        return [(slot, slot) for slot in slots]
    masters = optimizer.fp32_from_float16_groups[number]
    models = optimizer.float16_groups[number]
    same = optimizer.fp32_from_fp32_groups[number]
    return [*zip(models, masters, strict=True), *((one, one) for one in same)]


def end_gathers(optimizer: Any) -> None:
    """Wait for gathers of the last step that still run: their end would pass for the next one's."""
    for chunk in _gathering(optimizer):
        for group in (*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups):
            if group.param_gather_handle is not None:
                group.start_param_sync(force_sync=True)


def write_weights(owned: Owned, optimizer: Any) -> None:
    """Round the masters into the weights, and gather these; a collective of data parallel ranks.

    Gathers that run must have ended before the masters were changed (`end_gathers`).
    """
    for one in owned.ranges:
        weight = one.parameter.detach().view(-1)[one.begin : one.end]
        if weight.data_ptr() != one.master.data_ptr():
            weight.copy_(one.master)
    for chunk in _gathering(optimizer):
        chunk.start_param_sync(force_sync=True)


def _gathering(optimizer: Any) -> list[Any]:
    """Return the model chunks whose parameters are gathered after a step."""
    found = {
        id(chunk): chunk
        for one in optimizers_of(optimizer)
        if hasattr(one, "gbuf_ranges")
        for chunk in one.model_chunks
    }
    return list(found.values())
