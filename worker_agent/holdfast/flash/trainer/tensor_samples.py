"""Takes samples of tensors: up to 64 elements of each, with one transfer for each device.

Does not belong here: the sketches made of them (`replica_sketches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

SAMPLES: Final = 64


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
    view = View(found, places, values.dtype, _is_exact(values.dtype))
    return view if values.dtype in _joined() or _is_readable(view) else None


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
