"""The world that a launcher has made, joined; a world of one where a script is started alone."""

from __future__ import annotations

import torch.distributed as dist


def join_world() -> None:
    """Join the launcher's ranks, or be a world of one."""
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
