"""Buckets of gradients: a replica's local sums, reduced over replicas beside the backward pass.

Belongs here: buffers, and the collectives of one attempt to reduce them. Does not belong here: when
an attempt is made, and what follows one that is torn (`replicated`).

A step's local sum stays in `.grad`. In the backward pass of the last micro-batch each bucket is
copied to a buffer as soon as its parameters have their gradients, and is reduced there, since an
all-reduce that is torn leaves garbage. So a torn one is repeated from `.grad`, not from the loss.

The buffers keep the reduced gradient until the next step's reduction, for a replica that lacks it.
That a bucket of step s+1 is whole on one rank proves that all have applied step s. So the first
bucket, a small one, has two buffers, and no other is begun before the first is whole. Buffers take
one gradient (of this rank's shard) and the first bucket.

Behind the last bucket's gradients travel the micro-batches that are in a sum, as zeros and ones,
the total of their weights, the learning rate, whether the replica sees another roster, and how far
its readers of shards are (`places`).

Parameters of FSDP2 are this rank's shards. Whole parameters of a replica of several ranks are
summed within it first; each rank then reduces a part over the replicas, and the parts are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.sync.group import Group, Work

if TYPE_CHECKING:
    import torch

BUCKET: Final = 25 << 20
"""Bytes of a bucket, as DistributedDataParallel has it."""
FIRST: Final = 1 << 20
"""Bytes of the first bucket, as there: it has two buffers, and all others wait for it."""
EXTRA: Final = 3
"""Numbers that travel with a sum, besides one for each micro-batch: weight, learning rate, and 1
where another roster is seen."""


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor."""
    from torch.distributed.tensor import DTensor

    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001 - no graph


