"""Collectives of one process group, with a deadline, counted bytes and one error.

Belongs here: each collective that a sync makes, and what it sends. Does not belong here: what the
tensors mean (`reducers`, `unit_sync`), and how a group comes to be.

The bytes that a rank of n sends are counted by formula: 2·(n-1)/n·S for an all-reduce of S bytes
(a ring, as NCCL and gloo make it for large tensors), (n-1)·s for an all-gather of s bytes of each
rank, (n-1)/n·S for an all-to-all of S bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.errors import LocalSGDError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

TIMEOUT: Final = 600.0
"""Seconds until a collective has failed: torch's own default for NCCL."""
INTERVAL: Final = 0.001
"""Seconds between two looks at the members while a collective is waited for, and at most between
two looks at the collective: a few per cent of a core."""
SHARE: Final = 0.05
"""Part of the wait so far until the next look at the collective: what a look comes too late by."""
SHORTEST: Final = 0.00005
"""Seconds between two looks at the least."""


class SyncError(LocalSGDError, RuntimeError):
    """A collective that did not succeed: a rank is gone, or did not come in time.

    The units of the sync are as they were before it. The group is of no more use: `Group.close` it
    once this error is handled, which tells the ranks that still wait for this one.
    """


class Work:
    """One collective on its way."""

    def __init__(self, group: Group, name: str, work: Any) -> None:
        """Take torch's handle; None: the group has one rank, and there is nothing to wait for."""
        self._group, self._name, self._work = group, name, work

    @property
    def is_done(self) -> bool:
        """Tell at once if `wait` has nothing to wait for: the collective has ended, well or not."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        """Return when the result is there, on the host's clock too; raises SyncError."""
        if self._work is None:
            return
        work, self._work = self._work, None
        begun, limit = time.monotonic(), self._group.timeout
        try:
            self._group.guarded(self._name, lambda: self._group.wait_for(work))
        except SyncError:
            self._group.is_late |= time.monotonic() - begun >= limit
            raise


