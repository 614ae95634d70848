"""Choice between a sync of gradients in each step and local steps, from what was measured.

Belongs here: the cost of both, the interval that keeps it small, hysteresis. Does not belong here:
measuring, and the change itself, which all replicas make at one round.

A step takes t seconds alone, a reduction c seconds. Sync in each step costs the share c / t, local
steps c / (H·t). The proposal is the least interval, a power of two, that keeps this share within
`tolerated`. A short interval follows the synchronous loss more closely.

What runs becomes longer when it costs more than that. It becomes shorter when the shorter one would
cost no more than `returns` of it. Both must be seen `patience` times in a row. So a measurement
that wavers around a border changes nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Final

from holdfast.local_sgd.config import Value, check_values, positive, real, whole

_SHORTEST: Final = 2
"""Least interval of local steps: an interval of 1 is a sync in each step, with anchors besides."""


class Mode(enum.Enum):
    """How replicas agree."""

    SYNC = "sync"
    """Gradients are reduced in each step."""
    LOCAL = "local"
    """Weights agree after each H steps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings:
    """Borders of the choice."""

    tolerated: float = 0.1
    """Share of a step's time that agreement may cost. Default 0.1: ten per cent."""
    returns: float = 0.5
    """Share of `tolerated` that a shorter interval, or a sync in each step, may cost to be taken
    again. Default 0.5: a measurement may waver by a third without a way back and forth."""
    shortest: int = 1
    """Least interval. Default 1: a sync in each step. 2 where replicas come and go, since a lost
    one would stop the step of all others, or where nothing averages gradients (DDP)."""
    longest: int = 128
    """Greatest interval, a power of two. Default 128, the longest that the authors of EDiT use;
    beyond it replicas part too far."""
    patience: int = 3
    """Measurements in a row that must speak for a change. Default 3: one slow link or one slow step
    changes nothing."""

    def __post_init__(self) -> None:
        """Raise LocalSGDConfigError for a value that is not valid."""
        check_values(self, _VALUES)


_VALUES: Final = (
    Value("tolerated", positive, "a share of a step, above 0"),
    Value("returns", real(lambda value: 0 <= value < 1), "a share, from 0 to below 1"),
    Value("shortest", lambda value: type(value) is int and value in (1, 2), "1 or 2"),
    Value(
        "longest",
        lambda value: whole(_SHORTEST)(value) and isinstance(value, int) and value.bit_count() == 1,
        "a power of two, at least 2",
    ),
    Value("patience", whole(1), "a number of measurements, at least 1"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Figures of the replicas since the last proposal."""

    members: int
    """Replicas."""
    step_seconds: float
    """A step without any reduction, of the slowest replica."""
    sync_seconds: float
    """One reduction of all units, as far as it stops training, of the replica that comes to it
    last: the others wait for it besides."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunningWorld:
    """The way that runs now, and how often measurements have spoken for another."""

    mode: Mode = Mode.SYNC
    interval: int = 1
    """Steps between rounds; 1 with a sync in each step."""
    votes: int = 0
    """Measurements in a row for a change."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """A replica's knowledge of the choice, for others that may have missed the newest one."""

    round: int = 0
    """Of the first unit, when it chose last."""
    interval: int = 0
    """0: it knows of none."""
    votes: int = 0
    since: int = 0
    """Its steps since that round."""
    step: int = 0
    """At which the interval was chosen, as it is told."""


NOTHING_AGREED: Final = Agreed()
"""Of a replica whose interval is not chosen, or that comes to others."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """The way that runs next."""

    running: RunningWorld
    changes: bool
    """Mode or interval differ from what ran."""
    reason: str


def propose(measured: Measurement, running: RunningWorld, settings: SwitchSettings) -> Proposal:
    """Return the way that runs next.

    Raises:
        ValueError: a measurement is not possible.
    """
    _check(measured)
    if measured.members == 1:
        after = RunningWorld() if settings.shortest == 1 else dataclasses.replace(running, votes=0)
        return _settled(running, after, "one replica has nobody to agree with")
    share = measured.sync_seconds / measured.step_seconds
    per_step = share / running.interval
    costs = f"agreement costs {per_step:.1%} of a step of {measured.step_seconds:.3g} s"
    shorter = _interval(share, settings.tolerated * settings.returns, settings)
    wanted, border = running.interval, "within the borders"
    if per_step > settings.tolerated:
        wanted = _interval(share, settings.tolerated, settings)
        border = f"above {settings.tolerated:.1%}"
    elif shorter < running.interval:
        wanted = shorter
        border = f"and would cost at most {settings.tolerated * settings.returns:.1%}"
    if wanted == running.interval:
        limit = per_step > settings.tolerated
        said = f"{border}, but {wanted} is the longest interval" if limit else border
        return _settled(running, dataclasses.replace(running, votes=0), f"{costs}: {said}")
    return _voted(running, wanted, f"{costs}, {border}", settings)


def _interval(share: float, tolerated: float, settings: SwitchSettings) -> int:
    """Return the least power of two that brings a share within the border, or the longest."""
    if share <= tolerated:
        return settings.shortest
    exact = max(_SHORTEST, math.ceil(share / tolerated - 1e-9))
    return min(settings.longest, 1 << (exact - 1).bit_length())


def _voted(running: RunningWorld, wanted: int, costs: str, settings: SwitchSettings) -> Proposal:
    """Return the change, if measurements have spoken for it often enough."""
    votes = running.votes + 1
    to = "a sync in each step" if wanted == 1 else f"a round after each {wanted} steps"
    if votes < settings.patience:
        reason = f"{costs}: {to} would do, seen {votes} of {settings.patience} times"
        return Proposal(dataclasses.replace(running, votes=votes), changes=False, reason=reason)
    mode = Mode.SYNC if wanted == 1 else Mode.LOCAL
    return Proposal(RunningWorld(mode, wanted), changes=True, reason=f"{costs}: {to}")


def _settled(before: RunningWorld, after: RunningWorld, reason: str) -> Proposal:
    changes = (before.mode, before.interval) != (after.mode, after.interval)
    return Proposal(after, changes, reason)


def _check(measured: Measurement) -> None:
    for field, value, least in (
        ("members", measured.members, 1),
        ("step_seconds", measured.step_seconds, math.ulp(0.0)),
        ("sync_seconds", measured.sync_seconds, 0),
    ):
        if not (math.isfinite(value) and value >= least):
            expected = "a number above 0" if 0 < least < 1 else f"at least {least}"
            raise ValueError(f"{field}={value}: expected {expected}; measure it again")
