"""Synchronous replicas of a model: one gradient for all, whoever comes and goes.

Belongs here: the course of a step on one rank, and its meetings with the others. Does not belong
here: sums and their reduction (`local_sum`), what members agree on (`meeting`), a joiner's state
(`healing`).

torchft throws the step away in which a replica is lost (its manager votes in each step). Here a
step is finished by those that are left: ReCoVer and ElasWave name the rule, a fixed count of
micro-batches in each step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.job import tell_work
from holdfast.local_sgd.members.members import MembersError, Membership
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.unit_sync import all_or_none
from holdfast.replicas.buckets import BUCKET
from holdfast.replicas.errors import ReplicasError
from holdfast.replicas.healing import Given, Healing, JoinerState
from holdfast.replicas.local_sum import LocalSum
from holdfast.replicas.meeting import (
    NUMBERS,
    Agreement,
    Began,
    OnLoss,
    Standing,
    agree,
    lineage_of,
    unlike_others,
)
from holdfast.replicas.places import PlacedReader
from holdfast.replicas.refusals import check_optimizers
from holdfast.replicas.warm_up import warm_up

if TYPE_CHECKING:
    import torch
    from torch import nn

    from holdfast.flash.trainer.leaves import Stateful
    from holdfast.local_sgd.members.members import Members

log: Final = logging.getLogger("holdfast")


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
        models: list[nn.Module] = _list(model)
        self._optimizers = _list(optimizer)
        self._members, self.own = members, members.shard_group
        self._sum = LocalSum(
            models, self.own,
            micro_batches=micro_batches, bucket_bytes=bucket_bytes, overlap=overlap,
        )  # fmt: skip
        parts = [one.parameters for one in self._sum.buckets]
        check_optimizers(self._optimizers, [one for part in parts for one in part])
        frozen = {id(one): one for each in models for one in each.parameters()
                  if not one.requires_grad}  # fmt: skip
        self._form = self._sum.form() | {"on_loss": float(self._on_loss is OnLoss.FEWER)}
        self._state = JoinerState(models, self._optimizers, [*parts, list(frozen.values())])
        for one in self._optimizers:
            one.register_step_pre_hook(lambda *_: self._end_healings())
        self._begin_alone()

    def _begin_alone(self) -> None:
        """Be in no step and with no member yet."""
        self._group, self._membership = Group.of_one(), Membership(0, (0,), Group.of_one())
        self._healings: list[Healing] = []
        self._is_new = True
        """It has no state that the others know: before a meeting, and until it is given theirs."""
        self._is_whole = True
        """False: a donor was lost, or is at it: weights and moments are of unlike steps."""
        self._is_given = self._is_in_step = self._is_to_meet = False
        self._lineage = self._lineage_before = 0
        self._deal: tuple[int, ...] = ()
        self._agreed: tuple[int, tuple[int, ...]] | None = None
        """The step that members have agreed on, and what this replica is dealt in it."""
        self._begun = self._work_from = 0
        """Steps of this process, and when the work of the newest began, ns; 0: it is told."""
        self.steps = 0
        """Steps that are applied, those of a joiner's donor included; set it before the first
        step of a training that goes on from a checkpoint."""
        self.recomputed = 0
        """Micro-batches that this replica has computed for one that was lost."""
        self.began: Began | None = None
        """How it began with others; None: it has not, or it joined others."""
        self.given: Given | None = None
        """What it was given when it last joined others; None: it never has."""

    def carry(self, name: str, one: Stateful) -> None:
        """Give joiners the state of this too: a scheduler, a GradScaler, counters.

        Raises:
            ReplicasError: the state is no plain data.
        """
        self._state.carry(name, one)

    def carry_place(self, reader: PlacedReader) -> None:
        """Have the place of a reader of shards travel with the gradients of what it has read.

        So those that are left know how far a lost replica's records count. `ShardReader` calls it.

        Raises:
            ReplicasError: a step has begun.
        """
        if self._begun:
            raise ReplicasError("make all readers of shards before the first step")
        self._sum.carry_place(reader)
        self._form |= self._sum.form()

    def weigh(self, weight: float) -> None:
        """Count this rank's part of a micro-batch, whose loss is a sum, by its weight (tokens).

        Call it once for each micro-batch before its backward pass, or never: then each counts as
        one, and losses are means.
        """
        self._sum.weigh(weight)

    @property
    def replica(self) -> int:
        """Number of this replica in the job."""
        return self._membership.replicas[self._group.rank]

    @property
    def replicas(self) -> tuple[int, ...]:
        """Numbers of the replicas that train together."""
        return self._membership.replicas

    @property
    def contents(self) -> tuple[frozenset[int], frozenset[int]] | None:
        """Micro-batches of the newest step: in this replica's sum, and in the whole one.

        None: others had reduced it, and this replica was given the gradient.
        """
        return None if self._is_given else (self._sum.gave, self._sum.content)

    @property
    def weight(self) -> float:
        """Weight of all micro-batches of the newest step; 0: no replica had any sample.

        All see 0 in the same step, so a loop over a stream ends there. NaN: others had reduced the
        step, and this replica was given the gradient.
        """
        return math.nan if self._is_given else self._sum.total

    @property
    def saves(self) -> bool:
        """This replica is to save checkpoints.

        Of replicas that come and go it is the first, whose state all can load. Fixed ones are one
        world, whose ranks all save.
        """
        return not self._members.changes or self._group.rank == 0

    def dealt(self) -> Iterator[int]:
        """Yield the micro-batches of the next step that this replica computes.

        Run forward and backward for each. When the iterator ends, `.grad` has the gradient of the
        whole step, the same bits on all replicas, and `optimizer.step()` is to follow. Where a
        replica is lost, more are yielded in the same step. A joiner may be yielded none.

        Raises:
            ContentError: a micro-batch is in the sum twice or not at all.
            MeetingError: replicas are of unlike form, or no whole state is left.
            MembersError: no roster came that this replica can follow.
            ModelError: a parameter has no gradient, or came later.
            ReplicasError: the loop over the step before was left before its end, or no joiner can
                be given the optimizer's state.
            SyncError: a rank of this replica is gone.
        """
        self._begin()
        while not self._is_given:
            for at, number in enumerate(self._deal, 1):
                if at == len(self._deal):
                    self._arm(self._deal)
                yield number
                self._sum.add(number)
            if self._is_reduced():
                break
            self._meet(self._members.recover)
        self._is_in_step = False

    def _begin(self) -> None:
        """Begin a step: with zeros, and with the members that are there."""
        if self._is_in_step:
            raise ReplicasError(
                f"step {self.steps}: the loop over its micro-batches was left before its end, and "
                "the other replicas wait for the rest: let it end"
            )
        self._is_in_step, self._is_given = True, False
        self._sum.drop()
        self._begun += 1
        agreed, self._agreed = self._agreed, None
        if agreed is not None and agreed[0] == self.steps:
            self._deal = agreed[1]
        else:
            self._deal = tuple(range(self._group.rank, self.micro_batches, self._group.size))
        if self._begun == 2 and self._members.changes:
            self._state.check()  # the script has stepped the optimizer by now
        if self._is_new and self._members.changes:
            warm_up(self._optimizers)  # before others know of this replica
        if self._is_new or self._is_to_meet:
            self._meet(self._members.refresh)
        self._work_from = time.monotonic_ns()

    def _arm(self, deal: tuple[int, ...]) -> None:
        place = self.replica, self.steps + 1
        self._sum.arm(self._group, deal, self._rate(), place, self._members.has_changed)

    def _has_lost(self) -> bool:
        """Tell if a member is out of the newest roster."""
        return self._group.interrupted is not None and self._group.interrupted()

    def _rate(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"])

    def _is_reduced(self) -> bool:
        """Reduce; True: `.grad` has the step's gradient. False: the reduction is torn."""
        self._tell_work()
        if not self._sum.is_armed:
            self._arm(())
        torn, self._is_to_meet = self._sum.reduce(self._has_lost)
        if torn or not self._is_healed():
            why = self._sum.torn.partition(";")[0]
            log.warning("replicas: step %d is to be reduced again: %s", self.steps, why)
            return False
        self._sum.write(least=int(self._on_loss is OnLoss.RECOMPUTE), rate=self._rate())
        self._count(lineage_of(self._lineage, self._membership.epoch))
        self._sum.places.note(self._sum.told_places, self.steps)
        return True

    def _tell_work(self) -> None:
        """Report this rank's work on its micro-batches; what it does for others says nothing."""
        count = len(self._sum.held)
        if self._work_from and count:
            tell_work((time.monotonic_ns() - self._work_from) // count)
        self._work_from = 0

    def _count(self, lineage: int) -> None:
        """Count a step whose gradient is in place."""
        self._lineage, self._lineage_before = lineage, self._lineage
        self.steps += 1

    @property
    def _voters(self) -> Group | None:
        return self.own if self.own.size > 1 and self._members.changes else None

    def _is_healed(self) -> bool:
        """Return True unless this is a joiner whose state was not given whole."""
        if not self._is_new:
            return True
        try:
            all_or_none(self._voters, self._end_own_healing)
        except SyncError as error:
            self._sum.torn = str(error)
            return False
        self._state.load_position()
        self._is_new, self._is_whole = False, True
        return True

    def _end_own_healing(self) -> None:
        for one in self._healings:
            one.wait()
            self.given = one.given
        self._healings = []

    def _meet(self, find: Callable[[], Membership | None]) -> None:
        """Meet the members that there are now, as often as it takes.

        Raises:
            MembersError: there are none that this replica can follow.
        """
        self._leave_healings()
        failed = self._sum.torn
        try:
            membership = find()
            while membership is not None and not self._carry_out(membership):
                membership = self._members.recover()
        except MembersError as error:
            raise MembersError(f"{error} (after: {failed})" if failed else str(error)) from error

    def _carry_out(self, membership: Membership) -> bool:
        """Agree with the members and do what is agreed; False: they have changed again."""
        self._membership, self._group = membership, membership.group
        self._sum.check_again()
        try:
            plan = agree(all_or_none(self._voters, self._standings), self.micro_batches)
            self._follow(plan)
        except SyncError as error:
            log.warning("replicas: members changed again: %s", error)
            return False
        log.info("replicas: epoch %d: %s", membership.epoch, plan.reason)
        return True

    def _standings(self) -> list[Standing]:
        """Return where each member stands.

        Raises:
            MeetingError: this replica is of another form, and gloo ends processes that sum unlike
                tensors.
            SyncError: another one is, and will be gone; or a member is gone.
        """
        mine, members = self._standing(), self._membership.replicas
        rows = self._group.gather_scalars([*mine.numbers(), *self._form.values()])
        if unlike := unlike_others(self.replica, members, rows, list(self._form)):
            raise SyncError(unlike)
        if any(row[NUMBERS - 1] for row in rows):
            held = [float(number in mine.held) for number in range(self.micro_batches)]
            marks = self._group.gather_scalars(held)
        else:
            marks = [[] for _ in rows]
        return [
            Standing.of(replica, row, (at for at, one in enumerate(some) if one))
            for replica, row, some in zip(members, rows, marks, strict=True)
        ]

    def _standing(self) -> Standing:
        return Standing(
            replica=self.replica,
            is_new=self._is_new,
            step=self.steps if self._is_whole else -1,
            keeps=self._sum.keeps,
            lineage=self._lineage,
            lineage_before=self._lineage_before,
            held=frozenset(self._sum.held),
        )

    def _follow(self, plan: Agreement) -> None:
        """Carry out a plan; raises SyncError."""
        me = self.replica
        joins = me in dict(plan.heals) and not plan.heal_first
        if joins or me in plan.drops:
            self._check_drop()
        if me in plan.drops:
            self._sum.drop()
        self._exchange(plan)
        again = bool(self._sum.held)
        if joins:
            self._sum.drop()
            self._sum.keeps = self._is_whole = False
            self.steps, self._lineage = plan.step, plan.lineage
            self.began = None
        self._is_new = joins
        self._sum.torn = ""
        if not plan.heal_first:
            self._begin_healings(plan)
        self._deal = plan.dealt[me]
        if again and me not in plan.behind:
            self._deal = self._deal if self._on_loss is OnLoss.RECOMPUTE else ()
            self.recomputed += len(self._deal)
        self._agreed = plan.step, self._deal
        fresh = self.replicas if plan.heal_first else dict(plan.heals)
        epoch = self._membership.epoch
        self._sum.places.meet(me, self.replicas, fresh, self.steps, epoch)

    def _check_given(self) -> None:
        """Refuse a gradient that the others have made without what this replica had read."""
        if not self._sum.has_given(self.replica):
            self._check_drop()

    def _check_drop(self) -> None:
        """Refuse to go on with the next records of a stream where those of this step are lost."""
        if self._sum.held and self._on_loss is OnLoss.FEWER:
            raise ReplicasError(
                f"replica {self.replica} was out of the roster for a while: what it had read for "
                f"step {self.steps} is in no gradient, and a stream cannot read it again here; it "
                "begins anew"
            )

    def _exchange(self, plan: Agreement) -> None:
        """Give and take state and gradients; count them once all ranks of this replica have them.

        Raises:
            SyncError: they were not given whole.
        """
        if plan.heal_first:
            all_or_none(self._voters, lambda: self._heal_all(plan))
            self._begin_at(plan)
        if plan.gradient_from is not None:
            all_or_none(self._voters, lambda: self._give_gradient(plan))
            if self.replica in plan.behind:
                self._check_given()
                self._sum.write_kept()
                self._is_given = True
                self._count(plan.lineage)
                self._sum.places.note(self._sum.told_places, self.steps)

    def _heal_all(self, plan: Agreement) -> None:
        """Give all the state of one, before the first step."""
        if not plan.heals:
            return
        donor = plan.heals[0][1]
        source = self._membership.replicas.index(donor)
        if self.replica == donor:
            self._state.give(self._broadcast_from(source), self._state.position())
        else:
            self._is_whole = False
            self._state.take(self._broadcast_from(source))

    def _begin_at(self, plan: Agreement) -> None:
        """Begin with all others, as all ranks of this replica have their state."""
        self._state.load_position()
        self.steps = plan.step
        epoch = self._membership.epoch if self._members.changes else 0
        self.began = Began(epoch, plan.step)
        self._is_whole = True
        self._lineage = self._lineage_before = plan.lineage

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
        give = self._broadcast_from(source)
        if self.replica in plan.behind:
            self._sum.take_kept(give)
        else:
            self._sum.give_kept(give, is_source=self._group.rank == source)

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
