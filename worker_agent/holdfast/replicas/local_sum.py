"""Sum of a replica's gradients in one step, and its reduction over the replicas.

Belongs here: which micro-batches are in the sum, when buckets are reduced, and whether the result
is whole. Does not belong here: buffers and collectives (`buckets`), and what members do about a
reduction that is torn (`replicated`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.replicas.buckets import EXTRA, Bucket, Reduction, buckets_of, local
from holdfast.replicas.errors import ContentError, ModelError
from holdfast.replicas.places import PlacedReader, ReaderPlaces
from holdfast.replicas.refusals import check_gradients, check_model, check_parameters, names_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class LocalSum:
    """The gradients of one rank's micro-batches, in `.grad`."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        own: Group,
        *,
        micro_batches: int,
        bucket_bytes: int,
        overlap: bool,
    ) -> None:
        """Take the parameters; hooks on them stay.

        Args:
            models: Whose parameters are trained.
            own: The ranks of this replica.
            micro_batches: Of a step.
            bucket_bytes: Of gradients that are reduced together.
            overlap: Reduce beside the backward pass.

        Raises:
            ModelError: a model cannot be replicated as it is.
        """
        check_model(models, own.size)
        self._models, self._own, self._micro_batches = models, own, micro_batches
        trained = {id(one): one for each in models for one in each.parameters()}
        self._parameters = [one for one in trained.values() if one.requires_grad]
        if not self._parameters:
            raise ModelError("the model has no parameter that needs a gradient")
        self._counted = micro_batches + EXTRA
        """Numbers behind the gradients that come before the places of readers."""
        self.places = ReaderPlaces()
        self.buckets: list[Bucket] = buckets_of(self._parameters, own, self._counted, bucket_bytes)
        self.keeps = False
        """The buffers have the reduced gradient of the newest step."""
        self.gave = self.content = frozenset[int]()
        """Micro-batches of this replica's sum, and of the whole one, in the newest reduction."""
        self.total = math.nan
        """Weight of the whole one."""
        self._is_checked = self._has_had_all = False
        if overlap and not self._is_mixed():
            self._hook()
        self.drop()

    def form(self) -> dict[str, float]:
        """Return what must be equal on all replicas, by its name."""
        shapes = [(tuple(local(one).shape), str(one.dtype)) for one in self._parameters]
        sizes = [len(one.parameters) for one in self.buckets]
        return {
            "micro_batches": float(self._micro_batches),
            "model (shapes and dtypes of its parameters)": _number(shapes),
            "bucket_bytes": _number(sizes),
            "shard readers (their names, in order)": _number(self.places.names),
        }

    def carry_place(self, reader: PlacedReader) -> None:
        """Have the place of a reader travel with the sum; before the first reduction."""
        self.places.add(reader)
        self.buckets[-1].widen(self._counted + self.places.size(self._micro_batches))

    def drop(self) -> None:
        """Begin with zeros."""
        for one in self._parameters:
            one.grad = None
        self.held: set[int] = set()
        """Micro-batches that are in the sum."""
        self.torn = ""
        """Why the reduction is torn; "": it is not, so far."""
        self._weight, self._now = 0.0, None
        self._attempt: Reduction | None = None
        self._others = 0.0
        self._told, self.told_places = [], list[float]()

    _now: float | None
    """Weight of the micro-batch in work; None: it counts as one."""
    _told: list[float]
    """Numbers that came with the whole sum; empty: it is torn."""
    told_places: list[float]
    """Those of the places of readers (`ReaderPlaces.note`)."""

    def weigh(self, weight: float) -> None:
        """Add to the weight of the micro-batch in work."""
        self._now = (self._now or 0.0) + weight

    def add(self, number: int) -> None:
        """Count a micro-batch whose gradient is in the sum."""
        self.held.add(number)
        self._weight += 1.0 if self._now is None else self._now
        self._now = None

    def check_again(self) -> None:
        """Look at the model's parameters once more, in the next reduction."""
        self._is_checked = False

    def arm(
        self,
        replicas: Group,
        deal: Sequence[int],
        rate: float,
        place: tuple[int, int],
        sees_change: Callable[[], bool],
    ) -> None:
        """Reduce buckets from now on as they are filled: the last micro-batch begins.

        Args:
            replicas: The members.
            deal: Micro-batches that are in the sum once it ends, besides those that are.
            rate: The learning rate, which all must have.
            place: Number of this replica, and the steps that are applied with this one.
            sees_change: Tells if there is another roster than the one that is followed.
        """
        self.buckets[0].swap()

        def fill(tail: torch.Tensor) -> None:
            held, counted = sorted({*self.held, *deal}), tail[: self._counted]
            tail.zero_()
            self._fill(counted, held, rate)
            counted[-1] = sees_change()
            if held and self.places.names:
                self.places.fill(tail[self._counted :], held[0], *place)

        self._attempt, self._replicas = Reduction(self.buckets, replicas, fill), replicas

    @property
    def is_armed(self) -> bool:
        """Buckets are reduced as they are filled."""
        return self._attempt is not None

    def reduce(self, is_lost: Callable[[], bool]) -> tuple[bool, bool]:
        """Return (the reduction is torn, members are to meet), as all ranks of the replica know.

        They tell each other in one exchange, within replicas of several ranks only: they share
        collectives, so none may go on to the next forward alone. No vote is made over replicas.

        Args:
            is_lost: Tells if a member is lost, for which no member waits.
        """
        if not self._is_checked:
            self._is_checked = True
            check_parameters(self._models, self._parameters)
        if self._weight and not self._has_had_all:
            self._has_had_all = True
            check_gradients(self._models)
        attempt, self._attempt = self._attempt, None
        assert attempt is not None  # noqa: S101 - `arm` comes first
        if not self.torn:
            try:
                attempt.finish()
            except SyncError as error:
                self.torn = str(error)
        tail = [] if self.torn else self._tail()
        self._told, self.told_places = tail[: self._counted], tail[self._counted :]
        first, all_see, lost = attempt.first_is_whole, self._all_see(), is_lost()
        if self._own.size > 1:
            first, all_see, lost = self._tell(attempt, all_see=all_see, lost=lost)
        self.keeps &= not first
        if self.torn:
            attempt.give_up()
        return bool(self.torn), all_see or lost

    def _all_see(self) -> bool:
        """Tell if each replica sees another roster; all read the same sum, and so meet at once.

        One whose roster came late would make those that meet wait for a whole step of it.
        """
        return bool(self._told) and int(self._told[-1]) == self._replicas.size

    def _tell(self, attempt: Reduction, *, all_see: bool, lost: bool) -> tuple[bool, bool, bool]:
        """Return what holds on any rank of this replica; of `all_see`, what holds on all."""
        if self.torn:
            attempt.abandon()
        weight = self._told[-EXTRA] if self._told else 0.0
        own = bool(self.torn), attempt.first_is_whole, lost, all_see
        told = self._own.gather_scalars([*map(float, own), weight])
        torn, first, losses, sees, weights = zip(*told, strict=True)
        self._others = sum(weights) - weight
        if any(torn) and not self.torn:
            self.torn = "it was torn on another rank of this replica"
        return any(first), all(sees), any(losses)

    def write(self, *, least: int, rate: float) -> None:
        """Put the gradient of the whole step in place, and keep it.

        Args:
            least: Times that each micro-batch must be in the sum; 0: it may be missing.
            rate: This rank's learning rate.

        Raises:
            ContentError: a micro-batch is missing or doubled, or rates differ.
        """
        *counts, weight, rates, _ = self._told
        _check_contents(counts, least)
        _check_rate(rates / sum(counts), rate)
        self.gave = frozenset(self.held)
        self.content = frozenset(at for at, one in enumerate(counts) if one)
        self.total = (weight + self._others) / self._own.size
        for bucket in self.buckets:
            bucket.scale(1 / self.total if self.total else 0.0)
            bucket.gather_inside()
        self.write_kept()

    def take_kept(self, receive: Callable[[torch.Tensor], None]) -> None:
        """Take the reduced gradient of a step that others keep, for `write_kept`.

        Args:
            receive: Fills a tensor.

        Raises:
            SyncError: it was not given whole; the local sum is as it was.
        """
        self.keeps = False
        tail = self.buckets[-1].tail
        try:
            for bucket in self.buckets:
                receive(bucket.reduced)
            receive(tail)
        except SyncError:
            for bucket in self.buckets:
                bucket.allocate()
            raise
        numbers = self._tail()
        self._told, self.told_places = [], numbers[self._counted :]
        self._given = frozenset(at for at, one in enumerate(numbers[: self._micro_batches]) if one)

    _given: frozenset[int] = frozenset()
    """Micro-batches in the gradient that `take_kept` has taken."""

    def has_given(self, me: int) -> bool:
        """Tell if what this replica holds is in the gradient that `take_kept` has taken.

        Others may have computed a micro-batch of the same number, from records of their own.
        """
        if self.held and self.places.names:
            return me in self.places.owners(self.told_places)
        return self.held <= self._given

    def give_kept(self, give: Callable[[torch.Tensor], None], *, is_source: bool) -> None:
        """Give what is kept to those that `take_kept`; nothing is written to it.

        Args:
            give: Sends a tensor; of ranks that are not the source it fills one.
            is_source: It is this rank's that is given.
        """
        import torch

        for one in (*(bucket.reduced for bucket in self.buckets), self.buckets[-1].tail):
            give(one if is_source else torch.empty_like(one))

    def write_kept(self) -> None:
        """Put the reduced gradient that the buffers have in place."""
        for bucket in self.buckets:
            bucket.write()
        self.held, self.keeps = set(), True

    def _tail(self) -> list[float]:
        tail: list[float] = self.buckets[-1].tail.tolist()
        return tail

    def _fill(self, tail: torch.Tensor, held: Sequence[int], rate: float) -> None:
        """Write what is in the sum; a micro-batch that is not counted yet is in work."""
        import torch

        weight = self._weight
        if len(held) > len(self.held):
            weight += 1.0 if self._now is None else self._now
        tail[torch.tensor(held, dtype=torch.long, device=tail.device)] = 1
        tail[-EXTRA], tail[1 - EXTRA] = weight, rate * len(held)

    def _is_mixed(self) -> bool:
        """Tell if the replica's ranks have whole parameters beside sharded ones.

        Sums of whole ones are made within the replica, in the group that gathers sharded ones. In
        a backward pass they would come between those at another place on each rank.
        """
        return len({bucket.is_whole for bucket in self.buckets}) > 1

    def _hook(self) -> None:
        names = names_of(self._models)
        for number, bucket in enumerate(self.buckets):
            for one in bucket.parameters:
                one.register_post_accumulate_grad_hook(self._ready(number, names[id(one)]))

    def _ready(self, number: int, name: str) -> Callable[[Any], None]:
        def ready(_: Any) -> None:
            if self._attempt is None or self.torn:
                return
            try:
                in_time = self._attempt.ready(number)
            except SyncError as error:
                self.torn = str(error)  # told behind the backward pass, which goes on
                return
            if not in_time:
                raise ModelError(
                    f"{name}: it has more than one gradient in a micro-batch, as with a reentrant "
                    "checkpoint or two backward passes; pass overlap=False, or use_reentrant=False"
                )

        return ready


def _number(value: object) -> float:
    """Return a number that stands for a value, and that a float64 carries exactly."""
    return float(zlib.crc32(repr(value).encode()))


def _check_contents(counts: Sequence[float], least: int) -> None:
    wrong = {at: int(one) for at, one in enumerate(counts) if not least <= one <= 1}
    if wrong or not sum(counts):
        raise ContentError(
            f"a step's sum has micro-batches so many times: {wrong}, and each must be in it once; "
            "this is a fault of Holdfast: report it with the log of all ranks"
        )


def _check_rate(mean: float, mine: float) -> None:
    if abs(mean - mine) > 1e-5 * abs(mine):
        raise ContentError(
            f"the learning rate is {mine:g} here and {mean:g} on average over the replicas; call "
            "replicated.carry('schedule', scheduler) before the first step, so that joiners are "
            "given it"
        )
