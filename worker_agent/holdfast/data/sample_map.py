"""Samples of each micro-batch of each step, as a pure function of seed and step.

Belongs here: the map for data whose samples have numbers (map-style). Does not belong here: reading
them (`batches`), and who computes which micro-batch.

A resume, a resize and a loss need no state but the step: samples hang on nothing else. So they are
the same ones in each step, whoever computes them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools

from holdfast.data.permutation import Permutation


class Last(enum.StrEnum):
    """The samples at an epoch's end that are no whole step."""

    DROP = "drop"
    """They are left out, other ones in each epoch where it is shuffled."""
    PAD = "pad"
    """The step is filled up with the epoch's first samples, which so are used twice."""
    SHORT = "short"
    """The step has fewer samples: its last micro-batches are smaller, or empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class EpochStep:
    """A step in its epoch."""

    epoch: int
    """From 0."""
    step: int
    """In the epoch, from 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleMap:
    """The map from a step and the number of a micro-batch to samples."""

    samples: int
    """Of the data set."""
    micro_batch: int
    """Samples of a micro-batch."""
    micro_batches: int
    """Of a step, in the whole job."""
    seed: int = 0
    shuffle: bool = True
    """False: samples come in the order of their numbers."""
    last: Last = Last.DROP

    def __post_init__(self) -> None:
        """Refuse what gives no step; raises ValueError."""
        for name in ("samples", "micro_batch", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more")
        if not self.steps_of_epoch:
            raise ValueError(
                f"samples={self.samples}: fewer than the {self._per_step} of one step "
                f"(micro_batches={self.micro_batches} of micro_batch={self.micro_batch}), and "
                "last='drop' leaves them all out; make the step smaller, or pass 'pad' or 'short'"
            )

    @property
    def _per_step(self) -> int:
        return self.micro_batch * self.micro_batches

    @property
    def steps_of_epoch(self) -> int:
        """Steps of each epoch."""
        whole, rest = divmod(self.samples, self._per_step)
        return whole + bool(rest and self.last is not Last.DROP)

    def place(self, step: int) -> EpochStep:
        """Return where a step is, steps being counted over all epochs from 0."""
        return EpochStep(*divmod(step, self.steps_of_epoch))

    def ids(self, step: int, number: int) -> list[int]:
        """Return the samples of one micro-batch of a step, counted over all epochs.

        Raises:
            IndexError: a step has no such micro-batch.
        """
        if not 0 <= number < self.micro_batches or step < 0:
            raise IndexError(
                f"step {step}, micro-batch {number}: steps count from 0, and each has "
                f"{self.micro_batches}"
            )
        place = self.place(step)
        begin = place.step * self._per_step + number * self.micro_batch
        places = range(begin, begin + self.micro_batch)
        order = self._order(place.epoch)
        if self.last is Last.PAD:
            return [order[one % self.samples] for one in places]
        return [order[one] for one in places if one < self.samples]

    def _order(self, epoch: int) -> Permutation | range:
        if not self.shuffle:
            return range(self.samples)
        return _permutation(self.samples, self.seed, epoch)


_permutation = functools.lru_cache(maxsize=4)(Permutation)
