"""The acts of a measured rank, for any framework: save, load, restart, reshape.

Belongs here: the order of the calls and what is compared. Does not belong here: a framework's own
ways (`zero_rank`, `megatron_rank`).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

import holdfast
from bench.universal import results as r
from bench.universal.rank import Copy, Log, Way, digest
from holdfast.flash.trainer.leaves import Leaves, TensorLeaf
from holdfast.flash.trainer.shards import Shards

HASHED_SECONDS: Final = 2.0
"""From a save to the crash after it: a save whose hashes are not made yet is not restored from."""

WARM_UP: Final = -1
"""Number of the turn before the first; what it takes is not logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One rank's training, and the framework's own ways for its state."""

    layout: str
    """Present world in words."""
    shards: Callable[[], Shards]
    step: Callable[[], object]
    """Train one step."""
    weights: Callable[[], list[torch.Tensor]]
    saves: Mapping[str, Callable[[Path], Way]]
    """By the short name that `--way` gives; each takes the folder of the state."""
    loads: Mapping[str, Callable[[Path], Way]]
    """In the world that saved."""
    reshapes: Mapping[str, Callable[[Path], Way]]
    """In another world. They end with the same masters and moments as Holdfast's load."""

    parts: Way
    """Calls of the framework that are a part of Holdfast's load."""

    def listed(self) -> Leaves:
        """Return all that Holdfast lists of this rank."""
        leaves = Leaves()
        self.shards().collect(leaves)
        return leaves

    def shard(self) -> list[torch.Tensor]:
        """Return the tensors that this rank stores, by name and place."""
        stored = [leaf for leaf in self.listed().tensors if leaf.stored]
        stored.sort(key=lambda leaf: (leaf.name, leaf.box.offsets if leaf.box else ()))
        return [leaf.tensor for leaf in stored]


def _shuffled(options: SimpleNamespace, turn: int, names: Mapping[str, Any]) -> list[str]:
    """Return the order of a turn, equal on all ranks."""
    found = list(names)
    random.Random(f"{options.seed} {options.state} {turn}").shuffle(found)
    return found


def _torch_file(folder: Path, what: str) -> Path:
    (folder / "torch").mkdir(exist_ok=True)
    return folder / "torch" / f"{what}_{dist.get_rank()}.pt"


def save(subject: Subject, folder: Path, options: SimpleNamespace) -> None:
    """Save in each way, in turns; the last of each stays."""
    subject.step()
    own = subject.shard()
    copy, file = Copy(own), _torch_file(folder, "shard")
    log = Log(options.lines, options.state, subject.shard)
    flash = holdfast.Checkpointer(folder / "flash", shards=subject.shards(), keep_last=1)
    flash.load()  # of nothing: the ranks tell each other what they have
    flash.prepare()
    for turn in range(WARM_UP, options.turns):
        subject.step()
        ways: dict[str, Way] = {
            "copy": {r.COPY: copy},
            "flash": {r.FLASH: partial(flash.save, 1 + turn - WARM_UP), r.STORED: flash.wait},
            "torch": {r.TORCH: partial(torch.save, own, file)},
            **{name: way(folder) for name, way in subject.saves.items()},
        }
        for name in _shuffled(options, turn, ways):
            log.measure(r.SAVE, turn, ways[name])
    torch.save(subject.weights(), _torch_file(folder, "weights"))
    flash.close()


def _from_torch(file: Path, to: list[torch.Tensor]) -> None:
    for tensor, values in zip(to, torch.load(file), strict=True):
        tensor.detach().copy_(values)


def load(subject: Subject, folder: Path, options: SimpleNamespace) -> None:
    """Load in one way, once, from the page cache, in the world that saved."""
    subject.step()  # so that there is memory for the moments, whatever the way
    own, weights = subject.shard(), subject.weights()
    log = Log(options.lines, options.state, subject.shard)
    flash = holdfast.Checkpointer(folder / "flash", shards=subject.shards())
    ways: dict[str, Callable[[], Way]] = {
        "flash": lambda: {r.FLASH: flash.load},
        "torch": lambda: {
            r.TORCH: partial(_from_torch, _torch_file(folder, "shard"), own),
            r.WEIGHTS: partial(_from_torch, _torch_file(folder, "weights"), weights),
        },
        **{name: partial(way, folder) for name, way in subject.loads.items()},
    }
    log.measure(r.LOAD, options.turn, ways[options.way]())
    if options.way == "flash" and not flash.read.storage:
        raise RuntimeError(f"expected a load from storage, found {flash.read}")
    _alike(subject, folder, f"load by {options.way}")
    flash.close()


