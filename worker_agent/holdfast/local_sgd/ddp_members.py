"""Members that come and go under DDP: replicas each with a process group of its own, and DDP in it.

Belongs here: counters and rounds of an averager whose members may change. Does not belong here: how
a change is carried out (`elastic`, `sync.regroup`), rounds of a fixed group (`ddp`).

A DDP that is kept across a change divides its gradients by the size of its group. Here that group
is the replica's own, which no change touches. A DDP whose group spans replicas would divide by the
old number of ranks, and hang: it is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from holdfast.local_sgd.combinations import check_together
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.elastic import Carried, Elastic, attempt
from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError
from holdfast.local_sgd.inner_state import TorchInnerState
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.policies.schedule import Entry
from holdfast.local_sgd.policies.switching import NOTHING_AGREED
from holdfast.local_sgd.switch import RoundSwitch, reducing
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.regroup import Regrouped, Situation
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync, all_or_none
from holdfast.local_sgd.sync.units import Unit, check_equal
from holdfast.local_sgd.turns import Turns

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.optim.lr_scheduler import LRScheduler


class Averager(Protocol):
    """An averager, as far as its members go."""

    config: LocalSGDConfig
    units: list[Unit]
    group: Group
    step: int
    joined: bool

    def make_units(self, params: Iterable[Any]) -> None:
        """Make a unit of each parameter, without anchors yet."""


class DDPMembers:
    """The members of an averager, and the side of its hooks."""

    def __init__(
        self,
        averager: Averager,
        members: Members,
        sync: UnitSync,
        inner: TorchInnerState | None = None,
        turns: Turns | None = None,
        switch: RoundSwitch | None = None,
    ) -> None:
        """Take the parts; nobody is met before `start`.

        Args:
            averager: Whose counters follow the members.
            members: Of this process.
            sync: Of its units.
            inner: What joiners get beside them; None: each unit is a parameter of the optimizer.
            turns: Of rounds by time; None: rounds end by steps.
            switch: Chooses after how many; None: the settings say so.

        Raises:
            LocalSGDConfigError: the settings want what such replicas have not.
        """
        self.config = averager.config
        if members.changes:
            _refuse_spanning(members)
            _refuse_warm_up(self.config.local_sgd_warmup_steps)
        self._averager, self._sync, self._turns = averager, sync, turns
        self._switch = switch
        sync.voters = members.shard_group if members.changes else None
        self._params: list[Any] = []
        self.inner = inner or TorchInnerState(
            lambda number: [self._params[number]], lambda: len(self.units)
        )
        """Moments and buffers of this replica, as far as the script names their holders."""
        self._elastic = Elastic(members, sync, self, lambda: self._groups)
        self._groups: list[Any] = []
        self.alone = 0
        """Steps of this replica since the last round."""
        self._due, self._begun = False, False
        self.changes = 0
        """Changes of members so far; each may have written units."""
        self.is_started = False
        """Members have been met."""

    def carry(self, name: str, one: Carried) -> None:
        """Give later joiners the state of this; see `Elastic.carry`.

        Others give in `optimizer.step()`, before their scripts step a scheduler: a joiner, which
        begins behind that, steps it.
        """
        if self._elastic.carry(name, one) and catch_up(self._averager.step - 1, one):
            self._elastic.keep_numbers()

    @property
    def units(self) -> list[Unit]:
        """One for each parameter."""
        return self._averager.units

    def situation(self, *, is_new: bool) -> Situation:
        """Return where this replica stands."""
        units = self.units
        return Situation(
            is_new=is_new,
            has_anchors=not is_new and bool(units) and units[0].has_anchors,
            due=self._due,
            steps=self._averager.step,
            begun=frozenset(range(len(units))) if self._begun else frozenset(),
            agreed=NOTHING_AGREED if self._switch is None else self._switch.agreed,
        )

    def before_write(self, number: int) -> None:
        """Prepare nothing: DDP reads the parameters themselves."""

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of the one with this rank in the group."""
        for unit in self.units:
            for one in unit.tensors():
                self._elastic.group.begin_broadcast(one, source).wait()

    def start(self, params: Iterable[Any], *inner: Any) -> None:
        """Meet the others, before the first step; a joiner takes part in the round that is due.

        Args:
            params: Groups of the optimizer.
            inner: The optimizers, whose state joiners get; of others they begin with a fresh one.

        Raises:
            MembersError, SyncError: see `Elastic.refresh`.
        """
        params = list(params)
        self._groups = [one for one in params if isinstance(one, dict)]
        self._params = flat_of(params)
        self.inner.optimizers = inner
        self._averager.make_units(params)
        self.is_started = True
        self._follow()
        if self.config.local_sgd_warmup_steps == 0:
            while not all(unit.has_anchors for unit in self.units):
                self._attempt(lambda: all_or_none(self._sync.voters, self._take_anchors))
        self._settle()

    def stepped(self, *, ends_round: bool, is_step: bool = True) -> list[Outcome] | None:
        """Count a step, unless none was made, and make the round that it ends; None: it ends none.

        By time a round follows whatever `ends_round` is.

        Raises:
            MembersError, SyncError: see `Elastic.refresh`.
        """
        self.alone += is_step
        if self._turns is not None:
            return self._take_turn(functools.partial(self._turns.stepped, is_made=is_step))[1]
        return self.make_round() if ends_round else None

    def make_round(self) -> list[Outcome]:
        """Make a round now, which all replicas ask for."""
        self._due = True
        with reducing(self._switch):
            self._follow()
            return self._settle()

    def sync_now(self) -> list[Outcome]:
        """Make a round now, which all replicas ask for; none where no step was made since."""
        return (self.stepped(ends_round=True, is_step=False) if self.alone else None) or []

    def finish(self, made: Callable[[list[Outcome]], bool]) -> None:
        """Make the last rounds, which all replicas ask for; by time, until none has data.

        A last round counts if the members are those who have entered it: others do not know that
        it was the last one.

        Args:
            made: Called after each round, and without outcomes after a change that made none.
                Returns whether all end here.

        Raises:
            MembersError, SyncError: see `Elastic.refresh`.
        """
        if self._turns is None:
            made(self.sync_now())
            return
        is_over = False
        while not is_over:
            changes = self.changes
            entry, outcomes = self._take_turn(self._turns.exhausted)
            if (outcomes or changes != self.changes) and made(outcomes or []):
                return
            is_over = entry is Entry.LAST and changes == self.changes

    def go_on_from(self, step: int, alone: int | None = None) -> None:
        """Take the counts of a state that was loaded.

        Args:
            step: Of the optimizer, over the training.
            alone: Since the last round; None: as rounds by steps have it.
        """
        lone = max(0, step - self.config.local_sgd_warmup_steps)
        self.alone = lone % self.config.local_sgd_sync_interval if alone is None else alone
        self._due = False

    def _take_turn(self, call: Callable[[], Entry]) -> tuple[Entry | None, list[Outcome] | None]:
        """Return the entry into a round by time and what the round made; None: members changed.

        What a change has left over of a round is made in any case.
        """
        entries: list[Entry] = []
        self._attempt(lambda: entries.append(call()))
        entry = entries[0] if entries else None
        if entry not in (None, Entry.SKIP):
            self._due = True
            self._follow()
        return entry, self._settle() if self._due else None

    def _settle(self) -> list[Outcome]:
        """Make the rounds that are due: one, or two where others gave this replica the first."""
        outcomes: list[Outcome] = []
        while self._due:
            self._begun = True
            self._attempt(lambda: outcomes.extend(self._run()))
        return outcomes

    def _run(self) -> list[Outcome]:
        outcomes = self._sync.run(self.units, steps=float(self.alone))
        self._due, self._begun, self.alone = False, False, 0
        return outcomes

    def _take_anchors(self) -> None:
        for unit in self.units:
            unit.take_anchors()
        check_equal(self.units, self._elastic.group)

    def _follow(self) -> None:
        found = self._elastic.refresh()
        if found is not None:
            self._apply(found)

    def _attempt(self, call: Callable[[], object]) -> None:
        """Make a call; where it fails, carry out the change of members."""
        failed = attempt(call)
        if failed is not None:
            self._apply(self._elastic.recover(failed))

    def _apply(self, found: Regrouped) -> None:
        """Bring counters to where the plan has brought the units."""
        averager = self._averager
        averager.group = self._elastic.group
        self.changes += 1
        self._begun = False
        if found.joined:
            averager.joined, averager.step = True, found.steps
            self.alone, self._due = 0, found.due
        if found.passed:
            self.alone, self._due = round(self.alone * found.kept), False
        if found.behind:
            self._elastic.take_position(found)
            averager.step, self._due = found.steps, found.due
        is_left_over = found.plan is not None and bool(found.plan.again)
        if self._turns is not None:
            self._move(self._turns, found, is_left_over=is_left_over)
        if self._switch is not None:
            self._switch.move(averager.group, found.agreed, joined=found.joined)
        self._due |= is_left_over

    def _move(self, turns: Turns, found: Regrouped, *, is_left_over: bool) -> None:
        """Have the time of rounds go on with the new members.

        Who had entered a round of which nobody has begun a unit trains on, as the others do: these
        know nothing of that round.
        """
        entered = self._due and not is_left_over
        if entered:
            self._due = False
        turns.move(
            self._averager.group,
            self._elastic.epoch[1],
            found.plan.round if found.plan is not None else 0,
            0 if is_left_over else self.alone,
            starts=found.joined or is_left_over,
            is_due=entered and not found.joined,
        )


