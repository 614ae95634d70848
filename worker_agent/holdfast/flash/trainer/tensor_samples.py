"""Takes samples of tensors: up to 64 elements of each, with one transfer for each device.

Of boxes the samples lie in cells, a few elements at places that follow from the global shape alone:
ranks that cut a tensor otherwise have the same cells.

Does not belong here: the sketches made of them (`replica_sketches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

if TYPE_CHECKING:
    import torch

SAMPLES: Final = 64
CELL: Final = 8
"""Samples of a cell, neighbours in the last dimension; a global tensor has up to 8 cells."""


@dataclass(frozen=True, slots=True)
class View:
    """The places of a tensor's samples, as long as its storage and its strides stay."""

    values: torch.Tensor
    """The samples; with `places`, the tensor that has them."""
    places: tuple[torch.Tensor, ...] | None
    dtype: torch.dtype
    """Type of the tensor."""
    is_exact: bool
    """The samples are whole numbers of more than 8 bits, or truth values."""

    def picked(self) -> torch.Tensor:
        """Return the present samples, as one row of real numbers."""
        import torch

        found = self.values if self.places is None else self.values[self.places]
        if found.is_complex():
            found = torch.view_as_real(found.resolve_conj())[:, 0]
        return found if found.dtype in _joined() else found.to(self.target)

    @property
    def target(self) -> torch.dtype:
        """Type that holds any sample."""
        import torch

        return torch.int64 if self.is_exact else torch.float64


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of views, by their numbers."""

    numbers: torch.Tensor
    """A row of 64 for each view, on the CPU, filled up with zeros."""
    exact: dict[int, list[int]]
    """Samples of exact views; their rows of `numbers` are zeros."""


def view_of(values: torch.Tensor) -> View | None:
    """Return the view of a plain tensor; None if torch cannot read its type.

    The places depend on the shape alone, not on strides.
    """
    import torch

    values = values.detach()
    count = values.numel()
    apart = max(1, count // SAMPLES) | 1  # odd: not one column of a matrix
    places: tuple[torch.Tensor, ...] | None = None
    if values.is_contiguous():
        found = values.view(-1)[::apart][:SAMPLES]
    else:
        flat = torch.arange(0, count, apart, device=values.device)[:SAMPLES]
        found, places = values, torch.unravel_index(flat, values.shape)
    return _unless_unreadable(View(found, places, values.dtype, _is_exact(values.dtype)))


@cache
def cells_of(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the first element of each cell of a global tensor: one at random in each part."""
    runs = -(-shape[-1] // CELL)
    every = prod(shape[:-1]) * runs
    count = min(every, SAMPLES // CELL)
    found = []
    for number in range(count):
        begin, end = every * number // count, every * (number + 1) // count
        row, run = divmod(begin + crc32(b"%d" % number) % (end - begin), runs)
        place = [run * CELL]
        for size in reversed(shape[:-1]):
            row, at = divmod(row, size)
            place.insert(0, at)
        found.append(tuple(place))
    return tuple(found)


def view_of_cells(
    values: torch.Tensor, shape: tuple[int, ...], offsets: tuple[int, ...]
) -> tuple[View | None, tuple[tuple[int, ...], ...]]:
    """Return the view of the cells that a box has whole, and their first elements.

    None: it has none, or torch cannot read its type.
    """
    if not shape:  # a number is a row of one
        values, shape, offsets = values.view(1), (1,), (0,)
    cells, places = _cells_in(shape, offsets, tuple(values.shape))
    if places is None:
        return None, ()
    inner = places.to(values.device).unbind()
    view = View(values.detach(), inner, values.dtype, _is_exact(values.dtype))
    return _unless_unreadable(view), cells


@lru_cache(4096)
def _cells_in(
    shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], torch.Tensor | None]:
    """Return the cells in a box, and the places of their samples there by dimension.

    A cell at the end of a row has its last element several times.
    """
    import torch

    ends = [at + size for at, size in zip(offsets, sizes, strict=True)]
    found, places = list[tuple[int, ...]](), list[list[int]]()
    for cell in cells_of(shape):
        last = min(cell[-1] + CELL, shape[-1]) - 1
        if all(a >= at for a, at in zip(cell, offsets, strict=True)) and all(
            a < end for a, end in zip((*cell[:-1], last), ends, strict=True)
        ):
            found.append(cell)
            places += [[*cell[:-1], min(cell[-1] + at, last)] for at in range(CELL)]
    if not found:
        return (), None
    return tuple(found), (torch.tensor(places) - torch.tensor(offsets)).t().contiguous()


def _unless_unreadable(view: View) -> View | None:
    return view if view.dtype in _joined() or _is_readable(view) else None


def _is_readable(view: View) -> bool:
    try:
        view.picked()
    except NotImplementedError:  # of types with less than a byte for each element, say
        return False
    return True


@cache
def _joined() -> frozenset[torch.dtype]:
    """Return the types that torch joins on all devices; others are converted one by one."""
    import torch

    return frozenset(
        (
            *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
        )
    )


@cache
def _is_exact(dtype: torch.dtype) -> bool:
    """Tell whether equal data has equal numbers: 8 bits may be a rounded float's."""
    import torch

    if dtype is torch.bool:
        return True
    is_float = dtype.is_floating_point or dtype.is_complex
    return not is_float and dtype.itemsize > 1


def read(views: Sequence[View]) -> Samples:
    """Return the samples of all views."""
    import torch

    groups: dict[tuple[Any, bool], dict[torch.dtype, list[tuple[int, torch.Tensor]]]] = {}
    for row, view in enumerate(views):
        picked = view.picked()
        group = groups.setdefault((picked.device, view.is_exact), {})
        group.setdefault(picked.dtype, []).append((row, picked))
    samples = Samples(torch.zeros(len(views), SAMPLES, dtype=torch.float64), {})
    for (_, is_exact), by_type in groups.items():
        target = torch.int64 if is_exact else torch.float64
        joined = [torch.cat([one for _, one in rows]).to(target) for rows in by_type.values()]
        flat = torch.cat(joined).cpu()
        rows = [row for rows in by_type.values() for row, _ in rows]
        counts = [one.numel() for rows in by_type.values() for _, one in rows]
        if is_exact:
            parts = (part.tolist() for part in flat.split(counts))
            samples.exact.update(zip(rows, parts, strict=True))
        else:
            has = torch.arange(SAMPLES) < torch.tensor(counts)[:, None]
            filled = samples.numbers.new_zeros(len(rows), SAMPLES).masked_scatter_(has, flat)
            samples.numbers[torch.tensor(rows)] = filled
    return samples
