"""Shards with random content, made without torch: what commits are tested with."""

from __future__ import annotations

import json
import random
from pathlib import Path

from holdfast.flash.memory.hashes import hash64, hash_items
from holdfast.flash.memory.shard_table import ByteItem, ShardTable, TensorItem
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import Attempt, commit, open_attempt, write_shard
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import Manifest, Shard

Sample = tuple[Manifest, list[memoryview]]
"""A step, and the images of its ranks."""


def sample_shard(rank: int, world: int, rng: random.Random) -> tuple[Shard, memoryview]:
    """Return a rank's shard of a tensor cut into rows, and one value; with its image."""
    rows, columns = 100, 30
    size = rows * columns * 4
    item = TensorItem(
        name="model.weight",
        dtype="float32",
        shape=(rows * world, columns),
        offsets=(rows * rank, 0),
        sizes=(rows, columns),
        at=0,
        length=size + 128,
        payload=64,
        size=size,
    )
    table = ShardTable(
        rank=rank,
        world=world,
        tensor_bytes=size + 128,
        tensors=(item,),
        byte_items=(ByteItem(name=f"rank_{rank}.rng"),),
        paths={"model.weight": ("model", "weight"), f"rank_{rank}.rng": (f"rank_{rank}", "rng")},
    )
    lengths = (rng.randrange(1, 900),)
    image = memoryview(rng.randbytes(5 * 4096))
    return (
        Shard(table=table, lengths=lengths, hashes=hash_items(image, table.spans(lengths))),
        image,
    )


def sample_step(step: int, rng: random.Random, *, world: int = 2, lineage: int = 1) -> Sample:
    """Return a whole step."""
    pairs = [sample_shard(rank, world, rng) for rank in range(world)]
    manifest = Manifest(version=Version(lineage, step), shards=tuple(shard for shard, _ in pairs))
    return manifest, [image for _, image in pairs]


def begin(disk: Disk, root: object, sample: Sample, number: str = "a", ranks: int = 99) -> Attempt:
    """Write the parts of the first ranks of a step, and commit nothing."""
    manifest, images = sample
    attempt = Attempt(version=manifest.version, number=number)
    folder = open_attempt(disk, str(root), attempt)
    for shard, image in list(zip(manifest.shards, images, strict=True))[:ranks]:
        write_shard(disk, folder, shard, image)
    return attempt


def make_newer(file: Path) -> None:
    """Make of a step's manifest what the next Holdfast may write."""
    fields = json.loads(file.read_bytes())
    fields["checkpoint"]["format"] = 2
    body = json.dumps(fields["checkpoint"], separators=(",", ":"), sort_keys=True).encode()
    file.write_bytes(b'{"hash":"%016x","checkpoint":%s}\n' % (hash64(body), body))


def save(disk: Disk, root: object, sample: Sample, number: str = "a") -> Manifest:
    """Commit a step."""
    manifest, _ = sample
    commit(disk, str(root), begin(disk, root, sample, number), manifest.shards)
    return manifest
