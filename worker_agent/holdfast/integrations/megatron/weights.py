"""Weights of the model after a change of the masters outside the optimizer's step.

Belongs here: rounding of masters into weights, and the gather of weights among data parallel ranks.
Does not belong here: where the masters are (`owned_ranges`), who changes them.
"""

from __future__ import annotations

from typing import Any

from holdfast.integrations.megatron.owned_ranges import Owned, optimizers_of


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