@runtime_checkable
class Late(Protocol):
    """What knows by itself that its state is from before the giver's last step of it."""

    def catch_up(self) -> bool:
        """Make that step; return whether there was one."""


def catch_up(step: int, one: Any) -> bool:
    """Step a scheduler that a joiner was given as of the step before; return whether it was."""
    if isinstance(one, Late):
        return one.catch_up()
    if counts_to(step, one):
        one.step()
        return True
    return False


def counts_to(step: int, one: Any) -> TypeGuard[LRScheduler]:
    """Tell if this is a scheduler of torch that is stepped with the optimizer, at this step."""
    from torch.optim import lr_scheduler

    while isinstance(one, lr_scheduler.ChainedScheduler):  # has no count of its own
        one = one._schedulers[0]  # noqa: SLF001 - no public way
    waits = isinstance(one, lr_scheduler.ReduceLROnPlateau)  # for a loss
    return isinstance(one, lr_scheduler.LRScheduler) and not waits and one.last_epoch == step


def flat_of(params: Iterable[Any]) -> list[Any]:
    """Return the parameters of what may be groups of an optimizer."""
    return [each for one in params for each in (one["params"] if isinstance(one, dict) else [one])]


def check_settings(
    config: LocalSGDConfig, outer: OuterOptimizerConfig | None, gta: GTAConfig | None
) -> None:
    """Refuse settings that contradict each other, or ask for what DDP has not."""
    check_together(config, outer, gta)
    if config.step_weight_by != "steps":
        raise LocalSGDConfigError(
            f"step_weight_by={config.step_weight_by!r}: with DDP nobody tells the tokens; leave it "
            "at its default"
        )


