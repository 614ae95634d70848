"""Megatron's `dp_reshardable` optimizer state: flat buckets, whose parameters have no names.

    optimizer.distributed.dp_group_idx_G.gbuf_idx_B.dtype_D.bucket_idx_N.{param,exp_avg,exp_avg_sq}

A bucket has parameters of one model-parallel rank side by side, each from a multiple of 64 elements
on. Nothing says which. But `param` is the fp32 master, and rounded it is the weight, which the
model has under its name: so each place in a bucket is found by its first values, and the whole
master is compared when it is read. Two weights with the same values cannot be told apart, and a
place that is no weight's has no name: both are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.dcp import Directory
from holdfast.flash.tools.formats.foreign import ForeignError, ForeignTensor, Part, width

if TYPE_CHECKING:
    import torch

_BUCKET: Final = re.compile(r"(optimizer\..*dp_group_idx_(\d+)\..*bucket_idx_\d+)\.([a-z_0-9]+)")
MASTER: Final = "param"
KINDS: Final = (MASTER, "exp_avg", "exp_avg_sq")
_ALIGN: Final = 64
"""Elements; a parameter begins at a multiple of them."""
_HEAD: Final = 64
"""Elements that find a weight."""
REMEDY: Final = (
    "load it in Megatron with the same layout and save once with "
    "--dist-ckpt-optim-fully-reshardable, or take the model only (--model-only)"
)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A box of a weight: what one model-parallel rank has of it."""

    key: str
    number: int
    """Of the box."""
    dtype: str
    count: int
    head: bytes
    """Its first values."""


@dataclass(frozen=True, slots=True)
class _Place:
    bucket: str
    begin: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket of a model-parallel rank."""

    name: str
    group: int
    count: int
    starts: frozenset[int]
    """Where its pieces begin: parameters, padding, and what another data rank has."""


@dataclass(slots=True)
class Buckets:
    """Where each box of each weight has its state."""

    found: Directory
    weights: list[str]
    _weights: dict[bytes, list[_Weight]] = field(default_factory=dict)
    _places: dict[str, dict[int, _Place]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find them; raises `ForeignError` naming the bucket or the weights."""
        for key in self.weights:
            for number, count in self._boxes(key):
                one = self._weight(key, number, count)
                first = one.head[: width(one.dtype)]
                self._weights.setdefault(first, []).append(one)
        taken = dict[tuple[int, str, int], _Place]()
        for bucket in _buckets(self.found):
            for weight, begin in self._walk(bucket):
                place = _Place(bucket.name, begin)
                there = taken.setdefault((bucket.group, weight.key, weight.number), place)
                if there != place:
                    raise self._error(
                        f"{weight.key} has the values of two places, {there.begin} of "
                        f"{there.bucket} and {begin} of {bucket.name}"
                    )
                self._places.setdefault(weight.key, {}).setdefault(weight.number, place)
        for key, places in self._places.items():
            if len(places) != len(self._boxes(key)):
                raise self._error(f"{key} has optimizer state of a part of it only")

    def state(self, key: str, kind: str, path: Path) -> ForeignTensor | None:
        """Return a weight's master or moment under its name; None: it has no state."""
        if key not in self._places:
            return None
        weight, parts = self.found.tensors[key], list[Part]()
        for number, place in sorted(self._places[key].items()):
            offsets, sizes = weight.boxes[number]
            name = f"{place.bucket}.{kind}"
            reader = partial(self.found.flat, name, place.begin, math.prod(sizes))
            where = f"{self.found.place}: {name} at {place.begin}"
            parts.append(Part(offsets=offsets, sizes=sizes, where=where, read=reader))
        dtype = self.found.tensors[f"{place.bucket}.{kind}"].dtype
        return ForeignTensor(path=path, dtype=dtype, shape=weight.shape, parts=tuple(parts))

    def _boxes(self, key: str) -> list[tuple[int, int]]:
        """Return numbers and element counts of a weight's boxes, without empty ones."""
        counts = (math.prod(sizes) for _, sizes in self.found.tensors[key].boxes)
        return [(number, count) for number, count in enumerate(counts) if count]

    def _weight(self, key: str, number: int, count: int) -> _Weight:
        head = self.found.head(key, number, min(count, _HEAD))
        dtype = self.found.tensors[key].dtype
        return _Weight(key, number, dtype, count, _bits(head, dtype))

    def _walk(self, bucket: _Bucket) -> Iterator[tuple[_Weight, int]]:
        """Yield each weight of a bucket, and where it begins."""
        at = 0
        while at < bucket.count:
            if at % _ALIGN and at in bucket.starts:
                at += -at % _ALIGN  # padding
                continue
            one = self._at(bucket, at)
            yield one, at
            at += one.count

    def _at(self, bucket: _Bucket, begin: int) -> _Weight:
        """Return the weight at a place; raises `ForeignError` unless it is one and only one."""
        left = bucket.count - begin
        head = self.found.flat(f"{bucket.name}.{MASTER}", begin, min(left, _HEAD), checked=False)
        known = [one for one in self._alike(head) if one.count <= left]
        if len(known) > 1:
            known = [one for one in known if self._ends(bucket, begin, one)]
        if len(known) != 1:
            names = " and ".join(f"{one.key} (part {one.number})" for one in known[:3])
            why = f"the values of {names}" if known else "the values of no weight"
            raise self._error(f"the parameter at {begin} of {bucket.name} has {why}")
        return known[0]

    def _alike(self, head: torch.Tensor) -> Iterator[_Weight]:
        """Yield the weights that begin with the values, as far as these go."""
        for dtype in sorted({self.found.tensors[key].dtype for key in self.weights}):
            bits = _bits(head, dtype)
            for one in self._weights.get(bits[: width(dtype)], ()):
                if one.dtype == dtype and bits.startswith(one.head):
                    yield one

    def _ends(self, bucket: _Bucket, begin: int, one: _Weight) -> bool:
        """Tell whether all of a weight has the values of a place, where a piece ends with it."""
        end = begin + one.count
        if end != bucket.count and end not in bucket.starts:
            return False
        master = self.found.flat(f"{bucket.name}.{MASTER}", begin, one.count)
        weight = self.found.head(one.key, one.number, one.count)
        return _bits(master, one.dtype) == _bits(weight, one.dtype)

    def _error(self, text: str) -> ForeignError:
        return ForeignError(
            f"{self.found.place}: optimizer state by buckets (dp_reshardable) has no names, and "
            f"{text}, so it is not known whose it is: {REMEDY}"
        )


