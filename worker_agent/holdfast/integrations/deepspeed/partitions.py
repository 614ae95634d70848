"""The flat partitions of ZeRO's optimizers: which elements of which parameters this rank keeps.

Belongs here: DeepSpeed's bookkeeping for stages 1, 2 and 3 and its BF16 optimizer, read and turned
into ranges of parameters; the weights that follow from the partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from holdfast.flash.trainer.flat_range import boxes_of_range
from holdfast.flash.trainer.leaves import StateError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class FlatPiece:
    """The elements of a parameter that lie in a flat tensor of this rank."""

    parameter: Any
    shape: tuple[int, ...]
    """Shape of the whole parameter."""
    begin: int
    """First element, counted flat in the parameter."""
    end: int
    at: int
    """Place of the first element in the flat tensor."""

    def boxes(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
        """Yield (values, offsets) of each box, views of a flat tensor such as the masters'."""
        at, values = self.at, flat.detach()
        for offsets, sizes in boxes_of_range(self.shape, self.begin, self.end):
            count = prod(sizes)
            yield values.narrow(0, at, count).view(sizes), offsets
            at += count


@dataclass(frozen=True, slots=True)
class Flat:
    """One flat tensor that the inner optimizer steps: part of a group of parameters."""

    master: torch.Tensor
    """The weights that the optimizer changes, 1-D, with padding at the end of some ranks'."""
    group: int
    """Number of the user's parameter group."""
    parameters: tuple[Any, ...]
    """All parameters of which any rank has elements in this tensor."""
    pieces: tuple[FlatPiece, ...]


def flats_of(engine: Any) -> tuple[Flat, ...]:
    """Return the flat tensors of an engine's optimizer; none if the engine has no ZeRO optimizer.

    Raises `StateError` if the optimizer keeps state where it cannot be read.
    """
    zero = engine.optimizer
    _refuse_elsewhere(engine, zero)
    if hasattr(zero, "fp32_partitioned_groups_flat"):
        return tuple(_of_stage_3(zero))
    if hasattr(zero, "single_partition_of_fp32_groups"):
        flats = tuple(_of_stages_1_and_2(zero))
        refuse_whole_momentum(zero.optimizer.param_groups, flats)
        return flats
    if hasattr(zero, "fp32_groups_flat_partition"):
        return tuple(_of_bf16(zero))
    if hasattr(zero, "fp16_groups_flat") or type(zero).__name__ == "FP16_UnfusedOptimizer":
        raise StateError(
            f"{type(zero).__name__} keeps its state in an FP16_Optimizer: take zero_optimization "
            "stage 1 or more"
        )
    return ()


def _refuse_elsewhere(engine: Any, zero: Any) -> None:
    elsewhere = {
        "swap_optimizer": 'on NVMe: take offload_optimizer {"device": "cpu"}',
        "zenflow": "in ZenFlow's selective optimizer: leave out zenflow",
        "backup_optimizer": "in two optimizers: take offload_optimizer with ratio 1",
    }
    for mark, where in elsewhere.items():
        if getattr(zero, mark, None):
            raise StateError(f"{type(zero).__name__} keeps its state {where}")
    if getattr(engine, "has_moe_layers", False):
        raise StateError(
            "experts of DeepSpeed's MoE have the same names on all ranks: they cannot be saved here"
        )
    _refuse_tensor_parallel(engine)
    _refuse_data_efficiency(engine)
    for tied in (getattr(engine.module, "tied_comms", None) or {}).values():
        _refuse_untied(tied)


def refuse_whole_momentum(groups: Sequence[Mapping[str, Any]], flats: Sequence[Flat]) -> None:
    """Refuse Muon's momentum at stages 1 and 2, unless it lies as the master does.

    It is that of whole parameters, one after another: also of those that two ranks share, and
    without the padding. Its size may be the partition's by chance.
    """
    for flat in flats:
        ends = [one.begin == 0 and one.end == prod(one.shape) for one in flat.pieces]
        is_alike = all(ends) and sum(one.end for one in flat.pieces) == flat.master.numel()
        if groups[flat.group].get("use_muon") and not is_alike:
            raise StateError(
                f"Muon keeps the momentum of whole parameters in group {flat.group}, of which a "
                "rank has parts at ZeRO's stages 1 and 2: take stage 3, or save with DeepSpeed's "
                "own save_checkpoint"
            )


def _refuse_tensor_parallel(engine: Any) -> None:
    from deepspeed.utils.bwc import bwc_tensor_model_parallel_world_size

    size = max(int(bwc_tensor_model_parallel_world_size(engine.mpu)), int(engine.autotp_size()))
    if size > 1:
        raise StateError(
            f"tensor parallelism of {size} ranks: they have other parts of a tensor under one "
            "name, and DeepSpeed does not say which: take a tensor parallel size of 1, or save "
            "with DeepSpeed's own save_checkpoint"
        )


