"""Batches of synchronous replicas: each micro-batch of a step, read by who computes it.

Belongs here: reading ahead, and what becomes of that when members change. Does not belong here:
which samples a micro-batch has (`sample_map`), and who computes it (`holdfast.replicas`).

The loader reads ahead what this replica computes if nothing happens. Where members change, what was
read and is still wanted is used, what is wanted and was not is read at once, and the rest is
dropped and counted. So nothing hangs on the loader's own position: there is no state to save.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.data.counting import Origin, Read
from holdfast.data.permutation import mixed
from holdfast.data.record import SampleRecord, generation
from holdfast.data.sample_map import Last, SampleMap

if TYPE_CHECKING:
    from holdfast.replicas.replicated import Replicated

Key = tuple[int, int]
"""A step, counted over all epochs, and the number of a micro-batch in it."""
_SEED: Final = (1 << 63) - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What is seldom set of `Batches`."""

    shuffle: bool = True
    """False: samples come in the order of their numbers."""
    last: Last = Last.DROP
    """The samples at an epoch's end that are no whole step. Short micro-batches count as whole
    ones unless `Replicated.weigh` says their weight; empty ones are not yielded."""
    reseed: bool = True
    """Seed torch, random and NumPy before each micro-batch, in workers before it is read, by seed,
    step and micro-batch. So dropout and augmentation are the same whichever replica computes it."""
    data_rank: tuple[int, int] | None = None
    """Number of this rank among those of its replica that have data of their own, and their count;
    None: all of them. (0, 1) where all have the same, as under tensor parallelism alone."""
    record: str | Path = ""
    """Folder, shared by all ranks, that each writes the numbers of its samples into; `holdfast
    samples` counts them. "": none does."""


