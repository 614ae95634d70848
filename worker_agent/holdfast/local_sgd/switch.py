"""Switch between a sync of gradients in each step and local steps, by what this job has measured.

Belongs here: the clock around steps and reductions, and what the replicas tell one another of it.
Does not belong here: the choice (`policies.switching`), and carrying it out in a framework.

The slowest replica's step counts, as it is without any reduction. Of a reduction the time counts
that it takes the replica which comes to it last: what the others take besides is their wait for a
slow one, which no interval makes shorter.

Fixed replicas under FSDP2 compare in a collective of its own after a step (`Switch`): a sync in
each step has no rounds. Members that come and go have no collective but those of a round, and send
the figures with the reports of its first unit (`RoundSwitch`).
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.switching import (
    NOTHING_AGREED,
    Agreed,
    Measured,
    Mode,
    Running,
    SwitchSettings,
    propose,
)
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import UnitSync
from holdfast.local_sgd.sync.units import Unit
from holdfast.local_sgd.sync_choices import Tell, teller
from holdfast_wire.messages.job import SyncChosen

log: Final = logging.getLogger("holdfast")
LOOK: Final = 8
"""Steps with a sync in each after which replicas compare what they have measured: a median of eight
passes over a slow one."""


class Switch:
    """How replicas agree now, and when they will otherwise; all ranks have one alike."""

    def __init__(
        self,
        config: LocalSGDConfig,
        replicas: Group,
        own: Group,
        *,
        tell: Tell = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with the interval of the settings; an interval of 1 is a sync in each step.

        Args:
            config: The interval, and whether to act.
            replicas: The ranks that hold this rank's shards.
            own: The ranks of this replica.
            tell: Called on one rank of the job with each choice that is news.
            clock: Seconds that never go back.
        """
        self.replicas = replicas
        """The ranks that hold this rank's shards."""
        self.settings = SwitchSettings(tolerated=config.switching_tolerated)
        """Borders of the choice."""
        self._config, self._own, self._clock = config, own, clock
        self._tell_others, self._proposed = tell, 0
        self.running = self._begun = self._first(config.local_sgd_sync_interval)
        """What runs now."""
        self.rounds = 0
        """Rounds that steps have ended so far."""
        self.reason = ""
        """Of the newest proposal."""
        self._origin = config.local_sgd_warmup_steps
        self._steps = list[float]()
        self._reductions = list[float]()
        self._at, self._reduced = self._now(), 0.0
        self._changes = 0
        """Of members, so far."""

    @property
    def is_sync(self) -> bool:
        """Gradients are averaged over the replicas."""
        return self.running.mode is Mode.SYNC

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Measure a reduction, as far as it stops training; not one in which members change."""
        begun, changes = self._now(), self._changes
        try:
            yield
        finally:
            if changes == self._changes:
                self._reduced += self._now() - begun

    def stepped(self, steps: int) -> bool:
        """Take the time of a step; return whether it ends a round.

        Args:
            steps: Of the optimizer, over the training.
        """
        now = self._now()
        total, reduced = now - self._at, self._reduced
        self._at, self._reduced = now, 0.0
        self._steps.append(total - reduced)
        if reduced > 0:
            self._reductions.append(reduced)
        is_due = not self.is_sync and self._is_turn(steps, self.running.interval)
        self.rounds += is_due
        return is_due

    def choose(self, steps: int) -> Running | None:
        """Return what runs from now on, if that is another; all ranks call it after each step.

        Raises:
            SyncError: a rank is gone.
        """
        if not self._is_turn(steps, LOOK if self.is_sync else self.running.interval):
            return None
        step, reduction = self._figures()
        self._steps, self._reductions = [], []
        step, longest = self.replicas.max_scalars([step, -reduction])
        self.went_on()  # the wait for a slow one is no step
        if step <= 0 or longest > 0:
            return None
        measured = Measured(members=self.replicas.size, step_seconds=step, sync_seconds=-longest)
        if not self._proposes(measured, steps):
            return None
        self._origin = steps
        return self.running

    def went_on(self) -> None:
        """Begin a step anew, after a change whose time is no part of it."""
        self._at, self._reduced = self._now(), 0.0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has of it."""
        return {
            "mode": self.running.mode.value,
            "interval": self.running.interval,
            "votes": self.running.votes,
            "origin": self._origin,
            "rounds": self.rounds,
        }

    def load(self, state: Mapping[str, Any], alone: int) -> None:
        """Go on from a checkpoint.

        Args:
            state: What `state` has returned, of either kind of switch.
            alone: Steps since the last round.
        """
        interval = int(state["interval"])
        if Mode(state["mode"]) is Mode.LOCAL:
            interval = max(self._least_apart, interval)
        self.running = self._first(interval, int(state["votes"]))
        self._origin, self.rounds = int(state["origin"]), int(state["rounds"])
        self._steps, self._reductions = [], []
        begun, now = self._begun.interval, self.running.interval
        if now != begun:
            self._announce(self._origin, (begun, now), "the checkpoint was saved so", made=True)
        self.went_on()

    def begin(self, steps: int, alone: int) -> None:
        """Go on from a checkpoint of replicas that chose nothing.

        Args:
            steps: Of the optimizer, over the training.
            alone: Steps since the last round.
        """
        if self.is_sync and steps > self._config.local_sgd_warmup_steps:
            self.running, self._origin = Running(Mode.LOCAL, self._least_apart), steps - alone
            reason = "the replicas of the checkpoint have parted"
            self._announce(steps, (1, self._least_apart), reason, made=True)
        self.went_on()

    def _first(self, interval: int, votes: int = 0) -> Running:
        return Running(Mode.LOCAL if interval > 1 else Mode.SYNC, interval, votes)

    @property
    def _least_apart(self) -> int:
        """Least interval of replicas that have parted: averaged gradients bring none together."""
        return 2

    def _is_turn(self, steps: int, interval: int) -> bool:
        return steps > self._origin and (steps - self._origin) % interval == 0

    def _figures(self) -> tuple[float, float]:
        """Return seconds of a step and of a reduction of this replica, below 0: of none yet."""
        mine = [statistics.median(self._steps) if self._steps else 0.0]
        mine.append(statistics.median(self._reductions) if self._reductions else -1.0)
        step, reduction = self._own.max_scalars(mine)
        return step, reduction

    def _proposes(self, measured: Measured, step: int) -> bool:
        """Take what all have measured, and tell what is news; return whether another runs now."""
        before = self.running.interval
        proposal = propose(measured, self.running, self.settings)
        self.reason = proposal.reason
        after = proposal.running.interval
        if proposal.changes:
            if self._acts or after != self._proposed:
                self._announce(step, (before, after), proposal.reason, made=self._acts)
            self._proposed = after
        if not self._acts or not proposal.changes:
            votes = 0 if proposal.changes else proposal.running.votes
            self.running = dataclasses.replace(self.running, votes=votes)
            return False
        self.running = proposal.running
        return True

    @property
    def _acts(self) -> bool:
        return self._config.switching == "act"

    def _announce(self, step: int, intervals: tuple[int, int], reason: str, *, made: bool) -> None:
        before, after = intervals
        chosen = SyncChosen(
            step=step, interval=after, interval_before=before, made=made, reason=reason
        )
        self._tell(chosen)

    def _tell(self, chosen: SyncChosen) -> None:
        """Tell of a choice, on one rank of the job."""
        if self.replicas.rank == 0 and self._own.rank == 0:
            verb = "switches" if chosen.made else "would switch"
            log.info("local SGD %s after step %d: %s", verb, chosen.step, chosen.reason)
            self._tell_others(chosen)

    def _now(self) -> float:
        """Return the time, when the device has done its work."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self._clock()


class RoundSwitch(Switch):
    """A choice of the interval alone, made in each round with its first unit.

    Who has finished that unit has heard what all others have, and chosen as they have. So a round
    that a lost replica cuts short leaves the choice as it leaves the unit: some have it, or nobody.
    Those that have not take both when members change. The interval counts from the round: step
    counts of replicas part where one was out for a while.
    """

    def __init__(
        self,
        config: LocalSGDConfig,
        replicas: Group,
        own: Group,
        *,
        first: str,
        tell: Tell = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with the interval of the settings.

        Args:
            config: The interval, and whether to act.
            replicas: The ranks that hold this rank's shards.
            own: The ranks of this replica.
            first: Name of the first unit of a round.
            tell: Called on one rank of the job with each choice that is news.
            clock: Seconds that never go back.
        """
        super().__init__(config, replicas, own, tell=tell, clock=clock)
        self.settings = dataclasses.replace(self.settings, shortest=2)
        self._first_unit = first
        self._since, self._counted = 0, 0
        self._chosen: SyncChosen | None = None
        """The newest choice, until it is told."""
        self._known = NOTHING_AGREED

    def stepped(self, steps: int) -> bool:
        """Take the time of a step; return whether a round is due."""
        self._since, self._counted = self._since + 1, steps
        return super().stepped(steps)

    def choose(self, steps: int) -> Running | None:
        """Return None: rounds choose."""
        return None

    def says(self, units: Sequence[Unit]) -> list[float]:
        """Return what this replica tells with a batch: figures, with that of the first unit.

        Raises:
            SyncError: a rank of this replica is gone.
        """
        if units[0].name != self._first_unit:
            return []
        return [*self._figures(), float(self._counted)]

    def hears(self, told: Sequence[Sequence[float]], round_number: int) -> None:
        """Choose, from what all replicas have told with a unit that is finished now.

        Args:
            told: What `says` has returned, by replica.
            round_number: Rounds of the unit.
        """
        self._steps, self._reductions, self._since = [], [], 0
        self._known = dataclasses.replace(self._known, round=round_number)
        if self._chosen is not None:  # all who are here have finished that round: it stands
            self._tell(self._chosen)
            self._chosen = None
        trained = [one for one in told if one[0] > 0]  # a joiner has made no step
        if not trained or min(one[1] for one in trained) < 0:
            return
        # Step counts of replicas part, and a later choice must not look like an earlier one.
        step = max(self._known.step + 1, *(int(one[2]) for one in told))
        measured = Measured(
            members=len(told),
            step_seconds=max(one[0] for one in trained),
            sync_seconds=min(one[1] for one in trained),
        )
        if self._proposes(measured, step):
            self._known = dataclasses.replace(self._known, step=step)

    @property
    def agreed(self) -> Agreed:
        """What others need to go on as this replica does."""
        running = self.running
        return dataclasses.replace(
            self._known, interval=running.interval, votes=running.votes, since=self._since
        )

    def move(self, replicas: Group, newest: Agreed, *, joined: bool) -> None:
        """Go on with other members, as those of them do who have chosen last.

        Args:
            replicas: Who holds this rank's shards now.
            newest: Of those who were members before.
            joined: This replica was none.
        """
        self.replicas = replicas
        self._changes += 1
        if newest.interval and (joined or newest.round > self._known.round):
            before = self.running.interval
            self.running = Running(Mode.LOCAL, newest.interval, newest.votes)
            self._known = newest
            self._since = newest.since if joined else 0
            self._steps, self._reductions = [], []
            if not joined and newest.interval != before:
                reason = "the other replicas have chosen so in a round that was cut short here"
                self._announce(newest.step, (before, newest.interval), reason, made=True)
        self.went_on()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has of it."""
        known = {"origin": self._counted - self._since, "rounds": self._known.round}
        return {**super().state(), **known, "step": self._known.step}

    def load(self, state: Mapping[str, Any], alone: int) -> None:
        """Go on from a checkpoint; one of a sync in each step begins with the settings' interval.

        Args:
            state: What `state` has returned, of either kind of switch.
            alone: Steps since the last round.
        """
        self._chosen = None
        if Mode(state["mode"]) is Mode.SYNC:
            state = {**state, "interval": self._begun.interval, "votes": 0}
        super().load(state, alone)
        self._since, self._counted = alone, int(state["origin"]) + alone
        # Another kind counts rounds by steps.
        number = self.rounds if "step" in state else 0
        self._known = Agreed(round=number, step=int(state.get("step", 0)))

    def begin(self, steps: int, alone: int) -> None:
        """Go on from a checkpoint of replicas that chose nothing; see `Switch.begin`."""
        self._since, self._counted = alone, steps
        self.went_on()

    def _first(self, interval: int, votes: int = 0) -> Running:
        return Running(Mode.LOCAL, interval, votes)

    @property
    def _least_apart(self) -> int:
        return 1

    def _is_turn(self, steps: int, interval: int) -> bool:
        return self._since >= interval

    def _announce(self, step: int, intervals: tuple[int, int], reason: str, *, made: bool) -> None:
        """Have a choice told with the next round, which shows that it stands."""
        before, after = intervals
        self._chosen = SyncChosen(
            step=step, interval=after, interval_before=before, made=made, reason=reason
        )


def reducing(switch: Switch | None) -> AbstractContextManager[None]:
    """Measure a reduction, where something chooses by it."""
    return nullcontext() if switch is None else switch.reducing()


def saved(switch: Switch | None) -> dict[str, Any]:
    """Return what a checkpoint has of a choice, under its name there."""
    return {} if switch is None else {"switch": switch.state()}


def load(switch: Switch | None, state: Mapping[str, Any], steps: int, alone: int) -> None:
    """Go on from what a checkpoint has, which may be no choice.

    Args:
        switch: What chooses now.
        state: With or without what `saved` has returned.
        steps: Of the optimizer, over the training.
        alone: Steps since the last round.
    """
    if switch is None:
        return
    if "switch" in state:
        switch.load(state["switch"], alone)
    else:
        switch.begin(steps, alone)


def switch_of(config: LocalSGDConfig, replicas: Group, own: Group) -> Switch | None:
    """Return the switch that the settings ask for, of fixed replicas under FSDP2."""
    if config.switching == "off":
        return None
    return Switch(config, replicas, own, tell=teller())


def round_switch_of(
    config: LocalSGDConfig, sync: UnitSync, own: Group, first: str
) -> RoundSwitch | None:
    """Return the switch that the settings ask for, of members or under DDP.

    Args:
        config: The interval, and whether to act.
        sync: Of the units, whose rounds carry what the switch measures.
        own: The ranks of this replica.
        first: Name of the first unit of a round.
    """
    if config.switching == "off":
        return None
    sync.beside = made = RoundSwitch(config, sync.sync, own, first=first, tell=teller())
    return made
