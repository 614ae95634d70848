"""Micro-batches of one rank of a plain world, whose global batch stays as it is at a resize.

Belongs here: a batch sampler for a DataLoader, and the factor of a loss under
DistributedDataParallel. Does not belong here: replicas that nobody restarts (`holdfast.replicas`).

A step has G micro-batches in any world. Rank r of n takes the r-th, the r+n-th and so on: one more
than others, where n does not divide G. The learning rate stays, since the batch is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.data.sample_map import Last, SampleMap


class QuotaSampler:
    """Lists of samples for one rank, a list for each of its micro-batches, step by step."""

    def __init__(
        self, samples: SampleMap, rank: int, world_size: int, *, start: int = 0, epochs: int = 1
    ) -> None:
        """Take the place in the world.

        Args:
            samples: The map, the same on all ranks and in all worlds of a training.
            rank: Of this process.
            world_size: Ranks of the world, at most as many as a step has micro-batches.
            start: Steps that a checkpoint has.
            epochs: Until the training ends.

        Raises:
            ValueError: the rank is not in the world, or some rank would have nothing to do.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: expected 0 to {world_size - 1}, by world_size")
        if world_size > samples.micro_batches:
            raise ValueError(
                f"world_size={world_size}: a step has {samples.micro_batches} micro-batches, and "
                "each rank needs one; make more and smaller ones, or limit the world (maxReplicas)"
            )
        if samples.last is Last.SHORT:
            raise ValueError(
                "last='short': the last micro-batches of an epoch may be empty, and each rank has "
                "as many as the others; pass 'drop' or 'pad'"
            )
        self.samples, self.start = samples, start
        self.rank, self._world_size = rank, world_size
        self.end = epochs * samples.steps_of_epoch
        """Steps of the whole training."""

    @property
    def quota(self) -> int:
        """Micro-batches of this rank in each step."""
        return len(self.numbers)

    @property
    def ddp_factor(self) -> float:
        """Factor of each micro-batch's mean loss, under DDP or FSDP, which divide by the ranks.

        Accumulate all of a step (`no_sync` but for the last), and the gradient is the mean over
        all micro-batches of the step.
        """
        return self._world_size / self.samples.micro_batches

    def __len__(self) -> int:
        """Return the lists that are left."""
        return max(0, self.end - self.start) * self.quota

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the samples of each micro-batch."""
        for step in range(self.start, self.end):
            for number in self.numbers:
                yield self.samples.ids(step, number)

    @property
    def numbers(self) -> range:
        """Micro-batches of this rank in each step, by their numbers."""
        return range(self.rank, self.samples.micro_batches, self._world_size)
