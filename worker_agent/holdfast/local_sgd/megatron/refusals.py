"""Refusals of what local SGD under Megatron cannot do, each by the name of a setting.

Belongs here: checks of settings and of a model before the first step. Does not belong here: checks
of process groups (`groups`), and contradictions of settings with each other (`combinations`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.integrations.megatron.global_tensors import unwrap
from holdfast.integrations.megatron.owned_ranges import optimizers_of
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError
from holdfast.local_sgd.megatron.groups import check_groups
from holdfast.local_sgd.triggers.trigger import BySteps


def check_model(
    chunks: Sequence[Any], optimizer: Any, config: LocalSGDConfig, gta: GTAConfig | None
) -> None:
    """Refuse a model or an optimizer that a round would leave wrong.

    Raises:
        LocalSGDError: names the setting, its value, and what to do.
    """
    for holder, name, wanted, why in _wanted(chunks, optimizer):
        found = getattr(holder, name, wanted)
        if found and found != wanted:
            raise LocalSGDError(f"{name}={found}: {why}; set {name}={wanted}")
    real = optimizers_of(optimizer)
    if len(real) > 1:
        names = ", ".join(type(one).__name__ for one in real)
        raise LocalSGDError(
            f"optimizer: a chain of {len(real)} optimizers ({names}), and a round runs between an "
            "optimizer's step and its gather of parameters; train with one of them"
        )
    check_groups(chunks)
    _check_tensor_parallel(config, gta, chunks[0].tp_group.size())


def check_store(who: FixedMembers) -> None:
    """Refuse rounds by time of fixed replicas that have no store in common.

    Raises:
        LocalSGDConfigError: the default group has some of their ranks only.
    """
    import torch.distributed as dist

    world, needed = dist.get_world_size(), who.group.size * who.own.size
    if world < needed:
        raise LocalSGDConfigError(
            f"use_async=True: {who.group.size} replicas of {who.own.size} ranks meet in the store "
            f"of the default group, which has {world} ranks: call init_process_group for all "
            "replicas and leave sync_ranks at None, or set use_async=False"
        )


def check_in_step(when: BySteps, call: str, why: str) -> None:
    """Refuse a call where replicas count unlike steps.

    Raises:
        LocalSGDError: says why, and how to go on.
    """
    if not when.in_step:
        raise LocalSGDError(f"{call}: with use_async=True {why}")


def _check_tensor_parallel(config: LocalSGDConfig, gta: GTAConfig | None, ranks: int) -> None:
    """Refuse reductions that would part the copies of a parameter on tensor parallel ranks.

    Their other parameters differ. So a block of a codec has another scale on each of them, and a
    random mask is drawn by each.
    """
    if ranks == 1:
        return
    if config.codec != "none":
        raise LocalSGDConfigError(
            f"codec={config.codec!r}: with tensor_model_parallel_size={ranks} the ranks of a "
            'replica would round their copies of a layer norm unlike; set codec="none"'
        )
    if gta is not None and gta.sparsification_method in ("random", "rescaled_random"):
        raise LocalSGDConfigError(
            f"sparsification_method={gta.sparsification_method!r}: with "
            f"tensor_model_parallel_size={ranks} the ranks of a replica would keep unlike elements "
            'of their copies of a layer norm; set "magnitude"'
        )


def _wanted(chunks: Sequence[Any], optimizer: Any) -> Iterator[tuple[Any, str, Any, str]]:
    """Yield (holder, setting, the value that it must have, why)."""
    first, config = chunks[0], getattr(optimizer, "config", None)
    yield (
        first.config,
        "num_moe_experts",
        None,
        "experts have data parallel groups of their own, whose replicas are not known here",
    )
    yield (
        first.config,
        "calculate_per_token_loss",
        False,
        "tokens are counted over all replicas, so a replica's gradients would be too small",
    )
    yield (
        first.ddp_config,
        "use_megatron_fsdp",
        False,
        "its shards are not known here; use FSDP2 and holdfast.local_sgd.LocalSGD for that",
    )
    yield (
        config,
        "overlap_param_gather_with_optimizer_step",
        False,
        "the first chunk's parameters would be gathered before a round has written them",
    )
    if first.pp_group.size() > 1:
        yield (
            unwrap(first),
            "share_embeddings_and_output_weights",
            False,
            "the first and the last stage would sum the embedding's copies in unlike order",
        )
