"""Makes the sketches of a training state, with which a commit compares the ranks.

Of each tensor up to 64 elements are sampled, with one transfer for each device. Of boxes the
samples lie in cells, a few elements at places that follow from the global shape alone: ranks that
cut a tensor otherwise have the same cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from holdfast.flash.memory.replica_check import ENTRY_BYTES, entry, head
from holdfast.flash.trainer.leaves import Leaves, TensorLeaf, is_plain

if TYPE_CHECKING:
    import torch


SAMPLES: Final = 64
CELL: Final = 8
"""Samples of a cell, neighbours in the last dimension; a global tensor has up to 8 cells."""


@dataclass(frozen=True, slots=True)
class SampleView:
    """The places of a tensor's samples, as long as its storage and its strides stay."""

    values: torch.Tensor
    """The samples; with `places`, the tensor that has them."""
    places: tuple[torch.Tensor, ...] | None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensor."""
        return self.values.dtype

    @property
    def is_exact(self) -> bool:
        """True if the samples are whole numbers of more than 8 bits, or truth values."""
        return _is_exact(self.dtype)

    def picked(self) -> torch.Tensor:
        """Return the present samples, as one row of real numbers."""
        import torch

        found = self.values if self.places is None else self.values[self.places]
        if found.is_complex():
            found = torch.view_as_real(found.resolve_conj())[:, 0]
        if found.dtype in _joined():
            return found
        return found.to(torch.int64 if self.is_exact else torch.float64)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of views, by their numbers."""

    numbers: torch.Tensor
    """A row of 64 for each view, on the CPU, filled up with zeros."""
    exact: dict[int, list[int]]
    """Samples of exact views; their rows of `numbers` are zeros."""


def view_of(values: torch.Tensor) -> SampleView | None:
    """Return the view of a plain tensor; None if torch cannot read its type.

    The places depend on the shape alone, not on strides.
    """
    import torch

    values = values.detach()
    count = values.numel()
    apart = max(1, count // SAMPLES) | 1  # odd: not one column of a matrix
    if values.is_contiguous():
        return _unless_unreadable(SampleView(values.view(-1)[::apart][:SAMPLES], None))
    flat = torch.arange(0, count, apart, device=values.device)[:SAMPLES]
    return _unless_unreadable(SampleView(values, torch.unravel_index(flat, values.shape)))


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
) -> tuple[SampleView | None, tuple[tuple[int, ...], ...]]:
    """Return the view of the cells that a box has whole, and their first elements.

    None: it has none, or torch cannot read its type.
    """
    if not shape:  # a number is a row of one
        values, shape, offsets = values.view(1), (1,), (0,)
    cells, places = _cells_in(shape, offsets, tuple(values.shape))
    if places is None:
        return None, ()
    view = SampleView(values.detach(), places.to(values.device).unbind())
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


def _unless_unreadable(view: SampleView) -> SampleView | None:
    if view.dtype not in _joined():
        try:
            view.picked()
        except NotImplementedError:  # of types with less than a byte for each element, say
            return None
    return view


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
    """Return True if equal data has equal numbers: 8 bits may be a rounded float's."""
    import torch

    if dtype is torch.bool:
        return True
    is_float = dtype.is_floating_point or dtype.is_complex
    return not is_float and dtype.itemsize > 1


def read(views: Sequence[SampleView]) -> Samples:
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