class Batches:
    """Steps of a training, and this replica's micro-batches in each."""

    def __init__(
        self,
        dataset: Any,
        replicated: Replicated,
        *,
        micro_batch: int,
        seed: int = 0,
        epochs: int = 1,
        options: BatchOptions = BatchOptions(),
        loader: Callable[..., Any] | None = None,
        **settings: Any,
    ) -> None:
        """Take the data set; nothing is read before the first step.

        Args:
            dataset: With `len()` and `[number]`; `__getitems__` is used where it has one.
            replicated: Deals out micro-batches.
            micro_batch: Samples of a micro-batch, over all ranks of a replica that have data of
                their own.
            seed: Of the order, and of random numbers in a micro-batch.
            epochs: Until the training ends.
            options: The rest.
            loader: Reads ahead; None: torch's DataLoader. torchdata's StatefulDataLoader fits.
            settings: Of the loader, such as num_workers, prefetch_factor and collate_fn.

        Raises:
            ValueError: a setting is not valid.
        """
        self.map = SampleMap(
            samples=len(dataset), micro_batch=micro_batch, seed=seed, shuffle=options.shuffle,
            micro_batches=replicated.micro_batches, last=Last(options.last),
        )  # fmt: skip
        rank, ranks = options.data_rank or (replicated.own.rank, replicated.own.size)
        if micro_batch % ranks:
            raise ValueError(
                f"micro_batch={micro_batch}: it is cut into equal parts for the {ranks} ranks of a "
                "replica; pass a multiple of them"
            )
        if ranks > 1 and self.map.last is Last.SHORT:
            raise ValueError(
                f"last='short': of a short micro-batch some of the {ranks} ranks of a replica may "
                "have no sample, and would leave the others alone in forward; pass 'drop' or 'pad'"
            )
        self._part, self._ranks = rank, ranks
        self._replicated, self._reseeds = replicated, options.reseed
        self.end = epochs * self.map.steps_of_epoch
        """Steps of the whole training."""
        self._read = _Reader(dataset, settings.pop("collate_fn", None), reseed=options.reseed)
        self._loader, self._settings = loader, settings
        self._record = SampleRecord(options.record) if options.record else None
        self._ahead: Iterator[Any] | None = None
        self._asked: set[Key] = set()
        """Of the loader, which has not given them yet."""
        self._kept: dict[Key, Any] = {}
        self.dropped = 0
        """Micro-batches that were read ahead and that another replica has computed."""

    def steps(self, start: int | None = None) -> Iterator[Step]:
        """Yield the steps from `start` to the end; a joiner goes on where the others are.

        Args:
            start: Steps that a checkpoint has; None: `Replicated.steps`.
        """
        if start is not None:
            self._replicated.steps = start
        try:
            while self._replicated.steps < self.end:
                yield Step(self, self._replicated)
        finally:
            self.close()

    def close(self) -> None:
        """End the loader's workers, and drop what was read ahead."""
        self._ahead = None
        self._asked.clear()
        self._kept.clear()
        if self._record is not None:
            self._record.close()

    def read(self, key: Key) -> tuple[bool, Any]:
        """Return whether a micro-batch has samples for this rank, and its batch."""
        if not self._is_ahead(key):
            request = self._request(key)
            if not request.ids:
                return False, None
            batch = self._read.now(request)
        else:
            batch = self._kept.pop(key)
        self._write_down(key)
        if self._reseeds:
            seed_all(self._seed(key))
        return True, batch

    def _write_down(self, key: Key) -> None:
        """Record what is read, before it is reduced."""
        if self._record is None:
            return
        step, number = key
        self._begin_record(self._record)
        epoch = self.map.place(step).epoch
        self._record.read(Read(step + 1, number, self._part, epoch, tuple(self._ids(key))))

    def _begin_record(self, record: SampleRecord) -> None:
        if not record.has_begun:
            mine, began = self._replicated.replica, self._replicated.began
            name = None if began is None else generation(began.epoch)
            start = self._replicated.steps if began is None else began.steps
            record.begin(Origin(mine, name, start, self.map.samples, self.map.micro_batch))

    def end_step(self) -> None:
        """Record a step whose gradient is in place, and drop what was read ahead for it."""
        step = self._replicated.steps
        if self._record is not None:
            gave, content = self._replicated.contents or (frozenset(), None)
            self._begin_record(self._record)
            self._record.applied(step, gave, content)
        for key in [one for one in self._kept if one[0] < step]:
            del self._kept[key]
            self.dropped += 1

    def _is_ahead(self, key: Key) -> bool:
        """Take what the loader has read, up to this micro-batch; tell if it has."""
        if self._ahead is None:
            self._ahead = self._start()
        while key not in self._kept and key in self._asked:
            read, batch = next(self._ahead)
            self._asked.discard(read)
            self._kept[read] = batch
        return key in self._kept

    def _start(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        make: Any = self._loader or DataLoader
        return iter(
            make(
                self._read, batch_sampler=_Asks(self), collate_fn=self._read.made, **self._settings
            )
        )

    def ask(self) -> Iterator[list[Any]]:
        """Yield what the loader is to read, from the step that is now on."""
        step = self._replicated.steps
        while step < self.end:
            replicas, mine = self._replicated.replicas, self._replicated.replica
            place = replicas.index(mine)
            for number in range(place, self.map.micro_batches, len(replicas)):
                request = self._request((step, number))
                if request.ids:
                    self._asked.add(request.key)
                    yield [request]
            step = max(step + 1, self._replicated.steps)

    def _request(self, key: Key) -> _Request:
        return _Request(key, self._seed(key), self._ids(key))

    def _ids(self, key: Key) -> list[int]:
        ids = self.map.ids(*key)
        each = -(-len(ids) // self._ranks)
        return ids[self._part * each : (self._part + 1) * each]

    def _seed(self, key: Key) -> int:
        word = self.map.seed & _SEED
        for one in (*key, self._part):
            word = mixed(word ^ one)
        return word & _SEED


class Step:
    """One step: iterate over it for this replica's batches, then step the optimizer."""

    def __init__(self, batches: Batches, replicated: Replicated) -> None:
        """Take the next step."""
        self._batches, self._replicated = batches, replicated

    @property
    def number(self) -> int:
        """Steps that are applied; that of a joiner is known in its first step."""
        return self._replicated.steps

    def __iter__(self) -> Iterator[Any]:
        """Yield batches; when it ends, `.grad` has the gradient of the whole step."""
        for number in self._replicated.dealt():
            has_samples, batch = self._batches.read((self._replicated.steps, number))
            if has_samples:
                yield batch
            else:
                self._replicated.weigh(0)
        self._batches.end_step()


class _Request(NamedTuple):
    """What a worker is to read."""

    key: Key
    seed: int
    ids: Sequence[int]


class _Asks:
    """What a loader takes for a sampler of batches."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        return self._batches.ask()


class _Reader:
    """A data set whose items are whole micro-batches, read by a worker or at once."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any] | None, *, reseed: bool
    ) -> None:
        self._dataset, self._collate, self._reseed = dataset, collate, reseed

    def __getitem__(self, request: _Request) -> tuple[Key, Any]:
        return request.key, self.now(request)

    def made(self, batches: list[Any]) -> Any:
        """Return the one batch of a request, with its key: a loader may change their order."""
        [batch] = batches
        return batch

    def now(self, request: _Request) -> Any:
        """Read a micro-batch."""
        ids = request.ids
        if self._reseed:
            seed_all(request.seed)
        several = getattr(self._dataset, "__getitems__", None)
        samples = several(list(ids)) if several else [self._dataset[one] for one in ids]
        from torch.utils.data import default_collate

        return (self._collate or default_collate)(samples)


def seed_all(seed: int) -> None:
    """Seed torch, random, and NumPy where it is there."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(seed % (1 << 32))  # noqa: NPY002 - it is the global one that data sets use
