"""Boxes of a rank as `torch.distributed.checkpoint` loads them: no more than the rank needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from holdfast.flash.trainer.leaves import TensorLeaf


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