_SIGNS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""The bits of each number are the signs of one sum; any three without a pattern would do."""
_FINE: Final = 1e-3
_COARSE: Final = 0.25
"""Relative distance up to which ranks count as equal. Kernels of different machines round
differently: a millionth in float32, some hundredths in 16 bits and less. Unrelated values are at a
distance of 1 and more."""
_SMALL: Final = 1e-12
"""Size from which a single number is compared by its ratio; below by its difference."""
_EACH: Final = 3.6e-5
"""Tolerance of single numbers: of one around 1 a thousandth is this part of the norm."""
_MOST_PARTS: Final = 4096
"""Most parts of one value that are looked at."""
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Compared:
    """A tensor; other ranks may have the same box of it."""

    leaf: TensorLeaf
    offsets: tuple[int, ...]


def room_for(leaves: Leaves) -> int:
    """Return the bytes that the sketches of a state take at most.

    A value may have three, a tensor of which ranks have boxes one for each cell.
    """
    boxes = {leaf.name for leaf in leaves.tensors if leaf.box is not None}
    cells = SAMPLES // CELL * len(boxes)
    return ENTRY_BYTES * (len(leaves.tensors) + cells + 3 * len(leaves.values))


class Sketcher:
    """Makes the sketches of the tensors of one plan, and of values."""

    def __init__(self, tensors: Sequence[Compared]) -> None:
        """tensors: their storages and strides must stay."""
        self._whole: list[_Sketched] = []
        self._cells: list[_Sketched] = []
        """The cells of each box."""
        self._unread: list[bytes] = []
        """Sketches of tensors that torch cannot read: type and shape."""
        for one in tensors:
            self._add(one)

    def _add(self, one: Compared) -> None:
        tensor: Any = one.leaf.tensor
        values: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
        if one.leaf.box is None:
            kind, view, shape = self._whole, view_of(values), tuple(tensor.shape)
            boxes = [f"{one.offsets} {tuple(values.shape)}"]
        else:
            kind, shape = self._cells, one.leaf.box.shape
            view, places = view_of_cells(values, shape, one.offsets)
            boxes = [f"{at}" for at in places]
        texts = [_Text(one.leaf.name, box, f"{values.dtype} {shape}") for box in boxes]
        if view is None:
            self._unread += [entry(text.head(_FINE), 0.0, (0.0, 0.0, 0.0)) for text in texts]
        else:
            kind.append((view, [_head_of(text, view) for text in texts]))

    def sketch(self, values: Mapping[str, Any]) -> bytes:
        """Return the present sketches, and those of values by name."""
        views = [view for view, _ in (*self._whole, *self._cells)]
        parted = [(name, [*_parted(value, views)]) for name, value in values.items()]
        samples = read(views)
        found = [
            *self._unread,
            *_entries(self._cells, samples, len(self._whole), CELL),
            *_entries(self._whole, samples, 0, SAMPLES),
        ]
        for name, parts in parted:
            found += _of_value(name, parts, samples)
        return b"".join(found)


def _entries(kind: list[_Sketched], samples: Samples, begin: int, width: int) -> Iterator[bytes]:
    """Yield a sketch of each so many samples of views, whose rows begin at a number."""
    sums = _sums(samples.numbers[begin : begin + len(kind)].reshape(-1, width))
    for number, (_, texts) in enumerate(kind):
        exact = samples.exact.get(begin + number, ())
        for at, text in enumerate(texts):
            norm, *three = sums[number * (SAMPLES // width) + at]
            own = exact[at * width : (at + 1) * width]
            first = text if isinstance(text, bytes) else text.head(_FINE, own)
            yield entry(first, norm, (three[0], three[1], three[2]))


def _head_of(text: _Text, view: SampleView) -> bytes | _Text:
    """Return the head of a sketch; of whole numbers it has the samples too."""
    if view.is_exact:
        return text
    return text.head(_FINE if _is_fine(view.dtype) else _COARSE)


_Sketched = tuple[SampleView, list["bytes | _Text"]]
"""A view, and the head of each of its sketches."""


@dataclass(frozen=True, slots=True)
class _Text:
    name: str
    box: str
    exact: str

    def head(self, tolerance: float, numbers: Sequence[int] = ()) -> bytes:
        exact = f"{self.exact} {numbers}" if numbers else self.exact
        return head(self.name, self.box, exact, tolerance)


@cache
def _is_fine(dtype: torch.dtype) -> bool:
    import torch

    return dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)


def _signs() -> torch.Tensor:
    """Return the signs of each sample in the three sums."""
    import torch

    rows = [[1.0 if bits >> at & 1 else -1.0 for bits in _SIGNS] for at in range(SAMPLES)]
    return torch.tensor(rows, dtype=torch.float64)


def _sums(numbers: torch.Tensor) -> list[list[float]]:
    """Return the norm of each row, and its sums; a number beyond float32 is infinite."""
    import torch

    norms = numbers.square().sum(dim=1, keepdim=True).sqrt()
    sums = torch.cat([norms, numbers @ _signs()[: numbers.shape[1]]], dim=1)
    found: list[list[float]] = sums.to(torch.float32).tolist()
    return found


_Part = str | float | tuple[int, SampleView]
"""Part of a value: text that must be equal, a float, or a tensor as row and view."""


def _parted(value: Any, views: list[SampleView]) -> Iterator[_Part]:
    """Take a value apart; the views of its tensors are added to `views`."""
    for part in _parts(value):
        if isinstance(part, float):
            yield part
        elif not is_plain(part):
            yield _exact(part)
        else:
            yield f"{part.dtype} {tuple(part.shape)}"
            if (view := view_of(part)) is not None:
                views.append(view)
                yield len(views) - 1, view


def _of_value(name: str, parts: Sequence[_Part], samples: Samples) -> Iterator[bytes]:
    """Return the sketch of a value, and more if it has single floats or some of few bits.

    Tensors are compared as a whole, single floats each by its size: a time of 1e9 s hides no loss.
    """
    exact = [part for part in parts if isinstance(part, str)]
    single, fine, coarse = list[float](), list[float](), list[float]()
    for part in parts:
        if isinstance(part, float):
            single.append(part)
        if not isinstance(part, tuple):
            continue
        row, view = part
        if view.is_exact:
            exact.append(str(samples.exact[row]))
        elif not _is_fine(view.dtype):
            coarse.extend(samples.numbers[row].tolist())
        elif view.places is None and view.values.numel() == 1:
            single.append(float(samples.numbers[row, 0]))
        else:
            fine.extend(samples.numbers[row].tolist())
    text = " ".join((*exact, str(len(single)), str(len(fine)), str(len(coarse))))
    yield entry(head(name, "", text, _FINE), *_of_numbers(fine))
    if single:
        sizes = [math.asinh(number / _SMALL) for number in single]
        yield entry(head(name, "single", "", _EACH), *_of_numbers(sizes))
    if coarse:
        yield entry(head(name, "few bits", "", _COARSE), *_of_numbers(coarse))


def _of_numbers(numbers: Sequence[float]) -> tuple[float, tuple[float, float, float]]:
    """Return the norm of any count of numbers, and their sums."""
    import torch

    values = torch.tensor(numbers, dtype=torch.float64)
    at = torch.arange(len(values))
    signs = _signs()[(at + at // SAMPLES) % SAMPLES]  # other signs for another tensor's samples
    found = torch.cat([values.square().sum().sqrt()[None], values @ signs])
    norm, *three = found.to(torch.float32).tolist()
    return norm, (three[0], three[1], three[2])


def _exact(part: Any) -> str:
    """Return the text of a part that must be equal; for an opaque object, its class."""
    kind = type(part)
    if isinstance(part, str | bytes | int | None):
        return f"{kind.__name__} {part!r}"
    size = f" {len(part)}" if isinstance(part, dict | list | tuple | set) else ""
    return f"{kind.__name__}{size}"


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts of a value, in an order that does not depend on the process.

    An object that stands in several places is yielded in each: equal values of another rank may be
    several objects. What lies within itself is not entered again.
    """
    left: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    for _ in range(_MOST_PARTS):
        while left and (one := next(left[-1][1], _NOTHING)) is _NOTHING:
            left.pop()
        if not left:
            return
        yield one
        within = isinstance(one, dict | list | tuple) and all(id(one) != up for up, _ in left)
        if within:
            left.append((id(one), _inside(one)))


def _inside(one: Any) -> Iterator[Any]:
    if not isinstance(one, dict):
        return iter(one)
    if len(one) > _MOST_PARTS:
        return iter(())  # their order may differ from rank to rank
    pairs = sorted(one.items(), key=lambda pair: repr(pair[0]))
    return iter([part for pair in pairs for part in pair])
