"""Agreements of the ranks, once per world, by a few small collectives.

Belongs here: exchange of the attempts' name, of a world's start, of a restore's outcome, and of the
names that ranks have. A save uses no collective.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

REFUSED: Final = "rank {} refused what was to be restored, so no rank takes it"


def shared_token(world: int) -> str:
    """Return a name for this world's attempts, rank 0's on all ranks."""
    return f"{from_rank_0(secrets.randbits(62), world):x}"


def from_rank_0(number: int, world: int) -> int:
    """Return rank 0's number; raises RuntimeError if the ranks cannot communicate."""
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
    """Leave the block only if every rank passed it; else raise the rank's own error, or `refusal`.

    Without a process group a rank knows only its own outcome. A rank that refuses then ends its
    world, and no save of the others is ever complete without it.
    """
    if world == 1 or not _can_meet(world):
        yield
        return
    try:
        yield
    except Exception:  # any error: the others must know of it
        with contextlib.suppress(RuntimeError):  # the others may be gone
            _first_refusing(world, refuses=True)
        raise
    try:
        first = _first_refusing(world, refuses=False)
    except RuntimeError as error:
        raise refusal(f"a rank ended before all had agreed to restore: {error}") from error
    if first < world:
        raise refusal(REFUSED.format(first))


def has_group() -> bool:
    """Return True if this process has a default process group."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _can_meet(world: int) -> bool:
    import torch.distributed as dist

    return has_group() and dist.get_world_size() == world


def _first_refusing(world: int, *, refuses: bool) -> int:
    """Return the lowest rank that refuses; the world's size if none does."""
    import torch.distributed as dist

    box = _box(dist.get_rank() if refuses else world)
    dist.all_reduce(box, op=dist.ReduceOp.MIN)
    return int(box.item())


def from_all(body: bytes, world: int) -> list[bytes] | None:
    """Return each rank's bytes, in order; None if all are equal, or there is no group."""
    if world == 1 or not _can_meet(world):
        return None
    import torch
    import torch.distributed as dist

    number = int.from_bytes(blake2b(body, digest_size=7).digest(), "little")
    most = torch.cat([_box(number), _box(-number), _box(len(body))])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if int(most[0]) == -int(most[1]):
        return None
    padded = len(body).to_bytes(8, "little") + body.ljust(int(most[2]), b"\0")
    mine = torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(most.device)
    told = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(told, mine)
    found = [bytes(one.cpu().numpy()) for one in told]
    return [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in found]


def _box(number: int) -> Any:
    """Return the number in a tensor on a device that the default group's backend takes."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return torch.tensor([number], dtype=torch.int64, device=device)
