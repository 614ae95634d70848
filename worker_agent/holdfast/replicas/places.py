"""Places of readers of shards: they travel with the gradient that was made of their records.

Belongs here: the numbers behind a sum, and what each replica knows of the others. Does not belong
here: reading (`holdfast.data.shards`), the collectives (`buckets`).

A replica that is lost with its agent tells nobody how far it had read. Those that are left have its
gradient in their newest whole sum, and so the place that came with it: exactly what counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.replicas.reader_place import LostPlace, ReaderPlace

if TYPE_CHECKING:
    import torch

TELLERS: Final = 3
"""Replicas that tell where a lost one was: one of them may be lost, too, and with ten thousand the
master need not hear the same of all."""
_REMEMBERED: Final = 64
"""Lost replicas whose places are kept: one that comes back may be lost before its next sum."""
_BITS: Final = 22
"""Of a part of a number: float32 carries 24 exactly."""
_PART: Final = 1 << _BITS
_WIDTH: Final = 4
"""Numbers of one reader: its shard and its position, in two parts each."""


class PlacedReader(Protocol):
    """A reader of shards in this process."""

    @property
    def name(self) -> str:
        """Name of its data, alike on all replicas."""

    def reducing(self, step: int) -> ReaderPlace | None:
        """Return where it is when a sum is reduced for a step; None: it has read nothing."""

    def tell_lost(self, lost: Sequence[LostPlace], torn: int) -> None:
        """Tell those who lease shards where readers of lost replicas were, in which step."""


class ReaderPlaces:
    """Places of this replica's readers and of the others'."""

    def __init__(self) -> None:
        """Begin with no reader."""
        self._readers: list[PlacedReader] = []
        self._known: dict[int, tuple[int, list[ReaderPlace | None]]] = {}
        """By replica: the step, and the place of each reader after it."""
        self._lost: dict[int, tuple[int, list[ReaderPlace | None]]] = {}
        """The same of those that were lost, the newest last."""

    def add(self, reader: PlacedReader) -> None:
        """Have the place of a reader travel."""
        self._readers.append(reader)

    @property
    def names(self) -> list[str]:
        """Return the names of the readers, in the order in which their places travel."""
        return [one.name for one in self._readers]

    def size(self, micro_batches: int) -> int:
        """Return the numbers that travel: a row for each micro-batch, whose owner writes it."""
        return micro_batches * self._row if self._readers else 0

    @property
    def _row(self) -> int:
        return 1 + _WIDTH * len(self._readers)

    def fill(self, numbers: torch.Tensor, micro_batch: int, me: int, step: int) -> None:
        """Write this replica's places into the row of a micro-batch that only it has.

        Args:
            numbers: `size` zeros.
            micro_batch: One of its sum.
            me: Number of this replica.
            step: Steps that are applied with this one.
        """
        import torch

        row = [float(me + 1)]
        for one in self._readers:
            row += _numbers(one.reducing(step))
        begin = micro_batch * self._row
        given = torch.tensor(row, dtype=numbers.dtype, device=numbers.device)
        numbers[begin : begin + self._row] = given

    def owners(self, numbers: Sequence[float]) -> set[int]:
        """Return the replicas whose records are in a sum that has these numbers."""
        return {round(one) - 1 for one in numbers[:: self._row] if one}

    def note(self, numbers: Sequence[float], step: int) -> None:
        """Keep the places that came with a whole sum, made over the replicas.

        Args:
            numbers: Of `size`.
            step: Steps that are applied with this one.
        """
        for begin in range(0, len(numbers), self._row):
            owner, *row = map(round, numbers[begin : begin + self._row])
            if owner:
                starts = range(0, len(row), _WIDTH)
                places = [_place(row[at : at + _WIDTH]) for at in starts]
                self._known[owner - 1] = step, places

    def meet(
        self, me: int, members: Sequence[int], fresh: Collection[int], step: int, epoch: int
    ) -> None:
        """Tell where readers of lost replicas were, and forget these.

        Args:
            me: This replica.
            members: Replicas that go on.
            fresh: Those of them that begin, or are given the state: they have read nothing that
                counts, and of others they know nothing.
            step: Steps that are applied. A lost one may have applied the next one alone.
            epoch: Of the members.
        """
        if me in fresh:
            self._known, self._lost = {}, {}
        lost = {one: self._known.pop(one) for one in self._known.keys() - set(members)}
        if me in [one for one in members if one not in fresh][:TELLERS]:
            for at, reader in enumerate(self._readers if lost else []):
                told = [
                    LostPlace(one, when, places[at], epoch) for one, (when, places) in lost.items()
                ]
                reader.tell_lost(told, step + 1)
        self._known |= {one: self._lost.pop(one) for one in members if one in self._lost}
        for one in fresh:
            self._known.setdefault(one, (step, [None for _ in self._readers]))
        self._lost |= lost
        for one in [*self._lost][:-_REMEMBERED]:
            del self._lost[one]


def _numbers(place: ReaderPlace | None) -> Iterable[float]:
    """Return `_WIDTH` numbers for a place; all are zero for none."""
    ordinal, position = (place.ordinal + 1, place.position + 1) if place else (0, 0)
    for value in (ordinal, position):
        yield from map(float, divmod(value, _PART))


def _place(numbers: Sequence[int]) -> ReaderPlace | None:
    """Return the place that `_numbers` made these of."""
    ordinal, position = (numbers[at] * _PART + numbers[at + 1] for at in (0, 2))
    return ReaderPlace(ordinal - 1, position - 1) if ordinal else None
