"""Boxes of a global tensor on a rank, from the sharding that was saved with it.

Belongs here: a DTensor's mesh and placements, and listed boxes, as numbers. Does not belong here:
files, tensors; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a global tensor, and where it begins in a rank's own tensor."""

    offsets: Numbers
    sizes: Numbers
    local: Numbers
    exact: bool = True
    """The rank's own tensor has nothing else."""

    def fits(self, shape: Numbers) -> bool:
        """Tell whether a rank's own tensor has the box."""
        if self.exact:
            return shape == self.sizes
        ends = zip(self.local, self.sizes, shape, strict=False)
        return len(shape) == len(self.sizes) and all(at + n <= size for at, n, size in ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """What one dimension of a mesh does."""

    size: int
    """Ranks along it."""
    dim: int | None
    """The tensor's dimension that it cuts; None: replicas."""
    split: int = 0
    """Parts that were cut before by later dimensions of the mesh; 0: an ordinary cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How one tensor was cut among some ranks."""

    dtype: str
    shape: Numbers
    ranks: Numbers
    mesh: Numbers = ()
    """Ranks in row-major order of the placements."""
    placements: tuple[_Placement, ...] = ()
    listed: tuple[Box, ...] | None = None
    """Boxes of each of the ranks; None: they follow from the placements."""

    @classmethod
    def whole(cls, dtype: str, shape: Numbers, ranks: Numbers) -> Self:
        """Return the sharding of a tensor that each rank has as a whole."""
        replicas = (_Placement(size=len(ranks), dim=None),)
        return cls(dtype=dtype, shape=shape, ranks=ranks, mesh=ranks, placements=replicas)

    @classmethod
    def of(cls, packed: Mapping[str, Any], ranks: Iterable[int]) -> Self:
        """Return what torch_checkpointing wrote.

        Raises ValueError, KeyError or TypeError for what is damaged or unknown.
        """
        data = packed["data"]
        common: dict[str, Any] = {
            "dtype": str(data["dtype"]).removeprefix("torch."),
            "shape": _numbers(data["global_shape"]),
            "ranks": _numbers(ranks),
        }
        if packed["type"] == "default_tensor_v1":
            return cls(**common, listed=_listed(data, len(common["shape"])))
        if packed["type"] != "DTensorShardingMetadata":
            raise ValueError(f"sharding of type {packed['type']!r} is not known")
        mesh = data["mesh_spec"]
        members, sizes = _numbers(mesh["mesh_data"]), _numbers(mesh["mesh_shape"])
        if math.prod(sizes) != len(members) or sorted(members) != sorted(common["ranks"]):
            raise ValueError(f"a mesh {sizes} of ranks {members}, for ranks {common['ranks']}")
        pairs = zip(data["placements"], sizes, strict=True)
        placements = tuple(_placement(one, size, len(common["shape"])) for one, size in pairs)
        if fault := _strided_fault(common["shape"], placements):
            raise ValueError(fault)
        return cls(**common, mesh=members, placements=placements)

    def boxes(self, rank: int) -> tuple[Box, ...]:
        """Return a rank's boxes."""
        if self.listed is not None:
            return self.listed
        offsets, sizes = [0] * len(self.shape), [*self.shape]
        at = dict(zip(range(len(self.placements)), self._coordinate(rank), strict=True))
        # A strided cut is made within the ordinary cuts of its dimension, whatever their order.
        order = sorted(at, key=lambda number: bool(self.placements[number].split))
        for number in order:
            one = self.placements[number]
            if one.dim is None:
                continue
            share = -(-sizes[one.dim] // one.size)
            begin = min(sizes[one.dim], share * at[number])
            offsets[one.dim] += begin
            sizes[one.dim] = min(share, sizes[one.dim] - begin)
        return (Box(tuple(offsets), tuple(sizes), (0,) * len(sizes)),)

    def _coordinate(self, rank: int) -> list[int]:
        left, found = self.mesh.index(rank), list[int]()
        for one in reversed(self.placements):
            left, at = divmod(left, one.size)
            found.append(at)
        return found[::-1]


def _listed(data: Mapping[str, Any], dims: int) -> tuple[Box, ...]:
    kinds = (data[key] for key in ("global_offsets", "local_sizes", "local_offsets"))
    boxes = tuple(
        Box(_numbers(offsets), _numbers(sizes), _numbers(local), exact=False)
        for offsets, sizes, local in zip(*kinds, strict=True)
    )
    if any(len(part) != dims for box in boxes for part in (box.offsets, box.sizes, box.local)):
        raise ValueError(f"boxes of other than {dims} dimensions")
    return boxes


def _placement(one: Mapping[str, Any], size: int, dims: int) -> _Placement:
    if one["type"] == "Replicate":
        return _Placement(size=size, dim=None)
    if one["type"] not in ("Shard", "StridedShard") or not 0 <= one["dim"] < dims:
        raise ValueError(f"placement {one!r} is not known")
    split = one["split_factor"] if one["type"] == "StridedShard" else 0
    return _Placement(size=size, dim=one["dim"], split=split)


def _numbers(values: Iterable[int]) -> Numbers:
    found: tuple[Any, ...] = tuple(values)
    if not all(isinstance(one, int) and one >= 0 for one in found):
        raise ValueError(f"{found!r} where numbers are due")
    return found


def _strided_fault(shape: Sequence[int], placements: Sequence[_Placement]) -> str:
    """Return the reason why strided cuts leave no box; empty: they do."""
    for number, one in enumerate(placements):
        if not one.split or one.dim is None:
            continue
        later = [other.size for other in placements[number + 1 :] if other.dim == one.dim]
        before = [other for other in placements[:number] if other.dim == one.dim]
        if before or math.prod(later) != one.split or shape[one.dim] % (one.split * one.size):
            return (
                f"a strided cut of {shape[one.dim]} into {one.size} within {one.split} is not read"
            )
    return ""
