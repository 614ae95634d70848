"""Directories of torch's `torch_checkpointing` library, read without it.

    metadata.pkl      how the tensors of items with a resharder are cut, and each rank's file
    <item>_<rank>.pt  a rank's state of an item, as torch.save writes it; a DTensor as its own part

The library unpickles both with all rights; here they are data.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignPart,
    ForeignTensor,
    to_json,
    whole,
)
from holdfast.flash.tools.formats.pickles import Opaque, Pickles, TensorRef, plain, replaced
from holdfast.flash.tools.formats.torch_file import TorchFile
from holdfast.flash.tools.formats.training_state import is_tensor_place, walk

if TYPE_CHECKING:
    import torch


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
        """Return True if a rank's own tensor has the box."""
        if self.exact:
            return shape == self.sizes
        ends = zip(self.local, self.sizes, shape, strict=False)
        return len(shape) == len(self.sizes) and all(at + n <= size for at, n, size in ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """The use of one dimension of a mesh."""

    size: int
    """Ranks along it."""
    dim: int | None
    """The tensor's dimension that it cuts; None: replicas."""
    split: int = 0
    """Parts that were cut before by later dimensions of the mesh; 0: an ordinary cut."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How one tensor was cut among some ranks."""

    dtype: str
    shape: Numbers
    ranks: Numbers
    boxes: Callable[[int], tuple[Box, ...]]
    """Returns a rank's boxes."""

    @classmethod
    def of(cls, packed: Mapping[str, Any], ranks: Iterable[int]) -> Self:
        """Return the state that torch_checkpointing wrote.

        Raises ValueError, KeyError or TypeError for what is damaged or unknown.
        """
        data, members = packed["data"], _numbers(ranks)
        dtype, shape = str(data["dtype"]).removeprefix("torch."), _numbers(data["global_shape"])
        if packed["type"] == "default_tensor_v1":
            listed = _listed_boxes(data, len(shape))
            return cls(dtype, shape, members, lambda _: listed)
        if packed["type"] == "DTensorShardingMetadata":
            placed = partial(_placed_box, shape, *_mesh(data, shape, members))
            return cls(dtype, shape, members, placed)
        raise ValueError(f"sharding of type {packed['type']!r} is not known")


def _mesh(
    data: Mapping[str, Any], shape: Numbers, ranks: Numbers
) -> tuple[Numbers, tuple[_Placement, ...]]:
    """Return a mesh's ranks in row-major order of its placements, and these."""
    mesh = data["mesh_spec"]
    members, sizes = _numbers(mesh["mesh_data"]), _numbers(mesh["mesh_shape"])
    if math.prod(sizes) != len(members) or sorted(members) != sorted(ranks):
        raise ValueError(f"a mesh {sizes} of ranks {members}, for ranks {ranks}")
    pairs = zip(data["placements"], sizes, strict=True)
    placements = tuple(_placement(one, size, len(shape)) for one, size in pairs)
    if fault := _strided_fault(shape, placements):
        raise ValueError(fault)
    return members, placements


def _placed_box(
    shape: Numbers, mesh: Numbers, placements: Sequence[_Placement], rank: int
) -> tuple[Box, ...]:
    """Return a rank's box."""
    offsets, sizes = [0] * len(shape), [*shape]
    left, cuts = mesh.index(rank), list[tuple[_Placement, int]]()
    for one in reversed(placements):
        left, at = divmod(left, one.size)
        cuts.insert(0, (one, at))
    # A strided cut is made within the ordinary cuts of its dimension, whatever their order.
    for one, at in sorted(cuts, key=lambda cut: bool(cut[0].split)):
        if one.dim is None:
            continue
        share = -(-sizes[one.dim] // one.size)
        begin = min(sizes[one.dim], share * at)
        offsets[one.dim] += begin
        sizes[one.dim] = min(share, sizes[one.dim] - begin)
    return (Box(tuple(offsets), tuple(sizes), (0,) * len(sizes)),)


def _listed_boxes(data: Mapping[str, Any], dims: int) -> tuple[Box, ...]:
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


METADATA: Final = "metadata.pkl"
_VERSION: Final = "2.0"
_FILE: Final = re.compile(r"(.+)_(\d+)\.pt")
_STATES: Final = ("model", "optimizer")
"""Items whose tensors are tensors of the training state; other items are extras."""
_FORMAT: Final = "_optimizer_state_format_version"
_DIFFER: Final = object()
_DTENSOR: Final = re.compile(r"torch\.distributed\.tensor(\._api)?\.DTensor")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A tensor or value of an item, as each rank has it."""

    path: Path
    """Keys in the item."""
    ranks: Mapping[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """An item's files, and how its tensors are cut."""

    name: str
    files: Mapping[int, TorchFile]
    cuts: Mapping[Path, tuple[Sharding, ...]] | None
    """None: it was saved without a resharder."""

    def leaves(self) -> Iterator[_Leaf]:
        """Yield what the ranks have; raises `ForeignError` where a name is on one side only."""
        found: dict[Path, dict[int, Any]] = {}
        for rank, file in self.files.items():
            is_state = self.name in _STATES
            state = file.state if is_state else {"extra": {self.name: file.state}}
            for path, value in walk((self.name,) if is_state else (), state):
                found.setdefault(path, {})[rank] = value
        for path in sorted({(self.name, *one) for one in self.cuts or ()} - {*found}, key=repr):
            raise ForeignError(f"{self.where}: {_text(path)} is in no file: copy files of one save")
        for path, ranks in found.items():
            yield _Leaf(path, ranks)

    @property
    def where(self) -> str:
        """Name the files in an error."""
        return self.files[0].path


def read(place: str, pickles: Pickles) -> Checkpoint:
    """Return a directory of the library; raises `ForeignError` naming file and tensor, OSError."""
    items, left = _items(place, _metadata(place, pickles), pickles)
    tensors, values = list[ForeignTensor](), dict[Path, Any]()
    for item in items:
        names = _parameters(item)
        for leaf in item.leaves():
            path = _renamed(leaf.path, names)
            if is_tensor_place(path) and _local(leaf.ranks[min(leaf.ranks)]) is not None:
                tensors.append(_tensor(item, leaf, path))
            elif path[-1] == _FORMAT:
                continue
            elif (found := _common(item, leaf, path)) is _DIFFER:
                left.append(f"{_text(path)}, which differs between ranks")
            else:
                values[path] = found
    step = values.get(("extra", "step"))
    ranks = max(len(item.files) for item in items)
    return Checkpoint(
        place=place,
        format="torch-checkpointing",
        framework="torch_checkpointing",
        layout=f"{len(items)} items of {ranks} {'rank' if ranks == 1 else 'ranks'}",
        tensors=tuple(tensors),
        values=values,
        step=step if isinstance(step, int) and step > 0 else None,
        notes=(f"left out: {', '.join(left[:5])}",) if left else (),
    )


def _metadata(place: str, pickles: Pickles) -> Mapping[str, Any]:
    file = f"{place}/{METADATA}"
    if not File(file).exists():
        return {}
    found = pickles.read(File(file).read_bytes(), file)
    if not isinstance(found, Mapping) or not isinstance(found.get("metadata"), Mapping):
        raise ForeignError(f"{file} has no list of items: copy it again")
    if found.get("version") != _VERSION:
        raise ForeignError(
            f"{file}: version {found.get('version')!r}; {_VERSION} is read: load and save it once "
            "more with torch_checkpointing 0.1"
        )
    return found


def _items(
    place: str, metadata: Mapping[str, Any], pickles: Pickles
) -> tuple[list[_Item], list[str]]:
    """Return the items, and the names of files that belong to none."""
    names = sorted(os.listdir(place))  # noqa: PTH208
    files: dict[str, dict[int, str]] = {}
    for match in filter(None, map(_FILE.fullmatch, names)):
        files.setdefault(match[1], {})[int(match[2])] = match[0]
    cut = (metadata.get("metadata") or {}).items()
    listed = {str(name): _listed(place, name, one, metadata) for name, one in cut}
    files |= {name: dict(paths) for name, (paths, _) in listed.items()}
    items = list[_Item]()
    for name, ranks in sorted(files.items()):
        for rank in range(max(1 + max(ranks), int(metadata.get("world_size") or 0))):
            if rank not in ranks or not File(place, ranks[rank]).is_file():
                missing = ranks.get(rank, f"{name}_{rank}.pt")
                raise ForeignError(f"{place}/{missing} is missing: copy the files of all ranks")
        opened = {rank: TorchFile(pickles, f"{place}/{ranks[rank]}") for rank in sorted(ranks)}
        cuts = listed[name][1] if name in listed else None
        items.append(_Item(name=name, files=opened, cuts=cuts))
    if not items:
        raise ForeignError(f"{place} has no <item>_<rank>.pt: copy the whole directory")
    taken = {METADATA, *(one for ranks in files.values() for one in ranks.values())}
    return items, [name for name in names if name not in taken]


def _listed(
    place: str, name: str, one: Any, metadata: Mapping[str, Any]
) -> tuple[dict[int, str], dict[Path, tuple[Sharding, ...]]]:
    """Return an item's file of each rank, and how its tensors are cut; raises `ForeignError`."""
    try:
        layouts = one["rank_to_layout_info"]
        if sorted(map(int, layouts)) != [*range(metadata["world_size"])]:
            raise ValueError(f"files of ranks {sorted(layouts)}, of {metadata['world_size']}")
        files = {int(rank): _file_of(name, int(rank), info) for rank, info in layouts.items()}
        cuts = {
            tuple(json.loads(path)): tuple(
                Sharding.of(group["sharding_metadata"], group["ranks"]) for group in groups
            )
            for path, groups in one["nested_path_to_metadata"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForeignError(f"{place}/{METADATA}: item {name}: {error!r}: copy it again") from error
    return files, cuts


def _file_of(name: str, rank: int, info: Any) -> str:
    if info is None:
        return f"{name}_{rank}.pt"
    path, kind = info["file_path"], info["serialization_format"]["type"]
    if not isinstance(path, str) or File(path).is_absolute() or ".." in File(path).parts:
        raise ValueError(f"{path!r} lies outside the directory")
    if kind != "TorchSerialization":
        raise ValueError(f"{path} is written by {kind}, and only TorchSerialization is read")
    return path


def _parameters(item: _Item) -> dict[Any, str]:
    """Return the names of an optimizer's parameters by their numbers, where it has them."""
    state = item.files[0].state
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    if item.name != "optimizer" or not isinstance(groups, list):
        return {}
    found = dict[Any, str]()
    for group in groups:
        if isinstance(group, Mapping) and "params" in group:
            found |= zip(group["params"], group.get("param_names") or (), strict=False)
    return found


def _renamed(path: Path, names: Mapping[Any, str]) -> Path:
    match path:
        case ("optimizer", "state", number, *more) if number in names:
            return ("optimizer", "state", names[number], *more)
        case _:
            return path


def _local(value: Any) -> TensorRef | None:
    """Return a tensor, or a DTensor's own part; None: it is neither."""
    if isinstance(value, Opaque) and _DTENSOR.fullmatch(value.name):
        value = (value.state or {}).get("_local_tensor")
    return value if isinstance(value, TensorRef) else None


def _tensor(item: _Item, leaf: _Leaf, path: Path) -> ForeignTensor:
    refs = {rank: _local(value) for rank, value in leaf.ranks.items()}
    first = refs[min(refs)]
    assert first is not None  # noqa: S101 - the caller looked
    cuts = _cuts(item, leaf, first)
    dtype, shape = cuts[0].dtype, cuts[0].shape
    parts: dict[tuple[Path, Path], ForeignPart] = {}
    for cut in cuts:
        if (cut.dtype, cut.shape) != (dtype, shape):
            raise ForeignError(f"{item.where}: ranks differ on dtype and shape of {_text(path)}")
        for rank in cut.ranks:
            ref = refs.get(rank)
            for box in cut.boxes(rank):
                if ref is None or ref.dtype != dtype or not box.fits(ref.size):
                    raise ForeignError(
                        f"{item.files[rank].path}: {_text(path)} is "
                        f"{'missing' if ref is None else f'{ref.dtype} {ref.size}'}, where "
                        f"{dtype} {box.sizes} is due: copy files of one save"
                    )
                if (box.offsets, box.sizes) not in parts:
                    parts[box.offsets, box.sizes] = _part(item.files[rank], ref, box, path)
    found = tuple(part for part in parts.values() if part.count or len(parts) == 1)
    if item.cuts is None and len(refs) > 1:
        copies = {rank: ref for rank, ref in refs.items() if ref}
        read = partial(_alike, item, copies, found[0], path)
        return whole(path, dtype, shape, found[0].where, read)
    return ForeignTensor(path=path, dtype=dtype, shape=shape, parts=found)


def _cuts(item: _Item, leaf: _Leaf, first: TensorRef) -> tuple[Sharding, ...]:
    if item.cuts is not None:
        if leaf.path[1:] not in item.cuts:
            raise ForeignError(
                f"{item.where}: {_text(leaf.path)} is not in {METADATA}: copy files of one save"
            )
        return item.cuts[leaf.path[1:]]
    if any(not isinstance(value, TensorRef) for value in leaf.ranks.values()):
        raise ForeignError(
            f"{item.where}: {_text(leaf.path)} is a DTensor's part, and no {METADATA} tells how it "
            "was cut: save with a resharder (ItemSpec(resharder=DefaultResharder()))"
        )
    everything = Box((0,) * len(first.size), first.size, (0,) * len(first.size))
    return (Sharding(first.dtype, first.size, tuple(sorted(leaf.ranks)), lambda _: (everything,)),)


def _part(file: TorchFile, ref: TensorRef, box: Box, path: Path) -> ForeignPart:
    where = f"{file.path}: {_text(path)}"
    reader = partial(_box, file, ref, box)
    return ForeignPart(offsets=box.offsets, sizes=box.sizes, where=where, read=reader)


def _box(file: TorchFile, ref: TensorRef, box: Box) -> torch.Tensor:
    values = file.tensor(ref)
    for dim, (begin, size) in enumerate(zip(box.local, box.sizes, strict=True)):
        values = values.narrow(dim, begin, size)
    return values.contiguous()


def _alike(
    item: _Item, refs: Mapping[int, TensorRef], part: ForeignPart, path: Path
) -> torch.Tensor:
    """Return a part's values if all ranks have them: without a resharder only replicas are read."""
    import torch

    values = part.read()
    for rank, ref in refs.items():
        if ref.size != part.sizes or not torch.equal(values, item.files[rank].tensor(ref)):
            raise ForeignError(
                f"{item.files[rank].path}: {_text(path)} differs from {part.where}, and no "
                f"{METADATA} tells how it was cut: save with a resharder"
            )
    return values


def _common(item: _Item, leaf: _Leaf, path: Path) -> Any:
    """Return the value that all ranks have, or `_DIFFER`."""
    found = [_value(item, rank, path, one) for rank, one in leaf.ranks.items()]
    return found[0] if len({json.dumps(to_json(one)) for one in found}) == 1 else _DIFFER


def _value(item: _Item, rank: int, path: Path, value: Any) -> Any:
    file = item.files[rank]
    if not plain(value, TensorRef):
        raise ForeignError(f"{file.path}: {_text(path)} has objects that are no data")
    return replaced(value, TensorRef, file.tensor)


def _text(path: Path) -> str:
    return ".".join(map(str, path))
