"""Switch between a sync of gradients in each step and local steps, by what this job has measured.

Belongs here: the clock around steps and reductions, and what the replicas tell one another of it.
Does not belong here: the choice (`policies.switching`), and carrying it out in a framework.

The slowest replica's step counts, as it is without any reduction. Of a reduction the time counts
that it takes the replica which comes to it last: what the others take besides is their wait for a
slow one, which no interval makes shorter.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.switching import (
    Agreed,
    Measured,
    Mode,
    Running,
    SwitchSettings,
    propose,
)
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import all_or_none
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
        local_only: bool = False,
        tell: Tell = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with the interval of the settings; an interval of 1 is a sync in each step.

        Args:
            config: The interval, and whether to act.
            replicas: The ranks that hold this rank's shards.
            own: The ranks of this replica.
            local_only: There is no sync in each step: replicas come and go, or the framework has
                no hook for it.
            tell: Called on one rank of the job with each choice that is news.
            clock: Seconds that never go back.
        """
        self.replicas = replicas
        """The ranks that hold this rank's shards."""
        self.settings = SwitchSettings(
            tolerated=config.switching_tolerated, shortest=2 if local_only else 1
        )
        """Borders of the choice."""
        self._config, self._own, self._clock = config, own, clock
        self._voters = own if local_only else None
        self._tell_others, self._proposed = tell, 0
        self._newest: SyncChosen | None = None
        self._is_told = True
        interval = config.local_sgd_sync_interval
        is_sync = interval == self.settings.shortest == 1
        self.running = Running(Mode.SYNC if is_sync else Mode.LOCAL, interval)
        """What runs now."""
        self.rounds = 0
        """Rounds that steps have ended so far."""
        self.reason = ""
        """Of the newest proposal."""
        self._origin, self._looked = config.local_sgd_warmup_steps, 0
        self._steps = list[float]()
        self._reductions = list[float]()
        self._at, self._reduced = self._now(), 0.0

    @property
    def is_sync(self) -> bool:
        """Gradients are averaged over the replicas."""
        return self.running.mode is Mode.SYNC

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Measure a reduction, as far as it stops training."""
        begun = self._now()
        try:
            yield
        finally:
            self._reduced += self._now() - max(begun, self._at)  # without a change of members

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
        measured = self._measured()
        self._looked = steps
        if measured is None:
            return None
        proposal = propose(measured, self.running, self.settings)
        self.reason = proposal.reason
        if proposal.changes:
            self._tell(steps, proposal.running.interval, proposal.reason)
        if not self._acts or not proposal.changes:
            votes = 0 if proposal.changes else proposal.running.votes
            self.running = dataclasses.replace(self.running, votes=votes)
            return None
        self.running, self._origin = proposal.running, steps
        return self.running

    def went_on(self) -> None:
        """Begin a step anew, after a change whose time is no part of it."""
        self._at, self._reduced = self._now(), 0.0

    @property
    def agreed(self) -> Agreed:
        """What others need to go on as this replica does."""
        return Agreed(
            looked=self._looked,
            interval=self.running.interval,
            votes=self.running.votes,
            origin=self._origin,
            rounds=self.rounds,
        )

    def move(self, replicas: Group, newest: Agreed, *, joined: bool) -> None:
        """Go on with other members, as those do who have ended the newest look.

        A look that a lost replica cut short has ended on some of the others, and not on all.

        Args:
            replicas: Who holds this rank's shards now.
            newest: Of those who were members before.
            joined: This replica was none, and has ended no look.
        """
        self.replicas = replicas
        if newest.interval and (joined or newest.looked > self._looked):
            self.running = Running(self.running.mode, newest.interval, newest.votes)
            self._looked, self._origin = newest.looked, newest.origin
            self._steps, self._reductions = [], []
        if joined:
            self.rounds = newest.rounds
        self._tell_newest()
        self.went_on()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has of it."""
        return {
            "mode": self.running.mode.value,
            "interval": self.running.interval,
            "votes": self.running.votes,
            "origin": self._origin,
            "looked": self._looked,
            "rounds": self.rounds,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        begun, mode = self._config.local_sgd_sync_interval, Mode(state["mode"])
        self.running = Running(mode, int(state["interval"]), int(state["votes"]))
        if self.is_sync and self.settings.shortest > 1:
            self.running = Running(Mode.LOCAL, begun)
        self._origin, self.rounds = int(state["origin"]), int(state["rounds"])
        self._looked = int(state.get("looked", self._origin))
        self._steps, self._reductions = [], []
        if self.running.interval != begun:
            reason = "the checkpoint was saved so"
            self._announce(self._origin, (begun, self.running.interval), reason, made=True)
        self.went_on()

    def _is_turn(self, steps: int, interval: int) -> bool:
        return steps > self._origin and (steps - self._origin) % interval == 0

    def _measured(self) -> Measured | None:
        """Return what all have measured; None: somebody has no reduction yet."""
        mine = [statistics.median(self._steps) if self._steps else 0.0]
        mine.append(statistics.median(self._reductions) if self._reductions else -1.0)
        self._steps, self._reductions = [], []
        step, reduction = self._own.max_scalars(mine)
        step, longest = all_or_none(
            self._voters, lambda: self.replicas.max_scalars([step, -reduction])
        )
        if step <= 0 or longest > 0:
            return None
        return Measured(members=self.replicas.size, step_seconds=step, sync_seconds=-longest)

    @property
    def _acts(self) -> bool:
        return self._config.switching == "act"

    def _tell(self, steps: int, interval: int, reason: str) -> None:
        """Tell of a change that is made, or of one that is proposed and was not the last time."""
        if self._acts or interval != self._proposed:
            self._announce(steps, (self.running.interval, interval), reason, made=self._acts)
        self._proposed = interval

    def _announce(self, step: int, intervals: tuple[int, int], reason: str, *, made: bool) -> None:
        before, after = intervals
        self._newest = SyncChosen(
            step=step, interval=after, interval_before=before, made=made, reason=reason
        )
        self._is_told = False
        self._tell_newest()

    def _tell_newest(self) -> None:
        """Tell on one rank; on another one where that is lost, which may have told or not."""
        if self._newest is None or self._is_told or self.replicas.rank or self._own.rank:
            return
        self._is_told = True
        verb = "switches" if self._newest.made else "would switch"
        log.info("local SGD %s after step %d: %s", verb, self._newest.step, self._newest.reason)
        self._tell_others(self._newest)

    def _now(self) -> float:
        """Return the time, when the device has done its work."""
        if self._own.device == "cuda":
            import torch

            torch.cuda.synchronize()
        return self._clock()


def reducing(switch: Switch | None) -> AbstractContextManager[None]:
    """Measure a reduction, where something chooses by it."""
    return nullcontext() if switch is None else switch.reducing()


def saved(switch: Switch | None) -> dict[str, Any]:
    """Return what a checkpoint has of a choice, under its name there."""
    return {} if switch is None else {"switch": switch.state()}


def load(switch: Switch | None, state: Mapping[str, Any]) -> None:
    """Go on from a checkpoint, which may have no choice."""
    if switch is not None and "switch" in state:
        switch.load(state["switch"])


def switch_of(
    config: LocalSGDConfig, replicas: Group, own: Group, *, local_only: bool
) -> Switch | None:
    """Return the switch that the settings ask for; see `Switch`."""
    if config.switching == "off":
        return None
    return Switch(config, replicas, own, local_only=local_only, tell=teller())