class Group:
    """A process group as a sync uses it; of one rank where torch.distributed is not started.

    Large tensors that are passed in belong to the collective until it is waited for, and after a
    failure for good: a backend may still write to them.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout: float = TIMEOUT,
        alone: bool = False,
    ) -> None:
        """Take the group.

        Args:
            process_group: None: the default group.
            timeout: Seconds until a collective has failed.
            alone: The group has this rank only, whatever the default group is.

        Raises:
            ValueError: this rank is not in the group, or the timeout is not positive.
        """
        import torch.distributed as dist

        if timeout <= 0:
            raise ValueError(f"timeout={timeout}: give the seconds that a collective may take")
        self.timeout = timeout
        self.sent = 0
        """Bytes that this rank has sent, by the formula of this module."""
        self.is_late = False
        """A collective has missed its deadline, and torch may still be at it."""
        self.interrupted: Callable[[], bool] | None = None
        """Asked while a collective is waited for; True: a member is lost, and it fails at once.
        Only so do ranks leave one that waits for a frozen process, whose connections stay open."""
        self._process_group = process_group
        self._failure = ""
        self.is_own = False
        """Nobody else has the process group: who is done with it closes it."""
        self.numbers: Sequence[int] = (0,)
        """Numbers of the replicas, by rank: not the ranks where only some are in the group."""
        self.device = "cpu"
        """Where the backend takes tensors of this package's own."""
        if alone or not (dist.is_available() and dist.is_initialized()):
            self.rank, self.size = 0, 1
            return
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.rank < 0:
            raise ValueError(
                f"process_group: rank {dist.get_rank()} is not in it; pass a group that has this "
                "rank as a member"
            )
        on_cpu = "cpu:" in str(dist.get_backend_config(process_group))
        self.device = "cpu" if on_cpu else "cuda"
        self.numbers = range(self.size)

    @classmethod
    def like(cls, process_group: dist.ProcessGroup, *, timeout: float = TIMEOUT) -> Group:
        """Return a group of the ranks of another, made by them alone, that `close` can end.

        A device mesh and FSDP1 keep theirs for good, and gloo ends its connections with the last
        reference. To end theirs under them would be no better.
        """
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(process_group)
        made: Any = dist.new_group(ranks, use_local_synchronization=True)
        found = cls(made, timeout=timeout)
        found.is_own = True
        return found

    @classmethod
    def of_one(cls) -> Group:
        """Return the group that has this rank alone."""
        return cls(alone=True)

    @property
    def ranks(self) -> dist.ProcessGroup:
        """The process group itself, as DeviceMesh and DistributedDataParallel take it."""
        import torch.distributed as dist

        group = self._process_group if self._process_group is not None else dist.group.WORLD
        assert group is not None  # noqa: S101 - of_one() has none to give
        return group

    def close(self) -> None:
        """Give the process group up; the default group is left to the script.

        Ranks that still wait for this one then fail at once, not at their deadline, if nobody else
        keeps a reference to the group. An error's traceback is such a reference: leave its
        `except` first. So is a device mesh: take a group of the same ranks (`like`). A group whose
        deadline has passed is only forgotten: torch ends it when the operation has ended that it
        still makes.
        """
        import torch.distributed as dist

        group, self._process_group = self._process_group, None
        self._failure = self._failure or "it was closed"
        if group is not None and group is not dist.group.WORLD and not self.is_late:
            dist.destroy_process_group(group)

    def give_up(self) -> None:
        """Refuse all further collectives: who has made the process group has ended it."""
        self._process_group = None
        self._failure = self._failure or "its members have changed"

    def wait_for(self, work: Any) -> None:
        """Wait for torch's handle until the deadline, or until `interrupted`."""
        begun = now = looked = time.monotonic()
        deadline = begun + self.timeout
        while self.interrupted and not work.is_completed() and now < deadline:
            if now - looked >= INTERVAL:
                looked = now
                if self.interrupted():
                    self.is_late = True
                    raise RuntimeError("a member of the group is lost, by the newest roster")
            time.sleep(min(INTERVAL, max(SHORTEST, SHARE * (now - begun))))
            now = time.monotonic()
        work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))

    def sum_scalars(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, equal on all ranks."""
        return self._reduced_scalars(values, "SUM")

    def max_scalars(self, values: Sequence[float]) -> list[float]:
        """Return the greatest of all ranks, equal on all ranks."""
        return self._reduced_scalars(values, "MAX")

    def gather_scalars(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of each rank, in the order of ranks; all give equally many."""
        if self.size == 1 or not values:
            return [list(values) for _ in range(self.size)]
        mine = self._scalars(values)
        gathered = mine.new_empty(self.size * len(values))
        self.begin_gather(gathered, mine).wait()
        flat: list[float] = gathered.tolist()
        return [flat[at : at + len(values)] for at in range(0, len(flat), len(values))]

    def begin_sum(self, tensor: torch.Tensor) -> Work:
        """Start to put the sum over all ranks in the tensor's place."""
        import torch.distributed as dist

        return self._begin(
            "all_reduce",
            2 * (self.size - 1) * tensor.nbytes // self.size,
            lambda group: dist.all_reduce(tensor, group=group, async_op=True),
        )

    def begin_gather(self, gathered: torch.Tensor, mine: torch.Tensor) -> Work:
        """Start to put all ranks' equally long parts behind one another in `gathered`."""
        import torch.distributed as dist

        if self.size == 1:
            gathered.copy_(mine)
        return self._begin(
            "all_gather",
            (self.size - 1) * mine.nbytes,
            lambda group: dist.all_gather_into_tensor(gathered, mine, group=group, async_op=True),
        )

    def begin_exchange(self, received: torch.Tensor, sent: torch.Tensor) -> Work:
        """Start to send row i of `sent` to rank i, whose row for this rank comes in row i."""
        import torch.distributed as dist

        if self.size == 1:
            received.copy_(sent)
        return self._begin(
            "all_to_all",
            (self.size - 1) * sent.nbytes // self.size,
            lambda group: dist.all_to_all_single(received, sent, group=group, async_op=True),
        )

    def begin_deliver(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        counts: tuple[Sequence[int], Sequence[int]],
    ) -> Work:
        """Start to send a part of `sent` to each rank, and to put their parts in `received`.

        Args:
            received: The parts of all ranks, one behind the other.
            sent: Those for all ranks.
            counts: Elements from each rank, and to each.
        """
        import torch.distributed as dist

        if self.size == 1:
            received.copy_(sent)
        come, go = (list(one) for one in counts)
        return self._begin(
            "all_to_all",
            (sum(go) - go[self.rank]) * sent.element_size(),
            lambda group: dist.all_to_all_single(
                received, sent, come, go, group=group, async_op=True
            ),
        )

    def begin_broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """Start to put one rank's tensor in the place of all others'."""
        import torch.distributed as dist

        return self._begin(
            "broadcast",
            tensor.nbytes if self.rank == source else 0,
            lambda group: dist.broadcast(tensor, group=group, group_src=source, async_op=True),
        )

    def guarded(self, name: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call of torch.distributed; its errors become SyncError."""
        if self._failure:
            raise SyncError(
                f"{name}: this group has failed before ({self._failure}); make a new group of "
                "the ranks that are left and sync again"
            )
        try:
            return call()
        except RuntimeError as error:  # of gloo, NCCL and the store
            said = _first_line(error)
            self._failure = f"{name}: {said}"
            raise SyncError(
                f"{name} of rank {self.rank} of {self.size} failed (deadline {self.timeout:g} s); "
                "the units are unchanged: make a new group of the ranks that are left and sync "
                f"again ({said})"
            ) from error

    def _begin(self, name: str, sent: int, call: Callable[[Any], Any]) -> Work:
        if self.size == 1:
            return Work(self, name, None)
        work = Work(self, name, self.guarded(name, lambda: call(self._process_group)))
        self.sent += sent
        return work

    def _reduced_scalars(self, values: Sequence[float], how: str) -> list[float]:
        import torch.distributed as dist

        if self.size == 1 or not values:
            return list(values)
        box, op = self._scalars(values), getattr(dist.ReduceOp, how)
        self._begin(
            "all_reduce",
            2 * (self.size - 1) * box.nbytes // self.size,
            lambda group: dist.all_reduce(box, op=op, group=group, async_op=True),
        ).wait()
        reduced: list[float] = box.tolist()
        return reduced

    def _scalars(self, values: Sequence[float]) -> torch.Tensor:
        """Return the values on a device that the group's backend takes."""
        import torch

        return torch.tensor(values, dtype=torch.float64, device=self.device)


def _first_line(error: Exception) -> str:
    """Return the first line of an error: a backend's advice may be long."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
