"""Images of a version, and tensors filled from their boxes: all copies are planned first.

Belongs here: the images in arenas, or in the files of a committed step; their index by name; the
copies into a tensor. A box of a tensor is filled from the stored boxes that overlap it, so one path
serves the world that saved it and any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory import replica_check
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.shard_table import Box, Path, ShardTable, TensorItem, overlap
from holdfast.flash.server.protocol import RestoreStart
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import read_manifest, view_of
from holdfast.flash.trainer.copier import is_lazy, is_on_gpu
from holdfast.flash.trainer.holders import Holders
from holdfast.flash.trainer.leaves import Leaves, constant, name_of
from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges
from holdfast.flash.trainer.planner import LocalPart, RankPosition
from holdfast.flash.trainer.values import StoredValues

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One rank's image, mapped."""

    table: ShardTable
    lengths: tuple[int, ...]
    memory: Callable[[], Any]
    """Gives the buffer that torch may wrap, always the same one; maps a file at the first call."""
    tail: bool
    """True: the image has its tail."""
    near: bool = False
    """True: the image is in this node's own memory, which goes before all other places."""
    lent: bool = False
    """True: the image is of another node. Its values are here; items that were not fetched are
    zeros."""


def of_arenas(
    arenas: Iterable[Arena],
    slots: tuple[int, ...],
    lent: Collection[int] = (),
    *,
    tails: bool = True,
) -> list[Image]:
    """Return the images of a version in memory.

    lent: ranks with memory on another node. tails: also the parts that are not on storage.
    """
    images = []
    for arena, index in zip(arenas, slots, strict=True):
        slot, away = arena.slots[index], arena.table.rank in lent
        images.append(
            Image(
                table=arena.table,
                lengths=tuple(slot.lengths),
                memory=constant(slot.image),
                tail=tails,
                near=not away,
                lent=away,
            )
        )
    return images


def of_files(path: str) -> list[Image]:
    """Return the images of a committed step, whose files are opened once they are read.

    Raises `ManifestError` if the manifest is missing or damaged; at a first use, if a file is.
    """
    disk = Disk()
    return [
        Image(
            table=shard.table,
            lengths=shard.lengths,
            memory=cache(partial(view_of, disk, path, shard)),
            tail=False,
        )
        for shard in read_manifest(disk, path, files=False).shards
    ]


def of_start(start: RestoreStart, arenas: Iterable[Arena]) -> list[Image]:
    """Return the images that a start names, whichever tier has them.

    arenas: The arenas of its descriptors. Slots come first: they are nearer than files.
    """
    # All nodes of a world start from the same bytes: the tails are only in memory.
    usable = arenas if start.slots else ()
    images = of_arenas(usable, start.slots, start.lent, tails=not start.path)
    return images + (of_files(start.path) if start.path else [])


@dataclass(frozen=True, slots=True)
class StoredBox:
    """Location of one box of a tensor."""

    image: Image
    index: int
    """Number of the item in the image's table."""

    @property
    def item(self) -> TensorItem:
        """The box."""
        return self.image.table.tensors[self.index]


@dataclass(slots=True)
class Stored:
    """All images of a version, by name."""

    tensors: dict[str, list[StoredBox]] = field(default_factory=dict)
    values: dict[str, tuple[Any, int, int]] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    optimizers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Classes of each optimizer, as in the tables."""
    world: int = 0
    step: int = 0

    def value(self, name: str) -> bytes:
        """Return the bytes of a value that is no tensor."""
        source, begin, length = self.values[name]
        return bytes(memoryview(source())[begin : begin + length])


def stored(images: Iterable[Image], step: int = 0) -> Stored:
    """Return the index of a step's images; of equal boxes the first one counts."""
    found = Stored(step=step)
    for image in images:
        table = image.table
        found.world = table.world
        found.paths.update(table.paths)
        found.optimizers.update(table.optimizers)
        for index, item in enumerate(table.tensors):
            if image.tail or not item.tail:
                found.tensors.setdefault(item.name, []).append(StoredBox(image, index))
        spans = table.spans(image.lengths)[len(table.tensors) :]
        for value, span in zip(table.byte_items, spans, strict=True):
            if value.name != replica_check.ITEM and (image.tail or not value.tail):
                found.values.setdefault(value.name, (image.memory, *span))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesRead:
    """Bytes of a checkpoint that one rank has read for its tensors, by the place they came from."""

    memory: int = 0
    """From this node's memory."""
    peers: int = 0
    """From other nodes' memory. An item travels whole, so this may be more than is needed of it."""
    storage: int = 0
    """From the files of the step. What a node reads to compare hashes is not counted."""

    def __str__(self) -> str:
        return (
            f"{self.memory / 2**20:.1f} MiB from this node's memory, {self.peers / 2**20:.1f} MiB "
            f"from other nodes' memory, {self.storage / 2**20:.1f} MiB from storage"
        )


