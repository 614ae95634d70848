"""Synchronous replicas of a model: one gradient for all, whoever comes and goes.

Belongs here: the course of a step on one rank. Does not belong here: buffers and collectives
(`buckets`), what members agree on (`meeting`), a joiner's state (`healing`).

torchft throws the step away in which a replica is lost (its manager votes in each step). Here a
step is finished by those that are left: ReCoVer and ElasWave name the rule, a fixed count of
micro-batches in each step.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.members.members import MembersError, Membership
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.unit_sync import all_or_none
from holdfast.replicas.buckets import BUCKET, EXTRA, Attempt, buckets_of
from holdfast.replicas.errors import ContentError, ModelError
from holdfast.replicas.healing import Healing, ReplicaState
from holdfast.replicas.meeting import Agreement, Standing, agree, lineage_of
from holdfast.replicas.refusals import check_gradients, check_model, names_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from holdfast.flash.trainer.leaves import Stateful
    from holdfast.local_sgd.members.members import Members

log: Final = logging.getLogger("holdfast")
_OWN: Final = 5
"""Numbers of a standing before its micro-batches."""


class OnLoss(enum.StrEnum):
    """The rest of a step in which a replica is lost."""

    RECOMPUTE = "recompute"
    """The others compute what it had not delivered: each step has all its micro-batches."""
    FEWER = "fewer"
    """The step is taken with those that are there; the mean is over them."""


class Replicated:
    """Parameters whose gradients are those of the whole job in each step."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Any,
        members: Members,
        *,
        micro_batches: int,
        on_loss: str = "recompute",
        overlap: bool = True,
        bucket_bytes: int = BUCKET,
    ) -> None:
        """Take the model; nobody is met before the first step.

        Args:
            model: A plain module, or one that `fully_shard` has cut over this replica's ranks.
            optimizer: Torch's, or several.
            members: The replicas of the job.
            micro_batches: Of each step, in the whole job; the same on all replicas.
            on_loss: "recompute" or "fewer" (`OnLoss`).
            overlap: Reduce beside the backward pass. False: behind it, for a loss whose backward
                runs in several parts.
            bucket_bytes: Of gradients that are reduced together.

        Raises:
            ModelError: the model cannot be replicated as it is.
            ValueError: a setting is not valid.
        """
        if micro_batches < 1:
            raise ValueError(f"micro_batches={micro_batches}: expected 1 or more")
        self.micro_batches, self._on_loss = micro_batches, OnLoss(on_loss)
        self._models: list[nn.Module] = _list(model)
        self._optimizers = _list(optimizer)
        self._members, self.own = members, members.shard_group
        check_model(self._models, self.own.size)
        trained = {id(one): one for each in self._models for one in each.parameters()}
        self._parameters = [one for one in trained.values() if one.requires_grad]
        if not self._parameters:
            raise ModelError("the model has no parameter that needs a gradient")
        tail = micro_batches + EXTRA
        self._buckets = buckets_of(self._parameters, self.own, tail, bucket_bytes)
        self._state = ReplicaState(
            self._models, self._optimizers, [one.parameters for one in self._buckets]
        )
        self._hook(overlap=overlap)
        self._begin_alone()

    def _begin_alone(self) -> None:
        """Be in no step and with no member yet."""
        self._group, self._membership = Group.of_one(), Membership(0, (0,), Group.of_one())
        self._attempt: Attempt | None = None
        self._torn = ""
        self._healings: list[Healing] = []
        self._is_new, self._joins = True, False
        self._others_weight = 0.0
        """Of the samples that the other ranks of this replica have computed."""
        self._keeps = self._is_checked = self._is_given = self._change_seen = False
        self._lineage = self._lineage_before = 0
        self._held: set[int] = set()
        self._weight = 0.0
        self._weight_now: float | None = None
        self._deal: tuple[int, ...] = ()
        self._agreed: tuple[int, tuple[int, ...]] | None = None
        """The step that members have agreed on, and what this replica is dealt in it."""
        self.steps = 0
        """Steps that are applied, those of a joiner's donor included; set it before the first
        step of a training that goes on from a checkpoint."""
        self.recomputed = 0
        """Micro-batches that this replica has computed for one that was lost."""

    def carry(self, name: str, one: Stateful) -> None:
        """Give joiners the state of this too: a scheduler, a GradScaler, counters.

        Raises:
            ReplicasError: the state is no plain data.
        """
        self._state.carry(name, one)

    def weigh(self, weight: float) -> None:
        """Count this rank's part of a micro-batch, whose loss is a sum, by its weight (tokens).

        Call it once for each micro-batch before its backward pass, or never: then each counts as
        one, and losses are means.
        """
        self._weight_now = (self._weight_now or 0.0) + weight

    @property
    def replica(self) -> int:
        """Number of this replica in the job."""
        return self._membership.replicas[self._group.rank]

    @property
    def replicas(self) -> tuple[int, ...]:
        """Numbers of the replicas that train together."""
        return self._membership.replicas

    def dealt(self) -> Iterator[int]:
        """Yield the micro-batches of the next step that this replica computes.

        Run forward and backward for each. When the iterator ends, `.grad` has the gradient of the
        whole step, the same bits on all replicas, and `optimizer.step()` is to follow. Where a
        replica is lost, more are yielded in the same step. A joiner may be yielded none.

        Raises:
            ContentError: a micro-batch is in the sum twice or not at all.
            MembersError: no roster came that this replica can follow.
            ModelError: a parameter has no gradient.
            SyncError: a rank of this replica is gone.
        """
        self._begin()
        while not self._is_given:
            for at, number in enumerate(self._deal, 1):
                if at == len(self._deal):
                    self._attempt = self._fresh_attempt()
                yield number
                self._add(number)
            if self._reduced():
                return
            self._meet(self._members.recover)

    def _begin(self) -> None:
        """Begin a step: with zeros, and with the members that are there."""
        self._drop_sum()
        self._is_given = False
        agreed, self._agreed = self._agreed, None
        if agreed is not None and agreed[0] == self.steps:
            self._deal = agreed[1]
        else:
            self._deal = tuple(range(self._group.rank, self.micro_batches, self._group.size))
        if self._is_new or self._has_changed():
            self._meet(self._members.refresh)

    def _add(self, number: int) -> None:
        """Count a micro-batch whose gradient is in the local sum."""
        self._held.add(number)
        self._weight += 1.0 if self._weight_now is None else self._weight_now
        self._weight_now = None

    def _has_changed(self) -> bool:
        """Tell if there is another roster: all ranks of this replica are told the same."""
        return self._members.has_changed() if self.own.size == 1 else self._change_seen

    def _drop_sum(self) -> None:
        """Begin with zeros."""
        for one in self._parameters:
            one.grad = None
        self._held, self._weight, self._weight_now = set(), 0.0, None
        self._attempt, self._torn = None, ""

    def _hook(self, *, overlap: bool) -> None:
        self._names = names_of(self._models)
        if overlap:
            for number, bucket in enumerate(self._buckets):
                for one in bucket.parameters:
                    one.register_post_accumulate_grad_hook(self._ready_of(number))
        for one in self._optimizers:
            one.register_step_pre_hook(lambda *_: self._end_healings())

    def _ready_of(self, number: int) -> Callable[[Any], None]:
        def ready(parameter: Any) -> None:
            attempt = self._attempt
            if attempt is None or self._torn:
                return
            try:
                in_time = attempt.ready(number)
            except SyncError as error:
                self._torn = str(error)  # told behind the backward pass, which goes on
                return
            if not in_time:
                name = self._names[id(parameter)]
                raise ModelError(
                    f"{name}: it has more than one gradient in a micro-batch, as with a reentrant "
                    "checkpoint or two backward passes; pass overlap=False, or use_reentrant=False"
                )

        return ready

    # ------------------------------------------------------------------------------- reduction

    def _fresh_attempt(self) -> Attempt:
        self._buckets[0].swap()
        return Attempt(self._buckets, self._group, self._fill_tail)

    def _fill_tail(self, tail: torch.Tensor) -> None:
        """Write what is in this replica's sum; the micro-batch in work is the last of them."""
        import torch

        held, weight = sorted({*self._held, *self._deal}), self._weight
        if len(held) > len(self._held):  # one is in work
            weight += 1.0 if self._weight_now is None else self._weight_now
        tail.zero_()
        tail[torch.tensor(held, dtype=torch.long, device=tail.device)] = 1
        tail[-2] = weight
        tail[-1] = self._rate() * len(held)

    def _rate(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"])

    def _reduced(self) -> bool:
        """Reduce; True: `.grad` has the step's gradient. False: the reduction is torn."""
        self._check()
        if not self._torn:
            try:
                self._attempt = self._attempt or self._fresh_attempt()
                self._attempt.finish()
            except SyncError as error:
                self._torn = str(error)
        attempt, self._attempt = self._attempt, None
        assert attempt is not None  # noqa: S101 - only one can be torn
        if attempt.first_is_whole:
            self._keeps = False
        if self._is_torn(attempt) or not self._is_healed():
            attempt.give_up()
            log.warning("replicas: step %d is to be reduced again: %s", self.steps, self._torn)
            return False
        self._finish()
        return True

    def _check(self) -> None:
        """Refuse a model whose gradients are not those that were hooked; once for each meeting."""
        if self._held and not self._is_checked:
            self._is_checked = True
            check_gradients(self._models, self._parameters)

    def _is_torn(self, attempt: Attempt) -> bool:
        """Tell if the reduction is torn on any rank of this replica.

        They tell each other in one exchange, within replicas of several ranks only: they share
        collectives, so none may go on to the next forward alone. No vote is made over replicas.
        """
        if self.own.size == 1:
            return bool(self._torn)
        if self._torn:
            attempt.abandon()
        mine = (bool(self._torn), self._members.has_changed(), self._tail()[-2])
        told = self.own.gather_scalars([float(one) for one in mine])
        torn, changed, weights = zip(*told, strict=True)
        self._change_seen = any(changed)
        self._others_weight = sum(weights) - float(mine[2])
        if any(torn) and not self._torn:
            self._torn = "it was torn on another rank of this replica"
        return any(torn)

    def _tail(self) -> list[float]:
        tail: list[float] = self._buckets[-1].tail.tolist()
        return tail

    @property
    def _voters(self) -> Group | None:
        return self.own if self.own.size > 1 and self._members.changes else None

    def _is_healed(self) -> bool:
        """Return True unless this is a joiner whose state was not given whole."""
        if not self._joins:
            return True
        try:
            all_or_none(self._voters, self._end_own_healing)
        except SyncError as error:
            self._torn = str(error)
            return False
        self._state.load_position()
        self._is_new = self._joins = False
        return True

    def _end_own_healing(self) -> None:
        for one in self._healings:
            one.wait()
        self._healings = []

    def _finish(self) -> None:
        """Put the gradient of the whole step in place."""
        *counts, weight, rate = self._tail()
        self._check_contents(counts, rate)
        weight = (weight + self._others_weight) / self.own.size
        for bucket in self._buckets:
            bucket.scale(1 / weight)
            bucket.gather_inside()
            bucket.write()
        before = self._lineage
        self._applied(lineage_of(before, self._membership.epoch), before)

    def _check_contents(self, counts: Sequence[float], rate: float) -> None:
        """Refuse a sum that has a micro-batch twice, or not at all; raises ContentError."""
        least = 1 if self._on_loss is OnLoss.RECOMPUTE else 0
        wrong = {at: int(one) for at, one in enumerate(counts) if not least <= one <= 1}
        if wrong or not sum(counts):
            raise ContentError(
                f"step {self.steps}: {{micro-batch: times in the sum}} is {wrong}, and each must "
                "be in it once; this is a fault of Holdfast: report it with the log of all ranks"
            )
        mine = self._rate()
        if abs(rate / sum(counts) - mine) > 1e-5 * abs(mine):
            raise ContentError(
                f"step {self.steps}: the learning rate is {mine:g} here and {rate / sum(counts):g} "
                "on average; call replicated.carry('schedule', scheduler) before the first step, "
                "so that joiners are given it"
            )

    def _applied(self, lineage: int, before: int) -> None:
        """Count a step whose gradient is in place."""
        self._lineage, self._lineage_before = lineage, before
        self.steps += 1
        self._keeps = True

    # --------------------------------------------------------------------------------- members

    def _meet(self, find: Callable[[], Membership | None]) -> None:
        """Meet the members that there are now, as often as it takes.

        Raises:
            MembersError: there are none that this replica can follow.
        """
        self._leave_healings()
        failed = self._torn
        try:
            membership = find()
            while membership is not None and not self._carry_out(membership):
                membership = self._members.recover()
        except MembersError as error:
            raise MembersError(f"{error} (after: {failed})" if failed else str(error)) from error

    def _carry_out(self, membership: Membership) -> bool:
        """Agree with the members and do what is agreed; False: they have changed again."""
        self._membership, self._group = membership, membership.group
        self._is_checked = False
        try:
            rows = all_or_none(self._voters, lambda: self._group.gather_scalars(self._standing()))
            told = zip(membership.replicas, rows, strict=True)
            plan = agree([_standing_of(*one) for one in told], self.micro_batches)
            self._follow(plan)
        except SyncError as error:
            log.warning("replicas: members changed again: %s", error)
            return False
        log.info("replicas: epoch %d: %s", membership.epoch, plan.reason)
        return True

    def _standing(self) -> list[float]:
        held = [float(number in self._held) for number in range(self.micro_batches)]
        own = (self._is_new, self.steps, self._keeps, self._lineage, self._lineage_before)
        return [*map(float, own), *held]

    def _follow(self, plan: Agreement) -> None:
        """Carry out a plan; raises SyncError."""
        me = self.replica
        if me in plan.drops:
            self._drop_sum()
        if plan.heal_first:
            all_or_none(self._voters, lambda: self._heal_all(plan))
        if plan.gradient_from is not None:
            all_or_none(self._voters, lambda: self._give_gradient(plan))
        joins = me in dict(plan.heals) and not plan.heal_first
        again = bool(self._held)
        if joins:
            self._drop_sum()
            self.steps, self._keeps, self._is_new = plan.step, False, True
        else:
            self._is_new = False
        self._joins, self._torn = joins, ""
        if not plan.heal_first:
            self._begin_healings(plan)
        self._deal = plan.dealt[me]
        if again and me not in plan.behind:
            self._deal = self._deal if self._on_loss is OnLoss.RECOMPUTE else ()
            self.recomputed += len(self._deal)
        self._agreed = plan.step, self._deal

    def _heal_all(self, plan: Agreement) -> None:
        """Give all the state of one, before the first step."""
        if not plan.heals:
            return
        donor = plan.heals[0][1]
        source = self._membership.replicas.index(donor)
        if self.replica == donor:
            self._state.give(self._broadcast_from(source), self._state.position())
        else:
            self._state.take(self._broadcast_from(source))
            self._state.load_position()
            self.steps = plan.step

    def _broadcast_from(self, source: int) -> Callable[[torch.Tensor], None]:
        def broadcast(tensor: torch.Tensor) -> None:
            placed = tensor.to(self._group.device)
            self._group.begin_broadcast(placed, source).wait()
            if placed is not tensor:
                tensor.copy_(placed)

        return broadcast

    def _give_gradient(self, plan: Agreement) -> None:
        """Give those behind the newest step's gradient, which the others keep."""
        assert plan.gradient_from is not None  # noqa: S101 - asked by the caller
        source = self._membership.replicas.index(plan.gradient_from)
        for bucket in self._buckets:
            self._group.begin_broadcast(bucket.reduced, source).wait()
        told = [float(self._lineage) if self._group.rank == source else 0.0]
        lineage = int(self._group.sum_scalars(told)[0])
        if self.replica in plan.behind:
            for bucket in self._buckets:
                bucket.write()
            self._held, self._is_given = set(), True
            self._applied(lineage, self._lineage)

    def _begin_healings(self, plan: Agreement) -> None:
        """Begin to give, or to take, the state of a joiner."""
        for joiner, donor in plan.heals:
            if self.replica not in (joiner, donor):
                continue
            store, gives = self._membership.store, self.replica == donor
            assert store is not None  # noqa: S101 - fixed replicas all begin at once
            self._healings.append(
                Healing(
                    self._state,
                    self._state.position() if gives else None,
                    (store, f"heal/{self._membership.epoch}/{self.own.rank}/{joiner}"),
                    is_lost=self._group.interrupted or (lambda: False),
                    timeout=self._members.timeout,
                )
            )

    def _end_healings(self) -> None:
        """Wait until joiners have what this replica gives them: its weights change now."""
        for one in self._healings:
            try:
                one.wait()
            except SyncError as error:
                log.warning("replicas: a joiner is to be healed again: %s", error)
        self._healings = []

    def _leave_healings(self) -> None:
        """Stop all transfers: another meeting makes others."""
        for one in self._healings:
            one.stop()
        self._healings = []


def _list(one: Any) -> list[Any]:
    return list(one) if isinstance(one, list | tuple) else [one]


def _standing_of(replica: int, row: Sequence[float]) -> Standing:
    """Return a replica's standing as it was told."""
    return Standing(
        replica=replica,
        is_new=bool(row[0]),
        step=int(row[1]),
        keeps=bool(row[2]),
        lineage=int(row[3]),
        lineage_before=int(row[4]),
        held=frozenset(at for at, one in enumerate(row[_OWN:]) if one),
    )