def members_and_group(
    given: dist.ProcessGroup | Members | None, timeout: float
) -> tuple[Members | None, Group]:
    """Return the members, if they are given, and the replicas that are there at the start."""
    import torch.distributed as dist

    if given is None or isinstance(given, dist.ProcessGroup):
        return None, Group(given, timeout=timeout)
    return given, Group.of_one()


def members_of(
    averager: Averager, members: Members | None, sync: UnitSync, **more: Any
) -> DDPMembers | None:
    """Return the side of an averager whose members may change; None: it has a process group."""
    return None if members is None else DDPMembers(averager, members, sync, **more)


def turns_of(config: LocalSGDConfig, group: Group, members: Members | None) -> Turns | None:
    """Return the turns of this replica, of one rank or of all of its members; None: by steps."""
    if not config.use_async:
        return None
    if members is None:
        return Turns(config, group, Group.of_one())
    return Turns(config, group, members.shard_group, has_changed=members.has_changed)


def _refuse_spanning(members: Members) -> None:
    import torch.distributed as dist

    world, own = dist.get_world_size(), members.shard_group.size
    if world != own:
        raise LocalSGDConfigError(
            f"members: a replica has {own} ranks and the default group {world}: a DDP that spans "
            "replicas divides by the old number of ranks after a change. Call init_process_group "
            "for the ranks of one replica only, and make DDP in it"
        )


def _refuse_warm_up(steps: int) -> None:
    if steps:
        raise LocalSGDConfigError(
            f"local_sgd_warmup_steps={steps}: DDP averages gradients inside a replica, so replicas "
            "that come and go have no warm-up; set it to 0, or use FSDP2"
        )


def refuse_more(count: int) -> None:
    """Refuse parameters that are added later: a joiner would not have them.

    Raises:
        LocalSGDError: always.
    """
    raise LocalSGDError(
        f"add_param_group: {count} parameters are new, and members that come and go exchange "
        "those of the start: give the optimizer all of them before it is wrapped"
    )
