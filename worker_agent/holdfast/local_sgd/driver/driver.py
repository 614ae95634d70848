"""The course of local SGD on one rank, under any framework: steps, rounds, changes of members.

Belongs here: counters, when a round begins, goes on and ends, the anchors before the first, and
what a change of members does to all that. Does not belong here: when a round is due (`triggers`),
who is in it (`members`), how units agree (`sync`), and where a framework keeps its weights
(`frameworks`).

A driver has one object of each: a trigger, members, a sync, an adapter. An adapter calls it before
and after a step, and in a forward where its framework writes weights there (`in_forward`): with
`reach` such a forward finishes the units that it needs, and begins the next. Elsewhere a round runs
whole, at the end of the step.

A forward that has gathered a unit goes on with what it has gathered, since its backward needs the
same weights. So after a change of members a whole round that is to be done again waits for the next
forward. Units that this forward has not reached may be done again in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.job import tell_sync
from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.driver.rounds import Round
from holdfast.local_sgd.driver.spanning import SpanningCollectives
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.policies.schedule import Boundary, Entry, is_warm_up
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync, all_or_none
from holdfast.local_sgd.sync.units import Unit, check_equal
from holdfast.local_sgd.triggers.trigger import BySteps, Change

if TYPE_CHECKING:
    from holdfast.local_sgd.driver.replicas import FixedMembers
    from holdfast.local_sgd.policies.roster import Plan
    from holdfast.local_sgd.sync.inner_state import TorchInnerState
    from holdfast.local_sgd.sync.regroup import Regrouped, ReplicaState


class Adapter:
    """A framework's side: where its weights lie, and how they are written."""

    in_forward = False
    """Rounds run in the next forward, unit by unit; else whole, at the end of a step."""
    hint = ""
    """Advice for the error of replicas that are not equal at the end of the warm-up."""
    units: list[Unit]
    """Tensors that agree together, in one order on all replicas."""
    inner: TorchInnerState
    """This replica's own state, which joiners get too; fixed replicas need none."""

    def before_write(self, number: int) -> None:
        """Prepare a unit's weights for a write in a round."""

    def before_change(self, number: int) -> None:
        """Prepare a unit's weights for a write by a change of members."""
        self.before_write(number)

    def after_round(self, outcomes: list[Outcome]) -> None:
        """Take in what a round did, by unit; none: others have given this replica its end."""
        raise NotImplementedError

    def after_change(self) -> None:
        """Follow a change of members, which may have written units."""

    def check(self) -> None:
        """Refuse a model that is no longer the one of the units; raises LocalSGDError."""

    def align(self) -> None:
        """Make replicas equal before the anchors are taken behind a warm-up.

        On unlike machines the last bits may differ.
        """
        self.share_weights(0)

    def inner_groups(self) -> Iterable[Any]:
        """Groups of the inner optimizers, whose numbers a joiner gets."""
        return ()

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of the one with this rank; raises SyncError."""
        raise NotImplementedError

    def share_inner_state(self) -> None:
        """Give all replicas the first one's inner state: equal gradients must move all alike."""
        raise LocalSGDError(f"{type(self).__name__} averages no gradients in each step")


