"""Puts tensors together from what is stored of them: first all copies are planned, then they run.

A box of a tensor is filled from the boxes that overlap it, so the world that saved it and any other
one take the same path. Does not belong here: which tensors are filled, and whether (`restoring`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.flash.copying import Piece, Pieces
from holdfast.flash.planning import Local
from holdfast.flash.saving import is_lazy, is_on_gpu
from holdfast.flash.stored import Part, Stored
from holdfast.flash.table import Box, overlap
from holdfast.flash.targets import narrow, values_of

if TYPE_CHECKING:
    import torch


class Filler:
    """The copies of one restore."""

    def __init__(self, found: Stored) -> None:
        """Take what is stored."""
        self._found = found
        self._pieces: list[Piece] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._uploads: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Into GPUs, without gaps on either side."""
        self._kept: list[Any] = []
        self.wanted: dict[tuple[int, int], int] = {}
        """What is to be fetched before `copy`, by rank and index of the item: its bytes."""
        self.wrong: list[str] = []
        """Why what cannot be filled cannot."""

    def fill(self, name: str, local: Local) -> bool:
        """Plan the copies into one local tensor, or note why they cannot be; False then."""
        values = local.values
        parts = self._found.tensors.get(name)
        if parts is None:
            self.wrong.append(f"{name} is not in the checkpoint")
            return False
        dtype = str(values.dtype).removeprefix("torch.")
        there = (parts[0].item.dtype, parts[0].item.shape)
        if there != (dtype, local.shape):
            self.wrong.append(f"{name} is {dtype} {local.shape}, in the checkpoint {there}")
            return False
        if not values.numel():
            return True
        if any(
            size > 1 and not step for size, step in zip(values.shape, values.stride(), strict=True)
        ):
            self.wrong.append(
                f"{name} is expanded: its elements share memory (strides {values.stride()}). "
                "Replace it by its clone() before load()"
            )
            return False
        wanted: Box = (local.offsets, tuple(values.shape))
        found = _tiling(parts, wanted, values.numel())
        covered = _covered(found)
        if covered != values.numel():
            self.wrong.append(f"{name}: {covered} of {values.numel()} elements are stored")
            return False
        for part, common in found:
            self._plan(part, common, local)
        return True

    def are_one(self, first: str, name: str) -> bool:
        """Tell whether two names of one tensor here stand for equal values, or note that not.

        What another node lends is not here yet: it is taken to be as the state is.
        """
        pairs = zip(*(self._found.tensors.get(one, ()) for one in (first, name)), strict=False)
        if all(_is_equal(one, other) for one, other in pairs):
            return True
        self.wrong.append(
            f"{first} and {name} are one tensor here, and two with other values in the checkpoint"
        )
        return False

    def _plan(self, part: Part, common: Box, local: Local) -> None:
        item = part.item
        if part.lent is not None:
            self.wanted[part.lent] = item.length
        source = narrow(values_of(item, part.memory, local.values.dtype), common, item.offsets)
        to = narrow(local.values, common, local.offsets)
        self._kept.append(source)
        whole = to.is_contiguous() and source.is_contiguous() and not is_lazy(to)
        if whole and is_on_gpu(to):
            self._uploads.append((to, source))
        elif whole and to.device.type == "cpu":
            self._pieces.append(Piece(to.data_ptr(), source.data_ptr(), to.nbytes))
        else:
            self._copies.append((to, source))

    def copy(self, threads: int) -> None:
        """Do all that was planned."""
        import torch

        with torch.inference_mode():  # in which tensors of either mode may be written
            for to, source in self._copies:
                to.copy_(source)
        Pieces(self._pieces).copy(threads)
        if self._uploads:
            _upload(self._uploads, threads)


def _is_equal(one: Part, other: Part) -> bool:
    """Tell whether two parts have the same bytes, as far as they are here and alike."""
    ours, theirs = one.item, other.item
    form = (ours.box, ours.dtype, one.lent is None and other.lent is None)
    if form != (theirs.box, theirs.dtype, True):
        return True
    if one.memory is other.memory and ours.payload == theirs.payload:
        return True
    views = [memoryview(part.memory).cast("B") for part in (one, other)]
    begins = ours.payload, theirs.payload
    mine, its = (view[at : at + ours.size] for view, at in zip(views, begins, strict=True))
    return bool(mine == its)


def _tiling(parts: list[Part], wanted: Box, size: int) -> list[tuple[Part, Box]]:
    """Return parts that fill a box of so many elements; others where there is no such choice.

    What lies in memory here goes first. Else files tile exactly, and so do the files and tails of a
    node that has everything.
    """
    near = [part for part in parts if part.near]
    files = [part for part in parts if not part.item.tail]
    choices = (_overlapping(kind, wanted) for kind in (near, files, parts))
    found: list[tuple[Part, Box]] = []
    for found in choices:
        if _covered(found) == size:
            break
    return found


def _overlapping(parts: Iterable[Part], wanted: Box) -> list[tuple[Part, Box]]:
    """Return the parts with an element of a box, and what they have of it; each box once."""
    found: dict[Box, tuple[Part, Box]] = {}
    for part in parts:
        common = overlap(part.item.box, wanted)
        if common is not None:
            found.setdefault(part.item.box, (part, common))
    return list(found.values())


def _covered(found: Iterable[tuple[Part, Box]]) -> int:
    return sum(math.prod(common[1]) for _, common in found)


def _upload(pairs: list[tuple[torch.Tensor, torch.Tensor]], threads: int) -> None:
    """Copy into GPUs; only here anything of CUDA is touched."""
    import torch

    from holdfast.flash.upload import upload

    upload(torch.cuda, pairs, threads)
