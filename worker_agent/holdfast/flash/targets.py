"""Tensors that a restore reads from and writes to: views of an image, and what an optimizer has.

Which of them overlap, and whether a checkpoint fits, is `restoring`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.flash.table import Box, TensorItem

if TYPE_CHECKING:
    import torch


def values_of(item: TensorItem, memory: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of an item as a view of the image."""
    import torch

    count = math.prod(item.sizes)
    values = torch.frombuffer(memory, dtype=dtype, count=count, offset=item.payload)
    return values.view(item.sizes)


def narrow(tensor: torch.Tensor, box: Box, offsets: Sequence[int]) -> torch.Tensor:
    """Return the part of a tensor that begins at `offsets` which lies in a box of the whole."""
    for dim, (begin, size) in enumerate(zip(*box, strict=True)):
        tensor = tensor.narrow(dim, begin - offsets[dim], size)
    return tensor


def is_like(
    here: Any, item: TensorItem, dtype: torch.dtype, device: torch.device, like: Any
) -> bool:
    """Tell whether what an optimizer has is what would be made anew, like `like` if that is one."""
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(here, torch.Tensor) or here.requires_grad:
        return False
    if (tuple(here.shape), here.dtype, here.device) != (item.shape, dtype, device):
        return False
    if like is None or not isinstance(like, DTensor):
        wanted = (torch.empty(item.shape, device="meta") if like is None else like).stride()
        return type(here) is torch.Tensor and here.stride() == wanted
    return (
        isinstance(here, DTensor)
        and here.device_mesh == like.device_mesh
        and here.placements == like.placements
    )


def new_like(item: TensorItem, here: Any) -> torch.Tensor:
    """Return a new tensor for a stored setting, beside the one that is there."""
    import torch

    device = here.device if isinstance(here, torch.Tensor) else "cpu"
    return torch.empty(item.shape, dtype=getattr(torch, item.dtype), device=device)