class Driver:
    """Counters and rounds of one replica; each of its ranks has one, and calls it alike."""

    def __init__(
        self,
        config: LocalSGDConfig,
        adapter: Adapter,
        who: FixedMembers,
        sync: UnitSync,
        when: BySteps,
    ) -> None:
        """Take the parts; `start` meets the other replicas.

        Args:
            config: Warm-up, weights by tokens, and the discount of a late delta.
            adapter: The framework's side.
            who: The replicas.
            sync: Of the units.
            when: Says what a step ends.
        """
        self.config, self.adapter, self.who, self.when = config, adapter, who, when
        self.unit_sync = sync
        sync.voters = who.voters
        who.attach(self)
        self.spanning = SpanningCollectives(None, by_time=False)
        """The script's collectives that span replicas, where these are fixed and several."""
        self.steps = self.alone = self.tokens = 0
        self.due = False
        """A round begins: in the next forward of a step, or now."""
        self.joined = False
        self.changes = 0
        """Changes of members so far; each may have written units."""
        self.made = 0
        """Rounds that this process has taken part in."""
        self.round = _NO_ROUND
        """The round that has begun and is not over."""
        self._ends = False
        """The script has asked for its last round, which is not over."""
        self._again = False
        """Behind the step that is under way a round is due: the others have begun one."""
        self._late: Regrouped | None = None
        """Where the others stand, in a later forward: the next one here goes on from there."""
        self._last = 0
        """Number of the round with which the others have ended; 0: they go on."""

    @property
    def is_warming_up(self) -> bool:
        """Gradients are averaged over the replicas; also where a trigger has chosen that."""
        return self.when.is_sync or is_warm_up(self.steps, self.config)

    @property
    def rounds(self) -> int:
        """Rounds that the steps so far have ended, on all replicas alike; the last may run yet."""
        rounds = [unit.round for unit in self.adapter.units]
        made = min(rounds) + 1 if self.round.is_open else max(rounds, default=0) + self.due
        return self.when.rounds(made)

    def start(self) -> None:
        """Meet the others, before the first step; a collective.

        Fixed replicas take the first one's weights. Where rounds run at the end of a step, a joiner
        takes part in the one that is due.

        Raises:
            MembersError, SyncError: none came, or a rank is gone.
        """
        if not self.who.meets:
            self.adapter.share_weights(0)
            return
        self.follow()
        if not self.adapter.in_forward:
            self.take_wanted_anchors()
            self.make_due_rounds()

    def before_step(self) -> None:
        """Finish what the forward did not reach; take the anchors before the first lone step."""
        if self.due:
            self.begin()
        self.complete()
        self.take_wanted_anchors()

    def after_step(self, *, is_made: bool = True) -> None:
        """Count a step, and make the round that it ends, unless that runs in the next forward.

        Args:
            is_made: False: a loss scaler has left it out.

        Raises:
            SyncError: a replica is gone; the weights are as this replica's steps left them.
        """
        self.spanning.before_count(self.alone)
        due = self._count(is_made=is_made)
        if due is Boundary.GRADIENTS:
            self._average_from_now()
        elif not self.adapter.in_forward:
            if due is Boundary.ANCHORS:
                self.take_anchors()
            self.make_due_rounds()
        self.spanning.after_count()

    def _count(self, *, is_made: bool) -> Boundary:
        self.steps += 1
        if is_warm_up(self.steps - 1, self.config):
            return self.when.warmed(self.steps)
        self.alone += not self.when.is_sync and (is_made or self.when.in_step)
        end = self.who.attempt(lambda: self.when.stepped(self.steps, is_made=is_made))
        if end is not None:
            self.due = end is Boundary.ROUND
        self.due, self._again = self.due or self._again, False
        return end or Boundary.NOTHING

    def make_due_rounds(self) -> None:
        """Make the rounds that are due: one, or two where others gave this replica the first."""
        while self.due:
            self.begin()
            self.complete()

    def begin(self) -> None:
        """Begin a round; no unit is touched yet, but by a change of members."""
        self.adapter.check()
        was_due = self.due
        self.follow()
        if self.round.is_open or (was_due and not self.due):
            return
        self.due = False
        self._open()

    def _open(self) -> None:
        adapter = self.adapter
        by_tokens = self.config.step_weight_by == "tokens"
        units = adapter.units
        self.round = Round(
            self.unit_sync,
            [[unit] for unit in units] if adapter.in_forward else [units],
            steps=float(self.tokens if by_tokens else self.alone),
            before_write=adapter.before_write,
        )

    def reach(self, number: int) -> None:
        """Finish a round's units up to this one, with whoever is there."""
        if self.round.wants(number):
            with self.when.reducing():
                while self.round.wants(number):  # else the members have changed, and the round
                    self.who.attempt(lambda: self.round.reach(number))
        self._settle()

    def complete(self) -> None:
        """Finish the round that is under way."""
        self.reach(len(self.adapter.units))

    def _settle(self) -> None:
        """End a round whose last unit is finished."""
        ended = self.round
        if ended.is_open and ended.is_over:
            self.round = _NO_ROUND
            self.alone = self.tokens = 0
            self.made += bool(ended.outcomes)
            tell_sync(ended.held_ns)
            self.adapter.after_round(ended.outcomes)

    def sync(self) -> None:
        """Agree now, such as before an export of the weights; all ranks call it.

        Raises:
            SyncError: a rank is gone.
        """
        if not self.round.is_open and (self.alone or self.due):
            self.due |= self.when.in_step  # a replica that joins takes part in it
            self.begin()
        self.complete()
        if not self.adapter.in_forward:
            self.make_due_rounds()

    def finish(self, entered: Callable[[], object]) -> None:
        """Make the last rounds; by time, until no replica has data.

        Args:
            entered: Called where a round was made, or entered where it runs in a forward; returns
                True where the script ends.

        Raises:
            SyncError: a rank is gone.
        """
        if self.when.in_step:
            made = self.made
            self._sync_last()
            if self.made > made:
                entered()
            return
        self.complete()
        self.take_wanted_anchors()  # it may have made no step, and the others take theirs with it
        if self._has_anchors:
            while not self._join_round(entered):
                pass

    def _sync_last(self) -> None:
        """Make the last round, unless the others have made it and this replica was in it.

        That was in a forward, whose step is one more than they made.
        """
        if 0 < self._last == self.adapter.units[0].round:
            for number, unit in enumerate(self.adapter.units):
                self.adapter.before_write(number)
                unit.anchors.write_weights(unit.tensors())
            self.alone, self.tokens, self.due = 0, 0, False
            return
        self._ends = True
        self.sync()
        self._ends = False

    def _join_round(self, entered: Callable[[], object]) -> bool:
        """Join the others' next round without a step; tell if the training is over.

        A last round counts if the members are those who have entered it: others do not know that
        it was the last one.
        """
        if self.due:
            self.begin()
        self.complete()
        in_forward, made, changes = self.adapter.in_forward, self.made, self.changes
        entry = self.who.attempt(self.when.exhausted)
        if entry is not None:
            self.due = entry is not Entry.SKIP
        self.due, self._again = self.due or self._again, False
        if not in_forward:
            self.make_due_rounds()
        shows = entry is not None if in_forward else self.made > made
        if shows and entered() is True:
            return True
        if entry is not Entry.LAST:
            return False
        if in_forward:
            self.begin()
            self.complete()
        return changes == self.changes

    @property
    def _has_anchors(self) -> bool:
        """All units have; those that a script has added later may have none yet."""
        units = self.adapter.units
        return bool(units) and units[-1].has_anchors

    @property
    def wants_anchors(self) -> bool:
        """The next step is the first lone one, of all units or of those that were added."""
        return not self.is_warming_up and bool(self.adapter.units) and not self._has_anchors

    def take_wanted_anchors(self) -> None:
        """Take the anchors, if the next step is the first lone one."""
        if self.wants_anchors:
            self.take_anchors()

    def take_anchors(self) -> None:
        """Take the weights for anchors, where all replicas are equal; a collective.

        Raises:
            AnchorsDifferError: they are not; names units and replicas.
        """
        self.adapter.check()
        self.follow()
        while not self._has_anchors:
            self.who.attempt(lambda: all_or_none(self.who.voters, self._take_anchors))

    def _take_anchors(self) -> None:
        units = self.adapter.units
        are_first = not any(unit.has_anchors for unit in units)
        if self.steps:
            self.adapter.align()
        fresh = [unit for unit in units if not unit.has_anchors]
        for unit in fresh:
            unit.take_anchors()
        if are_first:
            self.when.restart()  # the time begins with the first lone step
        check_equal(fresh, self.who.group, self.adapter.hint if are_first else "")

    def _average_from_now(self) -> None:
        """Agree, and have gradients averaged in each step from now on."""
        self.sync()
        self.due = False
        for unit in self.adapter.units:
            unit.drop_anchors()
        self.adapter.share_inner_state()
        self.when.restart()

    def clock(self) -> dict[str, Any]:
        """This replica's counters, for a checkpoint of any framework."""
        return {
            "steps": self.steps,
            "alone": self.alone,
            "tokens": self.tokens,
            "due": self.due,
            "rounds": self.rounds,
            **self.when.state(),
        }

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters; a round that was under way is not, and one that was due is."""
        self.steps, self.alone = int(clock["steps"]), int(clock["alone"])
        self.tokens, self.due = int(clock.get("tokens", 0)), bool(clock.get("due", False))
        self.round = _NO_ROUND
        self.when.load({"due": False, **clock})

    def situation(self, *, is_new: bool) -> ReplicaState:
        """Where this replica stands."""
        from holdfast.local_sgd.sync.regroup import ReplicaState  # of no use to fixed replicas

        units = self.adapter.units
        return ReplicaState(
            is_new=is_new,
            has_anchors=not is_new and bool(units) and units[0].has_anchors,
            due=self.due or self._again,
            steps=self.steps,
            ends=self._ends,
            begun=self.round.begun,
            agreed=self.when.agreed,
        )

    def follow(self) -> None:
        """Carry out a change of members, at the start of a round or of the training.

        Raises:
            MembersError, SyncError: no membership came, or a rank of this replica is gone.
        """
        if self._late is not None:
            self._go_on_with(self._late)
        self.who.refresh()

    def apply(self, found: Regrouped) -> None:
        """Bring counters and round to where a change's plan has brought the units."""
        self.changes += 1
        if found.joined:
            self.joined, self.steps, self.due = True, found.giving.steps, found.giving.due
            self.alone = self.tokens = 0
        if found.plan is not None:
            self._apply_plan(found, found.plan)
        self._move(found)
        if not self.adapter.in_forward:  # no backward needs what a forward has read
            self.due, self._again = self.due or self._again, False
        self.adapter.after_change()

    def _apply_plan(self, found: Regrouped, plan: Plan) -> None:
        kept, again = (self.alone, self.tokens), plan.again
        at_start = self.due or found.joined
        in_forward = bool(again)
        if len(again) == len(self.adapter.units) and (not self.round.is_open or found.passed):
            self._drop_round()  # a whole round, of which this replica has begun no unit
            self.due, self._again, in_forward = at_start, not at_start, at_start
        elif again:
            self._go_on_from(again[0])
        else:
            self._drop_round()
            in_forward = at_start
        if found.passed:
            self.alone, self.tokens = (round(one * found.kept) for one in kept)
        if not found.behind:
            return
        if in_forward:
            self._go_on_with(found)
        else:  # the others wait at a round's start
            self._late, self._again = found, True

    def _go_on_from(self, number: int) -> None:
        """Go on with the round that others have, from this unit; those before are finished."""
        if not self.round.is_open:
            self.due = False
            self._open()
        self.round.go_on_from(number)

    def _drop_round(self) -> None:
        """Take the round that is under way for done: others gave this replica its end."""
        if self.round.is_open:
            self.round.go_on_from(len(self.adapter.units))
            self._settle()

    def _go_on_with(self, found: Regrouped) -> None:
        """Go on from the others' step: they are in the same forward, or at the same step's end."""
        self._late, self.steps = None, found.giving.steps
        self.who.take_position(found)
        if found.giving.ends and found.plan is not None:
            self._last = found.plan.round + (not found.plan.again)

    def _move(self, found: Regrouped) -> None:
        """Have the trigger go on with the new members.

        A replica that had entered a round by time of which nobody has begun a unit trains on, as
        the others do: these know nothing of that round.
        """
        plan = found.plan
        is_left_over = plan is not None and bool(plan.again)
        entered = self.due and not is_left_over and not self.when.in_step
        if entered:
            self.due = False
        self.when.move(
            Change(
                store=self.who.store,
                rounds=0 if plan is None else plan.round,
                steps=0 if is_left_over else self.alone,
                joined=found.joined,
                is_left_over=is_left_over,
                is_up=entered and not found.joined and not found.passed,
                agreed=found.agreed,
            )
        )


_NO_ROUND: Final = Round(cast("UnitSync", None), (), steps=0.0)  # it begins nothing
"""Before the first round and between rounds."""
