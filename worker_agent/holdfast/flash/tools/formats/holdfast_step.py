"""Committed steps: read one tensor at a time, and written from any checkpoint.

Belongs here: a step as a `Checkpoint`, and a step of one rank made of a `Checkpoint`, in the way of
a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.ids import unique
from holdfast.flash.memory import replica_check
from holdfast.flash.memory.hashes import hash64
from holdfast.flash.memory.shard_table import Path, TensorItem
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import Attempt, commit, discard, open_attempt
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import ManifestError, Shard, read_manifest
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignPart,
    ForeignTensor,
)
from holdfast.flash.trainer.leaves import Leaves, TensorLeaf, ValueLeaf, constant
from holdfast.flash.trainer.planner import ImagePlan, Planner, RankPosition
from holdfast.flash.trainer.values import decode_value, encode_value

if TYPE_CHECKING:
    import torch

_CHUNK: Final = 2**24
Progress = Callable[[int], None]
"""Takes the number of bytes that were done since the last call."""


def read(place: str) -> Checkpoint:
    """Return a committed step; raises `ManifestError`, `ForeignError`, `StateError`, OSError."""
    manifest = read_manifest(Disk(), place)
    boxes: dict[str, tuple[TensorItem, dict[tuple[int, ...], ForeignPart]]] = {}
    values, paths = dict[str, Any](), dict[str, Path]()
    for shard in manifest.shards:
        file, table = f"{place}/{shard.file}", shard.table
        paths.update(table.paths)
        spans = table.spans(shard.lengths)
        for item, span, stated in zip(table.items, spans, shard.hashes, strict=True):
            if item.tail or item.name == replica_check.ITEM:
                continue
            if isinstance(item, TensorItem):
                _, parts = boxes.setdefault(item.name, (item, {}))
                parts.setdefault(item.offsets, _part(file, item, span, stated))
            elif item.name not in values:
                body = _checked(file, item.name, span, stated)
                values[item.name] = decode_value(item.name, bytes(body))
    return Checkpoint(
        place=place,
        format="holdfast",
        framework="holdfast",
        layout=f"a committed step of {len(manifest.shards)} ranks",
        tensors=tuple(
            ForeignTensor(
                path=paths[name], dtype=item.dtype, shape=item.shape, parts=(*parts.values(),)
            )
            for name, (item, parts) in sorted(boxes.items())
        ),
        values={paths[name]: value for name, value in values.items()},
        step=manifest.version.step,
        sizes={"data": len(manifest.shards)},
    )


def _part(file: str, item: TensorItem, span: tuple[int, int], stated: int) -> ForeignPart:
    return ForeignPart(
        offsets=item.offsets,
        sizes=item.sizes,
        where=f"{file}: {item.name}",
        read=partial(_values, file, item, span, stated),
    )


def _values(file: str, item: TensorItem, span: tuple[int, int], stated: int) -> torch.Tensor:
    import torch

    body = _checked(file, item.name, span, stated)
    dtype = getattr(torch, item.dtype)
    if not item.size:
        return torch.empty(item.sizes, dtype=dtype)
    count = item.size // dtype.itemsize
    flat = torch.frombuffer(body, dtype=dtype, count=count, offset=item.payload - span[0])
    return flat.view(item.sizes)


def _checked(file: str, name: str, span: tuple[int, int], stated: int) -> bytearray:
    """Return an item's bytes after comparing their hash; raises `ManifestError`."""
    body = bytearray(span[1])
    with File(file).open("rb") as stream:
        stream.seek(span[0])
        stream.readinto(body)
    if hash64(memoryview(body)) != stated:
        raise ManifestError(f"{file}: {name} at byte {span[0]} is damaged")
    return body