def _refuse_data_efficiency(engine: Any) -> None:
    """Refuse schedules of data that DeepSpeed saves and this does not: they would begin anew."""
    curriculum = engine.training_dataloader is not None and engine.curriculum_learning_enabled()
    for name, is_on in (
        ("data_sampling.curriculum_learning", curriculum),
        ("data_routing.random_ltd", engine.random_ltd_enabled()),
    ):
        if is_on:
            raise StateError(
                f"data_efficiency.{name}: its position is not saved here, and would begin anew: "
                "leave it out, or save with DeepSpeed's own save_checkpoint"
            )


def _refuse_untied(tied: Mapping[str, Any]) -> None:
    """Refuse a tied layer of a pipeline with a parameter that DeepSpeed does not keep equal."""
    attributes = tied["weight_attr"]
    names = [attributes] if isinstance(attributes, str) else list(attributes)
    for name, _ in tied["module"].named_parameters():
        if name not in names:
            raise StateError(
                f"{name} of a tied layer differs on its stages, which are tied by "
                f"{', '.join(names)}: give TiedLayerSpec tied_weight_attr={[*names, name]!r}"
            )


def _of_stages_1_and_2(zero: Any) -> Iterator[Flat]:
    for number, flat in enumerate(zero.single_partition_of_fp32_groups):
        yield _cut(
            number,
            flat,
            # Not bit16_groups: round_robin_gradients orders the flat tensor otherwise.
            zero.round_robin_bit16_groups[number],
            zero.round_robin_bit16_offsets[number],
            zero.real_dp_process_group[number],
        )


def _of_bf16(zero: Any) -> Iterator[Flat]:
    for number, flat in enumerate(zero.fp32_groups_flat_partition):
        group, at, offsets = zero.bf16_groups[number], 0, []
        for parameter in group:
            offsets.append(at)
            at += parameter.numel()
        yield _cut(number, flat, group, offsets, zero.real_dp_process_group[number])


def _cut(
    number: int, flat: torch.Tensor, group: Sequence[Any], offsets: Sequence[int], ranks: Any
) -> Flat:
    """Return a rank's part of a group that is one flat tensor, cut into equal ranges."""
    import torch.distributed as dist

    first = dist.get_rank(group=ranks) * flat.numel()
    last = first + flat.numel()
    pieces = []
    for parameter, at in zip(group, offsets, strict=True):
        begin, end = max(at, first), min(at + parameter.numel(), last)
        if begin < end:
            shape = tuple(parameter.shape)
            pieces.append(FlatPiece(parameter, shape, begin - at, end - at, begin - first))
    return Flat(flat, number, tuple(group), tuple(pieces))


def _of_stage_3(zero: Any) -> Iterator[Flat]:
    for number, flat in enumerate(zero.fp32_partitioned_groups_flat):
        at, pieces = 0, []
        for parameter in zero.fp16_groups[number]:
            if piece := piece_of(parameter, at):
                pieces.append(piece)
            at += parameter.partition_numel()
        parameters = tuple(zero.fp16_groups[number])
        yield Flat(flat, zero.sub_group_to_group_id[number], parameters, tuple(pieces))


def piece_of(parameter: Any, at: int = 0) -> FlatPiece | None:
    """Return this rank's part of a parameter that stage 3 partitions; None: padding only.

    at: place of the part in its flat tensor.
    """
    import torch.distributed as dist

    size = parameter.partition_numel()
    begin = dist.get_rank(group=parameter.ds_process_group) * size
    end = min(begin + size, parameter.ds_numel)
    return FlatPiece(parameter, tuple(parameter.ds_shape), begin, end, at) if begin < end else None


def is_partitioned(parameter: Any) -> bool:
    """Return True if stage 3 keeps a parameter as one part per rank."""
    return getattr(parameter, "ds_tensor", None) is not None


def is_stored(parameter: Any) -> bool:
    """Return True if this pipeline stage stores a parameter: of tied layers the first does."""
    return not getattr(parameter, "ds_pipe_replicated", False)


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """Return a parameter's shape, also while stage 3 has released it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def renew_weights(zero: Any) -> None:
    """Make the weights that the model computes with from the masters; all ranks call it."""
    if not hasattr(zero, "fp32_partitioned_groups_flat"):
        if hasattr(zero, "update_lp_params"):
            zero.update_lp_params()
        return
    zero.checkpoint_event_prologue()  # releases what was gathered from the old partitions
    for number in range(len(zero.fp32_partitioned_groups_flat)):
        zero._reassign_or_swap_out_partitioned_parameters(number)  # noqa: SLF001 - as step() does
    zero.checkpoint_event_epilogue()  # gathers the small parameters that every rank keeps
