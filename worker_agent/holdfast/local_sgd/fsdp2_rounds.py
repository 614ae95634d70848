"""Rounds of a model under FSDP2: what happens in a forward, before and after a step.

Belongs here: when a round begins, goes on and ends, and the anchors before the first. Does not
belong here: what a script calls (`fsdp2`), the order of a round's units (`pipelined_round`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.fsdp2_members import FSDP2Members, average
from holdfast.local_sgd.fsdp2_units import ShardedUnit, refuse_new_parameters, share_inner_state
from holdfast.local_sgd.pipelined_round import PipelinedRound, log_outcomes
from holdfast.local_sgd.policies.schedule import Entry, Phase, is_due, phase
from holdfast.local_sgd.policies.switching import Mode, Running
from holdfast.local_sgd.quorum_rounds import QuorumRounds
from holdfast.local_sgd.spanning import SpanningCollectives
from holdfast.local_sgd.switch import Switch, reducing
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync, all_or_none
from holdfast.local_sgd.sync.units import Unit, check_equal
from holdfast.local_sgd.turns import Turns

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn


class FSDP2Rounds:
    """Course of the rounds; `fsdp2.LocalSGD` makes its parts."""

    config: LocalSGDConfig
    """When replicas synchronise, and how."""
    model: nn.Module
    """`fully_shard` has been called on it."""
    optimizers: list[Any]
    """Inner optimizers."""
    replicas: Group
    """The ranks that hold this rank's shards, one of each replica."""
    shard_group: Group
    """The ranks of this replica."""
    own_ranks: dist.ProcessGroup
    """The process group of `shard_group`."""
    modules: list[ShardedUnit]
    """What `fully_shard` keeps together, frozen modules too."""
    trained: list[ShardedUnit]
    """Those of them that synchronise, in the order of a round."""
    units: list[Unit]
    """Anchors and rounds of `trained`."""
    steps: int
    """Steps of the inner optimizer so far."""
    alone: int
    """Steps since the last round."""
    tokens: int
    """Tokens since the last round, as far as the script tells them."""
    due: bool
    """The next forward of a step begins a round."""
    ends: bool
    """The script has asked for its last round, which is not over."""
    outcomes: list[Outcome]
    """Of the newest round's units."""
    quorum: QuorumRounds | None
    """Rounds without a barrier, where the settings have a quorum."""
    switch: Switch | None
    """The choice of the interval, where the settings ask for it."""
    under_way: PipelinedRound | None
    """The round that has begun and is not over."""
    written: set[int]
    """Units that others have given this replica, and no forward has gathered since."""
    joined: bool
    """This replica came to others that train, and has their state: load no checkpoint."""
    _sync: UnitSync
    turns: Turns | None
    """Rounds by time that all replicas enter."""
    _members: FSDP2Members | None
    """Replicas that may change; None: those of a mesh."""
    _spanning: SpanningCollectives | None
    """Collectives of the script that span replicas; None: no group does."""
    _is_step: bool = False
    """A backward has run since the last step, or the optimizer has stepped before. Else a step is
    one of torch.distributed.checkpoint's helpers, which want the state of an optimizer."""
    _in_eval: bool = False
    """The root was in eval mode in the last step, as with frozen statistics."""

    @property
    def is_warming_up(self) -> bool:
        """Gradients are averaged over the replicas; also where a switch has chosen that."""
        is_sync = self.switch is not None and self.switch.is_sync
        return is_sync or phase(self.steps, self.config) is Phase.WARM_UP

    def sync(self) -> None:
        """Synchronise now, such as before an export of the weights; all ranks call it.

        In the warm-up replicas are equal, and it does nothing.

        Raises:
            SyncError: a rank is gone.
        """
        if self.quorum is not None:
            if self.units and self.units[0].has_anchors:
                self._end_round(self.quorum.sync_all(self._work))
            return
        if self.under_way is None and (self.alone or self.due):
            self.due |= self.turns is None  # who joins takes part in it
            self._begin()
        self._complete()

    def _sync_last(self) -> None:
        """Make the last round, unless the others have made it and this replica was in it."""
        if self._members is not None and self._members.is_over:
            self._drop_steps()
            return
        self.ends = True
        self.sync()
        self.ends = False

    def _drop_steps(self) -> None:
        """Take the weights that all have agreed on, without the steps since."""
        for number, unit in enumerate(self.units):
            self._drop_gathered(number)
            unit.anchors.write_weights(unit.tensors())
        self.alone, self.tokens, self.due = 0, 0, False

    def before_forward(self, number: int | None) -> None:
        """Write a unit's weights if a round is due; number: None for a frozen one."""
        import torch

        if (self.model.training or self._in_eval) and torch.is_grad_enabled():
            if self.due:
                self._begin()
            elif self._members is not None and self._members.changes and self._wants_anchors:
                self.take_anchors()  # who joins here is told what others have before this step
        if number is None or (self.under_way is None and number not in self.written):
            return
        unit = self.trained[number]
        is_new = self.under_way is not None and number >= self.under_way.finished
        self._reach(number)
        is_new |= number in self.written
        self.written.discard(number)
        if is_new:
            unit.gather_in_order(root=unit is self.modules[0])

    def _average(self, gradient: torch.Tensor) -> None:
        """Average the gradients of a unit over the replicas, in the warm-up alone."""
        import torch.distributed as dist

        self._is_step = True
        if not self.is_warming_up or self.replicas.size == 1:
            return
        if self._members is not None:
            average(gradient, self)
            return
        with reducing(self.switch):
            dist.all_reduce(gradient, group=self.replicas.ranks)
            gradient.div_(self.replicas.size)

    def _begin(self) -> None:
        """Begin a round; no unit is touched yet, but by a change of members."""
        refuse_new_parameters(self.trained, self.optimizers)
        if self._members is not None:
            was_due = self.due
            self._members.follow()
            if self.under_way is not None or (was_due and not self.due):
                return
        self.due = False
        self._open()

    def _open(self) -> None:
        self.under_way = PipelinedRound(
            self._sync,
            self.units,
            steps=self._work,
            joins=True,
            before_write=self._drop_gathered,
        )

    @property
    def _work(self) -> float:
        """Steps or tokens since the last round, by which others weigh this replica."""
        return float(self.tokens if self.config.step_weight_by == "tokens" else self.alone)

    def _drop_gathered(self, number: int) -> None:
        self.trained[number].drop_gathered()

    def _complete(self) -> None:
        self._reach(len(self.units) - 1)

    def _reach(self, number: int) -> None:
        """Finish a round's units up to this one, with whoever is there."""
        # Where no round is under way, a switch would take the look for a fast reduction.
        with reducing(None if self.under_way is None else self.switch):
            while self.under_way is not None and not self._attempt(self.under_way.reach, number):
                pass  # the members have changed, and the round with them
        self._settle()

    def go_on_from(self, number: int) -> None:
        """Go on with the round that others have, from this unit; those before are finished."""
        if self.under_way is None:
            self.due = False
            self._open()
        assert self.under_way is not None  # noqa: S101 - opened above
        self.under_way.go_on_from(number)

    def drop_round(self) -> None:
        """Take the round that is under way for done: others gave this replica its end."""
        if self.under_way is not None:
            self.under_way.go_on_from(len(self.units))
            self._settle()

    def _settle(self) -> None:
        """End a round whose last unit is finished."""
        under_way = self.under_way
        if under_way is None or not under_way.is_over:
            return
        self.under_way = None
        self._end_round(under_way.outcomes)

    def _end_round(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self.alone, self.tokens = 0, 0
        if self.replicas.rank == 0 and self.shard_group.rank == 0:
            log_outcomes(outcomes)

    def _before_step(self, *_: Any) -> None:
        """Finish what the forward did not reach; take the anchors before the first lone step.

        A whole round, where the forward was in eval mode for the first time: nothing told it from
        an evaluation.
        """
        self._is_step |= bool(self.optimizers[-1].state)
        if self._is_step:
            self._in_eval = not self.model.training
            if self.due:
                self._begin()
        self._complete()
        if self._wants_anchors:
            self.take_anchors()

    @property
    def _wants_anchors(self) -> bool:
        """The next step is the first lone one."""
        return not self.is_warming_up and bool(self.units) and not self.units[0].has_anchors

    def take_anchors(self) -> None:
        """Take the weights for anchors, where all replicas are equal; a collective.

        Raises:
            AnchorsDifferError: they are not; names units and replicas.
        """
        refuse_new_parameters(self.trained, self.optimizers)
        if self._members is not None:
            self._members.follow()
        voters = self._sync.voters
        while not self.units[0].has_anchors:
            self._attempt(all_or_none, voters, self._take_anchors)

    def _attempt(self, call: Callable[..., object], *given: object) -> bool:
        """Return True after a call, and False where it failed and the members have changed."""
        if self._members is not None:
            return self._members.attempt(call, *given)
        call(*given)
        return True

    def _take_anchors(self) -> None:
        if self.steps:  # after a warm-up on unlike machines the last bits may differ
            self.share_weights()
        for unit in self.units:
            unit.take_anchors()
        if self.quorum is not None:
            self.quorum.turns.restart()
        check_equal(self.units, self.replicas)

    def _after_step(self, *_: Any) -> None:
        if not self._is_step:
            return
        self._is_step = False
        if self._spanning is not None:
            self._spanning.before_count(self.alone)
        self._count_step()
        if self._spanning is not None:
            self._spanning.after_count()

    def _count_step(self) -> None:
        in_warm_up = phase(self.steps, self.config) is Phase.WARM_UP
        self.steps += 1
        if in_warm_up:
            turns = self.quorum.turns if self.quorum is not None else self.turns
            if turns is not None:
                turns.restart()  # the time begins with the first lone step
            if self.switch is not None:
                self.switch.went_on()
            return
        self.alone += self.switch is None or not self.switch.is_sync
        if self.quorum is not None:
            quorum = self.quorum
            self._meet(quorum, lambda: quorum.stepped(self._work))
        elif self.turns is not None:
            self._take_turn(self.turns.stepped)
        elif self.switch is not None:
            self.due = self.switch.stepped(self.steps)
            self._change(self.switch, self.switch.choose(self.steps))
        else:
            self.due = is_due(self.steps, self.config)
        self.due |= self._members is not None and self._members.after_step()

    def _take_turn(self, call: Callable[[], Entry]) -> Entry | None:
        """Ask if a round by time has been entered; None: the members have changed instead."""
        entries: list[Entry] = []
        if self._attempt(lambda: entries.append(call())):
            self.due = entries[0] is not Entry.SKIP
            return entries[0]
        assert self._members is not None  # noqa: S101 - only members change
        self.due |= self._members.after_step()
        return None

    def _finish_by_time(self, turns: Turns, entered: Callable[[], object] | None) -> None:
        """Join the others' rounds until no replica has data.

        A last round counts if the members are those who have entered it: others do not know that
        it was the last one.
        """
        is_over = False
        while not is_over:
            if self.due:
                self._begin()
            self._complete()
            changes = self._changes
            entry = self._take_turn(turns.exhausted)
            if entry is not None and entered is not None and entered() is True:
                return
            if entry is Entry.LAST:
                self._begin()
                self._complete()
                is_over = changes == self._changes

    def _meet_first(self) -> None:
        """Give all fixed replicas the first one's weights, or meet members and take theirs."""
        if self._members is None:
            self.share_weights()
            return
        self._members.follow()
        if self.quorum is not None:  # the others wait for a joiner in what was left over
            self._meet(self.quorum, functools.partial(self.quorum.settle, 0.0))

    def _meet(
        self, quorum: QuorumRounds, call: Callable[[], list[Outcome] | None]
    ) -> list[Outcome] | None:
        """Make a round with those who have come, or what a change of members has left of one."""
        made: list[list[Outcome] | None] = []

        def keep(its: Callable[[], list[Outcome] | None]) -> None:
            made.append(its())

        if quorum.has_left_over or not self._attempt(keep, call):
            while not self._attempt(keep, lambda: quorum.settle(self._work)):
                pass  # the members have changed again
        if made[-1] is not None:
            self._end_round(made[-1])
        return made[-1]

    def _finish_by_quorum(self, quorum: QuorumRounds, entered: Callable[[], object] | None) -> None:
        """Join the others' rounds until no replica has data; see `_finish_by_time`."""
        is_over = False
        while not is_over:
            changes, entries = self._changes, list[Entry]()

            def join() -> list[Outcome]:
                entry, outcomes = quorum.exhausted(self._work)
                entries.append(entry)  # noqa: B023 - called at once
                return outcomes

            made = self._meet(quorum, join)
            if made is not None and entered is not None and entered() is True:
                return
            is_over = entries == [Entry.LAST] and changes == self._changes

    @property
    def _changes(self) -> int:
        """Changes of members so far."""
        return 0 if self._members is None else self._members.changed

    def _change(self, switch: Switch, to: Running | None) -> None:
        """Agree from now on as all replicas have chosen; None: as before."""
        if to is None:
            return
        if to.mode is Mode.SYNC:
            self.sync()
            self.due = False
            for unit in self.units:
                unit.drop_anchors()
            share_inner_state(self.optimizers, self.replicas)
        elif not self.due:  # gradients were averaged so far: all are equal
            refuse_new_parameters(self.trained, self.optimizers)
            self._take_anchors()
        switch.went_on()

    def share_weights(self, source: int = 0) -> None:
        """Give all replicas the weights of one, as DDP does; raises SyncError."""
        import torch
        from torch.distributed.tensor import DTensor

        if self.replicas.size == 1:
            return
        with torch.no_grad():
            for unit in self.modules:
                unit.drop_gathered()
            for one in self.model.parameters():
                local = one._local_tensor if isinstance(one, DTensor) else one  # noqa: SLF001
                if local.numel():
                    self.replicas.begin_broadcast(local.detach(), source).wait()
