"""The warm-up under Megatron: gradients that are the mean over all replicas.

Belongs here: which gradients are right on a rank after the reduction inside its replica. Does not
belong here: when the warm-up ends (`policies.schedule`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def average_gradients(chunk: Any, own: dist.ProcessGroup, replicas: Group, *, whole: bool) -> None:
    """Average a chunk's gradients over the replicas, once each has reduced its own.

    Args:
        chunk: Of the model.
        own: Data parallel ranks of this replica.
        replicas: The ranks that hold this rank's shards.
        whole: Each rank has all gradients, also with the distributed optimizer.

    Raises:
        SyncError: a rank is gone.
    """
    works = []
    for gradients in _reduced(chunk, own, whole=whole):
        gradients.mul_(1 / replicas.size)
        works.append(replicas.begin_sum(gradients))
    for work in works:
        work.wait()


def _reduced(chunk: Any, own: dist.ProcessGroup, *, whole: bool) -> list[torch.Tensor]:
    """Return the gradients that are right on this rank after a reduction inside the replica."""
    found = []
    for buffer in chunk.buffers:
        for bucket in buffer.buckets:
            gradients: torch.Tensor = bucket.grad_data
            if chunk.ddp_config.use_distributed_optimizer and not whole:
                gradients = gradients.chunk(own.size())[own.rank()]
            found.append(gradients)
    return found