def write(found: Checkpoint, root: str, step: int, progress: Progress) -> str:
    """Commit a step of one rank, below a directory that holds none; return its path.

    Each tensor is read once, one after another; progress: is told of its bytes. Raises
    `ForeignError` if an argument cannot be taken or a tensor is damaged, and nothing is left;
    `StateError` if a value is no plain data; `CommitError`, OSError.
    """
    _check_target(root, step)
    plan = Planner(RankPosition(rank=0, world=1, local_rank=0, local_world=1)).plan(_leaves(found))
    bodies = [encode_value(leaf.name, leaf.read()) for leaf in plan.values]
    disk, made = Disk(), not File(root).exists()
    File(root).mkdir(parents=True, exist_ok=True)
    root = str(File(root).absolute())
    attempt = Attempt(version=Version(0, step), number=unique())
    try:
        folder = open_attempt(disk, root, attempt)
        pieces = _image(plan, {tensor.name: tensor for tensor in found.tensors}, bodies, progress)
        shard = _write_file(disk, folder, plan, tuple(map(len, bodies)), pieces)
        return commit(disk, root, attempt, [shard])
    except BaseException:
        if File(root, attempt.folder).exists():
            discard(disk, root, f"{root}/{attempt.folder}")
        if made and not any(File(root).iterdir()):
            File(root).rmdir()
        raise


def _check_target(root: str, step: int) -> None:
    if step < 1:
        raise ForeignError(f"--step={step}: steps count from 1; load() returns it")
    if any(File(root).glob("step_*")):
        raise ForeignError(f"{root} has checkpoints: a script would start from the newest of all")


def _leaves(found: Checkpoint) -> Leaves:
    """Return the state in the form of a Checkpointer, with tensors that take no memory."""
    import torch

    leaves = Leaves()
    for tensor in found.tensors:
        form = torch.empty((), dtype=getattr(torch, tensor.dtype)).expand(tensor.shape)
        name = tensor.name
        leaves.tensors.append(TensorLeaf(tensor.path, {name: form}, name, form))
    for path, value in found.values.items():
        leaves.values.append(ValueLeaf(path, constant(value)))
    return leaves


def _image(
    plan: ImagePlan, tensors: dict[str, ForeignTensor], bodies: list[bytes], progress: Progress
) -> Iterator[tuple[int, list[memoryview]]]:
    """Yield (offset, pieces) of each item of the file, in its order."""
    for source in plan.sources:
        frame, values = source.frame, bytes_of(tensors[source.item.name].load())
        assert frame is not None  # noqa: S101 - a plan of one rank has no tail
        yield source.item.at, [memoryview(frame.before), values, memoryview(frame.after)]
        del values  # before the next tensor is read
        progress(source.item.size)
    at = plan.table.tensor_bytes
    for body in bodies:
        yield at, [memoryview(body)]
        at += len(body)


def bytes_of(values: torch.Tensor) -> memoryview:
    """Return a contiguous tensor's bytes, without a copy."""
    import torch

    flat = values.contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _write_item(disk: Disk, handle: int, pieces: Iterable[memoryview]) -> int:
    """Append an item; return its hash."""
    from xxhash import xxh3_64

    digest = xxh3_64()
    for piece in pieces:
        for begin in range(0, len(piece), _CHUNK):
            chunk = piece[begin : begin + _CHUNK]
            digest.update(chunk)
            disk.write(handle, chunk)
    return digest.intdigest()


def _write_file(
    disk: Disk,
    folder: str,
    plan: ImagePlan,
    lengths: tuple[int, ...],
    image: Iterable[tuple[int, list[memoryview]]],
) -> Shard:
    """Write the rank's file, durably, and return its description with all hashes."""
    shard = Shard(table=plan.table, lengths=lengths, hashes=())
    private, end, hashes = f"{folder}/.{shard.file}.{unique()}", 0, list[int]()
    handle = disk.create(private, direct=False)
    try:
        for at, pieces in image:
            disk.write(handle, bytes(at - end))
            end = at + sum(map(len, pieces))
            hashes.append(_write_item(disk, handle, pieces))
            del pieces  # before the next tensor is read
        disk.write(handle, bytes(max(0, shard.bytes - end)))
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(private, f"{folder}/{shard.file}")
    disk.sync_dir(folder)
    return Shard(table=plan.table, lengths=lengths, hashes=tuple(hashes))
