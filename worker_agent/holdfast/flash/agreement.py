"""What ranks agree on once per world, by a few small collectives: attempts' name, origin, restore.

A save asks nobody.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any


def shared_token(world: int) -> str:
    """Return a name for this world's attempts, rank 0's on all ranks."""
    return f"{from_rank_0(secrets.randbits(62), world):x}"


def from_rank_0(number: int, world: int) -> int:
    """Return rank 0's number; raises RuntimeError where ranks cannot speak to each other."""
    if world == 1:
        return number
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError(
            f"WORLD_SIZE={world}, but no process group: call init_process_group before load()"
        )
    box = _box(number)
    dist.broadcast(box, src=0)
    return int(box.item())


@contextlib.contextmanager
def all_or_none(world: int, refusal: type[Exception]) -> Iterator[None]:
    """Leave the block only if every rank came through it; else raise its own error, or `refusal`.

    Without a process group a rank knows of itself alone: who refuses ends its world, and what the
    others save of a world that lacks a rank is never complete.
    """
    if world == 1 or not _can_meet(world):
        yield
        return
    try:
        yield
    except Exception:  # whatever it is, the others hear of it
        with contextlib.suppress(RuntimeError):  # they may be gone
            _first_refusing(world, refuses=True)
        raise
    try:
        first = _first_refusing(world, refuses=False)
    except RuntimeError as error:
        raise refusal(f"a rank ended before all had agreed to restore: {error}") from error
    if first < world:
        raise refusal(f"rank {first} refused what was to be restored, so no rank takes it")


def _can_meet(world: int) -> bool:
    import torch.distributed as dist

    there = dist.is_available() and dist.is_initialized()
    return there and dist.get_world_size() == world


def _first_refusing(world: int, *, refuses: bool) -> int:
    """Return the lowest rank that refuses; the size of the world where none does."""
    import torch.distributed as dist

    box = _box(dist.get_rank() if refuses else world)
    dist.all_reduce(box, op=dist.ReduceOp.MIN)
    return int(box.item())


def _box(number: int) -> Any:
    """Return a tensor where the default group's backend takes it."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return torch.tensor([number], dtype=torch.int64, device=device)