class Bucket:
    """Parameters whose gradients are reduced together."""

    def __init__(self, parameters: Sequence[Any], inner: Group | None, tail: int) -> None:
        """Take the parameters.

        Args:
            parameters: Of one dtype, on one device.
            inner: Ranks that have the same whole parameters, if there are several.
            tail: Numbers behind the gradients.
        """
        self.parameters, self._inner, self._tail = list(parameters), inner, tail
        self._sizes = [local(one).numel() for one in parameters]
        first, ranks = local(parameters[0]), inner.size if inner else 1
        self._part = -(-sum(self._sizes) // ranks)
        self._like: dict[str, Any] = {"dtype": wide(first.dtype), "device": first.device}
        self._spare: tuple[torch.Tensor, torch.Tensor] | None = None
        self.allocate()

    def allocate(self) -> None:
        """Take new buffers: those of a torn collective belong to its backend for good."""
        if self._inner is None:
            self._sent = self._zeros(self._part + self._tail)
            self._flat = self._sent[: self._part]
            return
        self._flat = self._zeros(self._part * self._inner.size)
        self._sent = self._zeros(self._part + self._tail) if self._tail else self._mine()

    def widen(self, tail: int) -> None:
        """Have so many numbers behind the gradients; before the first reduction."""
        self._tail = tail
        self.allocate()

    def _zeros(self, count: int) -> torch.Tensor:
        import torch

        return torch.zeros(count, **self._like)

    def _mine(self) -> torch.Tensor:
        assert self._inner is not None  # noqa: S101 - asked only where there is one
        begin = self._inner.rank * self._part
        return self._flat[begin : begin + self._part]

    def take_back(self) -> None:
        """Use the buffer again that was kept by `swap`."""
        if self._spare is not None:
            (self._flat, self._sent), self._spare = self._spare, None

    def swap(self) -> None:
        """Use the other buffer from now on: the first keeps what it has."""
        kept, spare = (self._flat, self._sent), self._spare
        self._spare = kept
        if spare is None:
            self.allocate()
        else:
            self._flat, self._sent = spare

    @property
    def is_whole(self) -> bool:
        """All ranks of a replica of several have these parameters."""
        return self._inner is not None

    @property
    def tail(self) -> torch.Tensor:
        """The numbers behind the gradients."""
        return self._sent[self._sent.numel() - self._tail :]

    @property
    def reduced(self) -> torch.Tensor:
        """The gradient of the parameters, once it is reduced, scaled and gathered."""
        return self._flat

    def fill(self) -> None:
        """Copy the local sums; a parameter without a gradient gives zeros."""
        import torch

        views, given = [], []
        for view, one in zip(self._views(), self.parameters, strict=True):
            if one.grad is None:
                view.zero_()
            else:
                views.append(view)
                given.append(local(one.grad))
        if given:
            torch._foreach_copy_(views, given)

    def sum_inside(self) -> Work | None:
        """Start the sum within the replica; None: there is none to make."""
        return self._inner.begin_sum(self._flat) if self._inner else None

    def sum_nothing_inside(self) -> None:
        """Take part in the sum within the replica with zeros, that is for nothing; wait for it."""
        import torch

        if self._inner is not None:
            self._inner.begin_sum(torch.zeros_like(self._flat)).wait()

    def sum_over(self, replicas: Group) -> Work:
        """Start the sum over replicas."""
        if self._inner is not None and self._tail:
            self._sent[: self._part].copy_(self._mine())
        return replicas.begin_sum(self._sent)

    def scale(self, factor: float) -> None:
        """Multiply the sum over replicas; with the ranks of a replica it becomes their mean."""
        ranks = self._inner.size if self._inner else 1
        self._sent[: self._part].mul_(factor / ranks)

    def gather_inside(self) -> None:
        """Put the parts of the replica's ranks together; raises SyncError."""
        if self._inner is None:
            return
        mine = self._sent[: self._part].clone()
        self._inner.begin_gather(self._flat, mine).wait()

    def write(self) -> None:
        """Put the reduced gradient in the parameters' `.grad`."""
        import torch

        grads = []
        for one in self.parameters:
            if one.grad is None:
                one.grad = torch.empty_like(one)
            grads.append(local(one.grad))
        torch._foreach_copy_(grads, self._views())

    def _views(self) -> list[torch.Tensor]:
        """Return the parameters' places, in their shapes: a gradient may have other strides."""
        flat = self._flat[: sum(self._sizes)].split(self._sizes)
        return [
            one.view(local(each).shape) for one, each in zip(flat, self.parameters, strict=True)
        ]


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums are made in."""
    import torch

    return torch.float64 if dtype is torch.float64 else torch.float32


def buckets_of(parameters: Sequence[Any], own: Group, tail: int, limit: int) -> list[Bucket]:
    """Return buckets in the order in which a backward pass fills them.

    Args:
        parameters: In the order of the model.
        own: The ranks of this replica.
        tail: Numbers behind the last bucket's gradients.
        limit: Bytes after which a bucket takes no further parameter; the first one is smaller.
    """
    from torch.distributed.tensor import DTensor

    groups: list[list[Any]] = []
    newest: dict[tuple[Any, ...], list[Any]] = {}
    for one in reversed(parameters):
        mine = local(one)
        whole = own.size > 1 and not isinstance(one, DTensor)
        key = mine.dtype, mine.device, whole
        open_one = newest.get(key)
        room = min(limit, FIRST) if groups and open_one is groups[0] else limit
        if open_one is None or sum(local(each).nbytes for each in open_one) >= room:
            open_one = newest[key] = []
            groups.append(open_one)
        open_one.append(one)
    return [
        Bucket(
            some,
            own if own.size > 1 and not isinstance(some[0], DTensor) else None,
            tail if some is groups[-1] else 0,
        )
        for some in groups
    ]


class Reduction:
    """One reduction of all buckets, begun in the backward pass and ended behind it."""

    def __init__(
        self, buckets: Sequence[Bucket], replicas: Group, fill_tail: Callable[[Any], None]
    ) -> None:
        """Begin with no bucket filled.

        Args:
            buckets: In the order of the collectives, which is the same on all ranks.
            replicas: Ranks that hold this rank's part, one of each replica.
            fill_tail: Writes the numbers behind the last bucket, when that is filled.
        """
        self._buckets, self._replicas, self._fill_tail = buckets, replicas, fill_tail
        self._left = [len(one.parameters) for one in buckets]
        self._inside: list[Work | None] = []
        """Of the buckets that are filled."""
        self._over: list[Work] = []
        """Of those whose sum over replicas is begun."""
        self.first_is_whole = False

    def give_up(self) -> None:
        """Leave the buffers that a torn collective may write to; the step before keeps its own."""
        self._buckets[0].take_back()
        for bucket in self._buckets[1 : len(self._inside)]:
            bucket.allocate()

    def ready(self, number: int) -> bool:
        """Count a parameter of a bucket that has its gradient; False: it had one before."""
        self._left[number] -= 1
        if number < len(self._inside):
            return False
        self.advance()
        return True

    def advance(self, *, rest: bool = False) -> None:
        """Begin what can be begun without a wait; with `rest`, also buckets that are not ready.

        Raises:
            SyncError: a rank is gone.
        """
        while len(self._inside) < len(self._buckets):
            number = len(self._inside)
            if not (rest or self._left[number] <= 0) or not self._may_fill(number, wait=rest):
                break
            bucket = self._buckets[number]
            bucket.fill()
            if number == len(self._buckets) - 1:
                self._fill_tail(bucket.tail)
            self._inside.append(bucket.sum_inside())
            self._reduce(wait=False)
        self._reduce(wait=rest)

    def finish(self) -> None:
        """Wait until all is reduced; raises SyncError."""
        self.advance(rest=True)
        for work in self._over:
            work.wait()

    def abandon(self) -> None:
        """Make the sums within the replica that its other ranks may make in this attempt.

        Raises:
            SyncError: a rank of this replica is gone.
        """
        for work in self._inside:
            if work is not None:
                work.wait()
        for bucket in self._buckets[len(self._inside) :]:
            bucket.sum_nothing_inside()

    def _may_fill(self, number: int, *, wait: bool) -> bool:
        """Tell if the reduced gradient of the step before may be overwritten."""
        if number == 0 or self.first_is_whole:
            return True
        if wait:
            self._reduce(wait=True)
        elif not (self._over and self._over[0].is_done):
            return False
        self._over[0].wait()
        self.first_is_whole = True
        return True

    def _reduce(self, *, wait: bool) -> None:
        """Begin the sum over replicas of the buckets whose sum inside is there, in their order."""
        while len(self._over) < len(self._inside):
            work = self._inside[len(self._over)]
            if work is not None:
                if not (wait or work.is_done):
                    return
                work.wait()
            self._over.append(self._buckets[len(self._over)].sum_over(self._replicas))