def is_bucket(name: str) -> bool:
    """Tell whether a name is that of optimizer state in a bucket."""
    return _BUCKET.fullmatch(name) is not None


def _buckets(found: Directory) -> list[_Bucket]:
    kinds: dict[str, set[str]] = {}
    groups = dict[str, int]()
    for match in filter(None, map(_BUCKET.fullmatch, found.tensors)):
        kinds.setdefault(match[1], set()).add(match[3])
        groups[match[1]] = int(match[2])
    made = list[_Bucket]()
    for name, there in sorted(kinds.items()):
        if there != {*KINDS}:
            raise ForeignError(
                f"{found.place}/.metadata: {name} has {', '.join(sorted(there))}, where "
                f"{', '.join(KINDS)} of an Adam are due: {REMEDY}"
            )
        shapes = {found.tensors[f"{name}.{kind}"].shape for kind in KINDS}
        for kind in KINDS:
            found.tensor(f"{name}.{kind}", (name, kind)).check()
        if len(shapes) != 1 or len(min(shapes)) != 1:
            raise ForeignError(
                f"{found.place}/.metadata: {name} has shapes {shapes}: copy it again"
            )
        one = found.tensors[f"{name}.{MASTER}"]
        starts = frozenset(offsets[0] for offsets, _ in one.boxes)
        made.append(_Bucket(name, groups[name], one.shape[0], starts))
    return made


def _bits(values: torch.Tensor, dtype: str) -> bytes:
    """Return values, rounded to a dtype, as bytes."""
    import torch

    rounded = values.to(getattr(torch, dtype)).contiguous().view(-1)
    return rounded.view(torch.uint8).numpy().tobytes()
