"""What ranks agree on once per world where no agent tells them: two small broadcasts, never more.

A save asks nobody.
"""

from __future__ import annotations

import secrets


def shared_token(world: int) -> str:
    """Return a name for this world's attempts, rank 0's on all ranks."""
    return f"{from_rank_0(secrets.randbits(62), world):x}"


def from_rank_0(number: int, world: int) -> int:
    """Return rank 0's number; raises RuntimeError where ranks cannot speak to each other."""
    if world == 1:
        return number
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError(
            f"WORLD_SIZE={world}, but no process group: call init_process_group before load()"
        )
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    box = torch.tensor([number], dtype=torch.int64, device=device)
    dist.broadcast(box, src=0)
    return int(box.item())