class Filling:
    """One start of one rank from one checkpoint, while nothing is changed yet."""

    def __init__(
        self, place: RankPosition, leaves: Leaves, found: Stored, holders: Holders
    ) -> None:
        """Take the rank's position, the present state, and the stored state.

        holders: holders of each name in this world, if the ranks differ.
        """
        self.leaves, self.place, self.found = leaves, place, found
        self._holders = holders
        self.wrong: list[str] = []
        """Differences between checkpoint and state, in words: with any of them nothing is loaded,
        unless the script takes what fits (`partial`)."""
        self.values = StoredValues()
        """Name of each stored value that is no tensor → the value."""
        self.notes: list[str] = []
        """Notes on the start for the user, in words."""
        self.wanted: dict[tuple[int, int], int] = {}
        """(rank, index of the item) → bytes, of items to fetch before `copy`."""
        self._ranges: list[CopyRange] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._uploads: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(to, from) of copies into GPUs, contiguous on both sides."""
        self._kept: list[Any] = []
        self._near = self._filed = 0

    @property
    def step(self) -> int:
        """The checkpoint's step."""
        return self.found.step

    @property
    def world(self) -> int:
        """Number of ranks of the world that saved."""
        return self.found.world

    @property
    def paths(self) -> Mapping[str, Path]:
        """Name of each stored tensor and value → its keys in the nested state."""
        return self.found.paths

    def decode(self) -> None:
        """Read the values, but for those of other ranks, which are read once they are asked for.

        Raises `StateError` for one that cannot be read.
        """
        for name in self.found.values:
            self.values.add(name, partial(self.found.value, name))
        own = f"rank_{self.place.rank}"
        for name in self.found.values:
            first = str(self.found.paths[name][0])
            if not self.is_of_others(name) and (first == own or not first.startswith("rank_")):
                self.values[name]

    def rename(self, names: Mapping[str, Path]) -> None:
        """Have stored things read under other names; whatever had such a name is hidden.

        names: name as it is stored → the keys under which it is to be read.
        """
        found = self.found
        helds: tuple[MutableMapping[str, Any], ...] = (found.tensors, found.values, self.values)
        for held in helds:
            read = {name: held[name] for name in names if name in held}
            for path in names.values():
                held.pop(name_of(path), None)
            held.update({name_of(names[name]): one for name, one in read.items()})
        found.paths.update({name_of(path): path for path in names.values()})

    def form(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return dtype and shape of a stored tensor, ("float32", (4, 2)); None: there is none."""
        parts = self.found.tensors.get(name)
        return None if parts is None else (parts[0].item.dtype, parts[0].item.shape)

    def fill_box(
        self, name: str, values: torch.Tensor, shape: Sequence[int], offsets: Sequence[int]
    ) -> bool:
        """Plan the copies into a box of a global tensor.

        Only the bytes of this box are read, from whatever boxes are stored. If that is impossible,
        the difference is noted.

        Args:
            name: The global tensor's name; see `Leaves.add_box`.
            values: The box's elements, which are overwritten once all ranks have agreed.
            shape: Shape of the global tensor.
            offsets: First element of the box in each dimension.

        Returns:
            True if the box can be filled.
        """
        local = LocalPart(shape=tuple(shape), offsets=tuple(offsets), values=values.detach())
        return self.fill(name, local)

    def group_members(self, name: str, own: Sequence[str]) -> Sequence[str]:
        """Return the parameters of a group on all ranks together."""
        return self._holders.groups.get(name, tuple(own))

    def missing_or_new(self, names: set[str], part: str) -> None:
        """Note stored tensors of a part of the state ("model") that this rank lacks."""
        there = {name for name in self.found.tensors if self.found.paths[name][0] == part}
        self.wrong += self.unless_of_others(there - names)

    def unless_of_others(self, names: Iterable[str]) -> list[str]:
        """Return errors for stored names that this rank lacks; none for names of other ranks."""
        left = [name for name in sorted(names) if not self.is_of_others(name)]
        return [f"{name} is not in the state" for name in left]

    def is_of_others(self, name: str) -> bool:
        """Return True if other ranks take this name, and this rank has no place for it."""
        path = self.found.paths.get(name, ())
        return self._holders.is_of_others(name, path, self.place.rank)

    def below(self, begin: Path) -> dict[tuple[Any, Any], str]:
        """Return the stored names two keys below a path, by these keys."""
        size = len(begin)
        return {
            (path[size], path[size + 1]): name
            for name, path in self.found.paths.items()
            if path[:size] == begin
            and len(path) == size + 2
            and (name in self.values or name in self.found.tensors)
        }

    @property
    def read(self) -> BytesRead:
        """Bytes that the planned copies read."""
        peers = sum(self.wanted.values())
        return BytesRead(memory=self._near, peers=peers, storage=self._filed)

    def fill(self, name: str, local: LocalPart, *, files_first: bool = False) -> bool:
        """Plan the copies into one local tensor; if impossible, note the reason, return False.

        files_first: prefer the stored values: those of replicas may differ.
        """
        values = local.values
        parts = self.found.tensors.get(name)
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
        found = _tiling(parts, wanted, values.numel(), files_first=files_first)
        covered = _covered(found)
        if covered != values.numel():
            self.wrong.append(f"{name}: {covered} of {values.numel()} elements are stored")
            return False
        for part, common in found:
            self._plan(part, common, local)
        return True

    def are_one(self, first: str, name: str) -> bool:
        """Return True if two names of one tensor have equal stored values; note it if not.

        The bytes of items on other nodes are not here yet: they are taken for equal.
        """
        pairs = zip(*(self.found.tensors.get(one, ()) for one in (first, name)), strict=False)
        if all(_is_equal(one, other) for one, other in pairs):
            return True
        self.wrong.append(
            f"{first} and {name} are one tensor here, and two with other values in the checkpoint"
        )
        return False

    def _plan(self, part: StoredBox, common: Box, local: LocalPart) -> None:
        item, image = part.item, part.image
        size = math.prod(common[1]) * local.values.element_size()
        if image.lent:
            self.wanted[image.table.rank, part.index] = item.length
        elif image.near:
            self._near += size
        else:
            self._filed += size
        source = narrow(values_of(item, image.memory(), local.values.dtype), common, item.offsets)
        to = narrow(local.values, common, local.offsets)
        self._kept.append(source)
        whole = to.is_contiguous() and source.is_contiguous() and not is_lazy(to)
        if whole and is_on_gpu(to):
            self._uploads.append((to, source))
        elif whole and to.device.type == "cpu":
            self._ranges.append(CopyRange(to.data_ptr(), source.data_ptr(), to.nbytes))
        else:
            self._copies.append((to, source))

    def copy(self, threads: int) -> None:
        """Do all planned copies."""
        import torch

        with torch.inference_mode():  # it may write to tensors of either mode
            for to, source in self._copies:
                to.copy_(source)
        CopyRanges(self._ranges).copy(threads)
        if self._uploads:
            _upload(self._uploads, threads)


def _is_equal(one: StoredBox, other: StoredBox) -> bool:
    """Return True if two parts have the same bytes, as far as these are here and comparable."""
    ours, theirs = one.item, other.item
    if (ours.box, ours.dtype) != (theirs.box, theirs.dtype) or one.image.lent or other.image.lent:
        return True
    if one.image is other.image and ours.payload == theirs.payload:
        return True
    views = [memoryview(part.image.memory()).cast("B") for part in (one, other)]
    begins = ours.payload, theirs.payload
    mine, its = (view[at : at + ours.size] for view, at in zip(views, begins, strict=True))
    return bool(mine == its)


def _tiling(
    parts: list[StoredBox], wanted: Box, size: int, *, files_first: bool
) -> list[tuple[StoredBox, Box]]:
    """Return parts that tile a box of so many elements; overlapping ones if no choice tiles it.

    Parts in this node's memory go first. Otherwise the files tile the box exactly, and so do the
    files and tails of a node that has everything.
    """
    near = [part for part in parts if part.image.near]
    files = [part for part in parts if not part.item.tail]
    kinds = (files, near, parts) if files_first else (near, files, parts)
    choices = (_overlapping(kind, wanted) for kind in kinds)
    found: list[tuple[StoredBox, Box]] = []
    for found in choices:
        if _covered(found) == size:
            break
    return found


def _overlapping(parts: Iterable[StoredBox], wanted: Box) -> list[tuple[StoredBox, Box]]:
    """Return the parts that overlap a box, each with the overlap; equal boxes only once."""
    found: dict[Box, tuple[StoredBox, Box]] = {}
    for part in parts:
        common = overlap(part.item.box, wanted)
        if common is not None:
            found.setdefault(part.item.box, (part, common))
    return list(found.values())


def _covered(found: Iterable[tuple[StoredBox, Box]]) -> int:
    return sum(math.prod(common[1]) for _, common in found)


def _upload(pairs: list[tuple[torch.Tensor, torch.Tensor]], threads: int) -> None:
    """Copy into GPUs; no other function here touches CUDA."""
    import torch

    from holdfast.flash.trainer.cuda_copies import upload

    upload(torch.cuda, pairs, threads)


def values_of(item: TensorItem, memory: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return an item's values as a view of the image."""
    import torch

    count = math.prod(item.sizes)
    values = torch.frombuffer(memory, dtype=dtype, count=count, offset=item.payload)
    return values.view(item.sizes)


def narrow(tensor: torch.Tensor, box: Box, offsets: Sequence[int]) -> torch.Tensor:
    """Return the overlap of a local tensor, which begins at `offsets`, with a box of the whole."""
    for dim, (begin, size) in enumerate(zip(*box, strict=True)):
        tensor = tensor.narrow(dim, begin - offsets[dim], size)
    return tensor
