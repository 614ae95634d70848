"""Rounds whose interval is chosen by what this job has measured, down to a sync in each step.

Belongs here: the clock around steps and reductions, and the figures that replicas send one another.
Does not belong here: the choice (`policies.switching`), and carrying it out (`driver`).

The slowest replica's step counts, as it is without any reduction. Of a reduction the time counts
on the replica that comes to it last: what the others take besides is their wait for a slow one,
which no interval makes shorter.

Fixed replicas under FSDP2 compare in a collective of its own after a step (`ByCost`): a sync in
each step has no rounds. Members that come and go have no collective but those of a round, and send
the figures with the reports of its first unit (`ByCostInRounds`).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.schedule import Boundary
from holdfast.local_sgd.policies.switching import (
    NOTHING_AGREED,
    Agreed,
    Measurement,
    Mode,
    RunningWorld,
    SwitchSettings,
    propose,
)
from holdfast.local_sgd.sync.unit_sync import UnitSync
from holdfast.local_sgd.sync.units import Unit
from holdfast.local_sgd.triggers.trigger import BySteps, Change, Replicas
from holdfast_wire.keys import ENV_SYNC_CHOICES
from holdfast_wire.messages.job import SyncChosen
from holdfast_wire.proto_json import to_json

log: Final = logging.getLogger("holdfast")
LOOK: Final = 8
"""Steps with a sync in each after which replicas compare what they have measured: a median of eight
passes over a slow one."""
Report = Callable[[SyncChosen], None]


class ByCost(BySteps):
    """How replicas agree now, and when they will otherwise; all ranks have one alike."""

    def __init__(
        self,
        config: LocalSGDConfig,
        who: Replicas,
        *,
        report: Report = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with the interval of the settings; an interval of 1 is a sync in each step.

        Args:
            config: The interval, and whether to act.
            who: The replicas, and the ranks of this one.
            report: Called on one rank of the job with each choice that is news.
            clock: Seconds that never go back.
        """
        super().__init__(config)
        self.settings = SwitchSettings(tolerated=config.switching_tolerated)
        """Borders of the choice."""
        self._who, self._clock, self._report = who, clock, report
        self._proposed = 0
        self.running = self._begun = self._first(config.local_sgd_sync_interval)
        """The way that runs now."""
        self._rounds = 0
        """That steps have ended so far."""
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

    def rounds(self, made: int) -> int:
        """Those that steps have ended: a sync in each step has none."""
        del made
        return self._rounds

    def warmed(self, steps: int) -> Boundary:
        """Begin a step anew."""
        self.restart()
        return super().warmed(steps)

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Measure a reduction, as far as it stops training; not one in which members change."""
        begun, changes = self._now(), self._changes
        try:
            yield
        finally:
            if changes == self._changes:
                self._reduced += self._now() - begun

    def stepped(self, steps: int, *, is_made: bool = True) -> Boundary:
        """Take the time of a step; say whether it ends a round, or all local steps.

        Raises:
            SyncError: a rank is gone.
        """
        del is_made
        is_due, was_sync = self.ends_round(steps), self.is_sync
        if self._chooses(steps) and self.is_sync and not was_sync:
            return Boundary.GRADIENTS
        return Boundary.ROUND if is_due else Boundary.NOTHING

    def ends_round(self, steps: int) -> bool:
        """Take the time of a step; tell if it ends a round.

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
        self._rounds += is_due
        return is_due

    def _chooses(self, steps: int) -> bool:
        """Compare with the other replicas, at its turn; tell if another interval runs from now."""
        if not self._is_turn(steps, LOOK if self.is_sync else self.running.interval):
            return False
        step, reduction = self._figures()
        self._steps, self._reductions = [], []
        step, longest = self._who.group.max_scalars([step, -reduction])
        self.restart()  # the wait for a slow one is no step
        if step <= 0 or longest > 0:
            return False
        measured = Measurement(
            members=self._who.group.size, step_seconds=step, sync_seconds=-longest
        )
        if not self._proposes(measured, steps):
            return False
        self._origin = steps
        return True

    def restart(self) -> None:
        """Begin a step anew, after something whose time is no part of it."""
        self._at, self._reduced = self._now(), 0.0

    def state(self) -> dict[str, Any]:
        """The choice, for a checkpoint."""
        return {"switch": self._state()}

    def _state(self) -> dict[str, Any]:
        return {
            "mode": self.running.mode.value,
            "interval": self.running.interval,
            "votes": self.running.votes,
            "origin": self._origin,
            "rounds": self._rounds,
        }

    def load(self, clock: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, of either kind of choice or of replicas that chose nothing."""
        steps, alone = int(clock["steps"]), int(clock["alone"])
        if "switch" in clock:
            self._load(clock["switch"], alone)
        else:
            self._begin(steps, alone)

    def _load(self, state: Mapping[str, Any], alone: int) -> None:
        del alone
        interval = int(state["interval"])
        if Mode(state["mode"]) is Mode.LOCAL:
            interval = max(self._least_apart, interval)
        self.running = self._first(interval, int(state["votes"]))
        self._origin, self._rounds = int(state["origin"]), int(state["rounds"])
        self._steps, self._reductions = [], []
        begun, now = self._begun.interval, self.running.interval
        if now != begun:
            self._announce(self._origin, (begun, now), "the checkpoint was saved so", made=True)
        self.restart()

    def _begin(self, steps: int, alone: int) -> None:
        """Go on from a checkpoint of replicas that chose nothing."""
        if self.is_sync and steps > self._config.local_sgd_warmup_steps:
            self.running, self._origin = RunningWorld(Mode.LOCAL, self._least_apart), steps - alone
            reason = "the replicas of the checkpoint have parted"
            self._announce(steps, (1, self._least_apart), reason, made=True)
        self.restart()

    def _first(self, interval: int, votes: int = 0) -> RunningWorld:
        return RunningWorld(Mode.LOCAL if interval > 1 else Mode.SYNC, interval, votes)

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
        step, reduction = self._who.own.max_scalars(mine)
        return step, reduction

    def _proposes(self, measured: Measurement, step: int) -> bool:
        """Take what all have measured, and report what is news; tell if another runs now."""
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
        self._pass_on(
            SyncChosen(step=step, interval=after, interval_before=before, made=made, reason=reason)
        )

    def _pass_on(self, chosen: SyncChosen) -> None:
        self._publish(chosen)

    def _publish(self, chosen: SyncChosen) -> None:
        """Report a choice, on one rank of the job."""
        if self._who.group.rank == 0 and self._who.own.rank == 0:
            verb = "switches" if chosen.made else "would switch"
            log.info("local SGD %s after step %d: %s", verb, chosen.step, chosen.reason)
            self._report(chosen)

    def _now(self) -> float:
        """Return the time, when the device has done its work."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self._clock()


class ByCostInRounds(ByCost):
    """A choice of the interval alone, made in each round with its first unit.

    A replica that has finished that unit has received what all others have, and chosen as they
    have. So a round that a lost replica cuts short leaves the choice as it leaves the unit: some
    have it, or nobody. Those that have not take both when members change. The interval counts from
    the round: step counts of replicas part where one was out for a while.
    """

    def __init__(
        self,
        config: LocalSGDConfig,
        who: Replicas,
        *,
        first: str,
        report: Report = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with the interval of the settings; first: name of the first unit of a round."""
        super().__init__(config, who, report=report, clock=clock)
        self.settings = dataclasses.replace(self.settings, shortest=2)
        self._first_unit = first
        self._since, self._counted = 0, 0
        self._unpublished: list[SyncChosen] = []
        """The newest choice, until the next round shows that it stands."""
        self._known = NOTHING_AGREED

    def rounds(self, made: int) -> int:
        """Those of the units."""
        return made

    def ends_round(self, steps: int) -> bool:
        """Take the time of a step; tell if a round is due."""
        self._since, self._counted = self._since + 1, steps
        return super().ends_round(steps)

    def _chooses(self, steps: int) -> bool:
        """Leave the choice to rounds."""
        del steps
        return False

    def figures(self, units: Sequence[Unit]) -> list[float]:
        """Return this replica's figures, for the batch of the first unit.

        Raises:
            SyncError: a rank of this replica is gone.
        """
        if units[0].name != self._first_unit:
            return []
        return [*self._figures(), float(self._counted)]

    def received(self, sent: Sequence[Sequence[float]], round_number: int) -> None:
        """Choose, from what all replicas have sent with a unit that is finished now.

        Args:
            sent: What `figures` has returned, by replica.
            round_number: Rounds of the unit.
        """
        self._steps, self._reductions, self._since = [], [], 0
        self._known = dataclasses.replace(self._known, round=round_number)
        for chosen in self._unpublished:  # all who are here have finished that round: it stands
            self._publish(chosen)
        self._unpublished = []
        trained = [one for one in sent if one[0] > 0]  # a joiner has made no step
        if not trained or min(one[1] for one in trained) < 0:
            return
        # Step counts of replicas part, and a later choice must not look like an earlier one.
        step = max(self._known.step + 1, *(int(one[2]) for one in sent))
        measured = Measurement(
            members=len(sent),
            step_seconds=max(one[0] for one in trained),
            sync_seconds=min(one[1] for one in trained),
        )
        if self._proposes(measured, step):
            self._known = dataclasses.replace(self._known, step=step)

    @property
    def agreed(self) -> Agreed:
        """The choice, for others that go on as this replica does."""
        running = self.running
        return dataclasses.replace(
            self._known, interval=running.interval, votes=running.votes, since=self._since
        )

    def move(self, change: Change) -> None:
        """Go on with other members, as those who were members before and have chosen last."""
        self._changes += 1
        newest, joined = change.agreed, change.joined
        if newest.interval and (joined or newest.round > self._known.round):
            before = self.running.interval
            self.running = RunningWorld(Mode.LOCAL, newest.interval, newest.votes)
            self._known = newest
            self._since = newest.since if joined else 0
            self._steps, self._reductions = [], []
            if not joined and newest.interval != before:
                reason = "the other replicas have chosen so in a round that was cut short here"
                self._announce(newest.step, (before, newest.interval), reason, made=True)
        self.restart()

    def _state(self) -> dict[str, Any]:
        known = {"origin": self._counted - self._since, "rounds": self._known.round}
        return {**super()._state(), **known, "step": self._known.step}

    def _load(self, state: Mapping[str, Any], alone: int) -> None:
        """The same; a sync in each step becomes the interval of the settings."""
        self._unpublished = []
        if Mode(state["mode"]) is Mode.SYNC:
            state = {**state, "interval": self._begun.interval, "votes": 0}
        super()._load(state, alone)
        self._since, self._counted = alone, int(state["origin"]) + alone
        # The other kind counts rounds by steps.
        number = self._rounds if "step" in state else 0
        self._known = Agreed(round=number, step=int(state.get("step", 0)))

    def _begin(self, steps: int, alone: int) -> None:
        self._since, self._counted = alone, steps
        self.restart()

    def _first(self, interval: int, votes: int = 0) -> RunningWorld:
        return RunningWorld(Mode.LOCAL, interval, votes)

    @property
    def _least_apart(self) -> int:
        return 1

    def _is_turn(self, steps: int, interval: int) -> bool:
        return self._since >= interval

    def _pass_on(self, chosen: SyncChosen) -> None:
        """Have a choice reported with the next round, which shows that it stands."""
        self._unpublished = [chosen]


def measured(config: LocalSGDConfig, who: Replicas, sync: UnitSync, first: str) -> ByCost:
    """Return the trigger that measures, for replicas whose gradients can be averaged or not."""
    if who.averages:
        return ByCost(config, who, report=reporter())
    sync.with_reports = made = ByCostInRounds(config, who, first=first, report=reporter())
    return made


def reporter(environment: Mapping[str, str] = os.environ) -> Report:
    """Return a function that reports a choice to the agent of this rank, if there is one.

    It appends a line to the file that the agent names. A file that cannot be written is logged: a
    choice is carried out whoever knows of it.
    """
    named = environment.get(ENV_SYNC_CHOICES, "")
    if not named:
        return lambda _: None
    return functools.partial(_append, Path(named))


def _append(path: Path, chosen: SyncChosen) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{to_json(chosen)}\n")
    except OSError as error:
        log.warning("local SGD: no report of a choice to the agent: %s", error)