def _alike(subject: Subject, folder: Path, what: str) -> None:
    """Fail unless the shard has the bytes that torch.save wrote of it, in the same world."""
    saved = torch.load(_torch_file(folder, "shard"))
    if digest(saved) != digest(subject.shard()):
        raise RuntimeError(f"{what}: the shard of rank {dist.get_rank()} is not what was saved")


def restart(subject: Subject, folder: Path, options: SimpleNamespace) -> None:
    """Load what the round before has saved to memory, then save and fail; the last round ends.

    Every second round trains a step before, so that there is memory for the moments.
    """
    done = folder / "restarts"
    number = int(done.read_text()) if done.exists() else 0
    act = r.RESTART if number % 2 else r.FRESH
    if act == r.RESTART or not number:
        subject.step()
    flash = holdfast.Checkpointer(None, shards=subject.shards())
    if not number:
        flash.load()
    else:
        log = Log(options.lines, options.state, subject.shard)
        turn = (number - 1) // 2
        log.measure(act, turn, {r.FLASH: flash.load})
        if not flash.read.memory or flash.read.storage:
            raise RuntimeError(f"expected a load from memory, found {flash.read}")
        log.measure(act, turn, {r.COPY: Copy(subject.shard()).back})
        log.measure(act, turn, subject.parts)
    if number == 2 * options.turns:
        flash.close()
        return
    flash.save(number + 1)
    time.sleep(HASHED_SECONDS)
    dist.barrier()
    if dist.get_rank() == 0:
        done.write_text(str(number + 1))
    dist.barrier()
    sys.exit(f"restart {number + 1} of {2 * options.turns}")


def reshape(subject: Subject, folder: Path, options: SimpleNamespace) -> None:
    """Load in another world, in each way, in turns."""
    subject.step()
    log = Log(options.lines, options.state, subject.shard)
    root = folder / "flash"
    steps = {int(path.name[5:]): path for path in root.glob("step_*")}
    newest = steps[max(steps)]

    def by_dcp(_: Path) -> Way:
        to = targets(subject.listed().tensors)  # anew: a load may have replaced a tensor
        return {r.DCP: partial(dcp.load, to, checkpoint_id=newest)}

    flash = holdfast.Checkpointer(root, shards=subject.shards())
    for turn in range(WARM_UP, options.turns):
        ways: dict[str, Callable[[Path], Way]] = {
            "flash": lambda _: {r.FLASH: flash.load},
            "dcp": by_dcp,
            **subject.reshapes,
        }
        found = {}
        for name in _shuffled(options, turn, ways):
            for one in subject.shard():
                one.detach().zero_()
            log.measure(r.RESHAPE + subject.layout, turn, ways[name](folder))
            found[name] = digest(subject.shard())
        if len(set(found.values())) > 1:
            raise RuntimeError(f"rank {dist.get_rank()} has loaded unequal shards: {found}")
    flash.close()


class Boxes(torch.Tensor):
    """Boxes of one global tensor on this rank, in DCP's protocol `_Checkpointable`."""

    whole: torch.Size
    boxes: dict[torch.Size, torch.Tensor]

    @classmethod
    def of(cls, leaves: Sequence[TensorLeaf]) -> Self:
        """Return the boxes of leaves that have one name."""
        found = torch.empty(0).as_subclass(cls)
        found.boxes = {}
        for leaf in leaves:
            if leaf.box is None:
                raise ValueError(f"{leaf.name}: expected a box of a global tensor")
            found.whole = torch.Size(leaf.box.shape)
            found.boxes[torch.Size(leaf.box.offsets)] = leaf.tensor.detach()
        return found

    def size(self, *_: Any) -> torch.Size:  # type: ignore[override]
        """Return the global shape."""
        return self.whole

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """List the boxes."""
        return [
            ChunkStorageMetadata(offsets=offsets, sizes=tensor.size())
            for offsets, tensor in self.boxes.items()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Return the tensor that a box is read into."""
        if index.offset is None:
            raise ValueError(f"{index.fqn}: expected the offset of a box")
        return self.boxes[index.offset]


def targets(leaves: Sequence[TensorLeaf]) -> dict[str, Any]:
    """Return the state dict that `dcp.load` fills in place."""
    found: dict[str, list[TensorLeaf]] = {}
    for leaf in leaves:
        found.setdefault(leaf.name, []).append(leaf)
    return {
        name: Boxes.of(several) if several[0].box is not None else several[0].tensor
        for name, several in found.items()
    }


ACTS: Final = {"save": save, "load": load, "restart": restart, "reshape": reshape}
