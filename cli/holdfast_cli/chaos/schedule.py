"""Draws faults and their times from a seed. Pure: equal options give an equal schedule.

Belongs here: the option's text, the kinds of faults, the draw. Does not belong here: the injection
of a fault, and the process behind a number (`inject`).
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import itertools
import random
from collections.abc import Iterator, Mapping

from holdfast_cli.errors import BadInputError


class FaultKind(enum.Enum):
    """Kind of fault; the values are the names of the option `faults`."""

    KILL_WORKER = "kill-worker"
    """SIGKILL of one rank."""
    KILL_TWO = "kill-two"
    """SIGKILL of two ranks at once (of one, where there is only one)."""
    KILL_ZYGOTE = "kill-zygote"
    """SIGKILL of the process that an agent forks its ranks from."""
    KILL_AGENT = "kill-agent"
    """SIGKILL of one agent alone: the processes that it started must die with it."""
    KILL_NODE = "kill-node"
    """SIGKILL of one agent and everything below it."""
    PREEMPT = "preempt"
    """SIGTERM of one agent, as a kubelet sends it."""
    FREEZE_WORKER = "freeze-worker"
    """SIGSTOP of one rank, later SIGCONT."""
    FREEZE_AGENT = "freeze-agent"
    """SIGSTOP of one agent alone, later SIGCONT."""
    FREEZE_NODE = "freeze-node"
    """SIGSTOP of one agent and everything below it, later SIGCONT."""
    KILL_MASTER = "kill-master"
    """SIGKILL of the master."""
    LOSE_MASTER = "lose-master"
    """SIGKILL of the master, and its journal is gone: its successor only has the agents'
    reports."""
    FREEZE_MASTER = "freeze-master"
    """SIGSTOP of the master, later SIGCONT."""
    RESET = "reset"
    """One agent's connection is reset."""
    PARTITION = "partition"
    """Nothing passes between one agent and the master for a while."""
    PARTITION_UP = "partition-up"
    """Nothing passes from one agent to the master for a while."""
    PARTITION_DOWN = "partition-down"
    """Nothing passes from the master to one agent for a while."""
    PARTITION_HALF = "partition-half"
    """Nothing passes between one half of the agents and the master for a while."""
    PARTITION_ALL = "partition-all"
    """Nothing passes between any agent and the master for a while."""


LASTING: Mapping[FaultKind, tuple[float, float]] = {
    FaultKind.FREEZE_WORKER: (0.3, 3.0),
    FaultKind.FREEZE_AGENT: (0.5, 9.0),
    FaultKind.FREEZE_NODE: (0.5, 9.0),
    FaultKind.FREEZE_MASTER: (0.5, 9.0),
    FaultKind.PARTITION: (0.2, 9.0),
    FaultKind.PARTITION_UP: (0.2, 9.0),
    FaultKind.PARTITION_DOWN: (0.2, 9.0),
    FaultKind.PARTITION_HALF: (0.2, 9.0),
    FaultKind.PARTITION_ALL: (0.2, 6.0),
}
"""Shortest and longest duration of a fault, s: both sides of the detection time of 5 s."""

MOST = 1_000_000
"""Number of faults if the option names none: more than happen in any job."""

_DIGITS = 18
"""Most digits of a whole number in the option."""

_EXAMPLE = "for example --chaos seed=7,mtbf=10"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `--chaos`."""

    seed: int
    """Seed of every draw; the same seed gives the same schedule."""
    mtbf_s: float
    """Mean time between faults, s; gaps are exponential, as of independent failures."""
    most: int = MOST
    """Largest number of faults."""
    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    """Kinds to draw from, each as likely as the others."""
    peace: str = ""
    """Name of a finished run to compare with; empty: one is made first."""

    def text(self) -> str:
        """Return the option that gives the same faults again."""
        text = f"seed={self.seed},mtbf={self.mtbf_s:g}"
        if self.most != MOST:
            text += f",most={self.most}"
        if self.kinds != tuple(FaultKind):
            text += ",faults=" + "+".join(kind.value for kind in self.kinds)
        if self.peace:
            text += f",peace={self.peace}"
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its time, kind, target and duration."""

    number: int
    """Number, from 1."""
    gap_s: float
    """Time after the fault before it, s."""
    kind: FaultKind
    whom: float
    """Target among the present ones, as a fraction from 0 to below 1."""
    seconds: float
    """Duration; 0: the fault does not last."""


def parse(text: str) -> Options:
    """Parse the option's text.

    Raises:
        BadInputError: A part is wrong; the text names it and the valid values.
    """
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign and name in _PARTS:
            raise BadInputError(f"--chaos {part!r} has no value: write {name}=…; {_EXAMPLE}")
        if name not in _PARTS:
            raise BadInputError(f"--chaos {part!r}: {_nearest(name, _PARTS)}; {_EXAMPLE}")
        if name in found:
            raise BadInputError(f"--chaos {name!r} is given twice; once is enough")
        found[name] = value
    for name in ("seed", "mtbf"):
        if name not in found:
            raise BadInputError(f"--chaos {text!r} has no {name}; {_EXAMPLE}")
    return Options(
        seed=_whole("seed", found["seed"], 0),
        mtbf_s=_seconds(found["mtbf"]),
        most=_whole("most", found["most"], 1) if "most" in found else MOST,
        kinds=_kinds(found["faults"]) if "faults" in found else tuple(FaultKind),
        peace=found.get("peace", ""),
    )


_PARTS = ("seed", "mtbf", "most", "faults", "peace")


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"there is no {name!r}, {hint}"


def _whole(name: str, text: str, least: int) -> int:
    # The length first: Python refuses to make a number of more than 4,300 digits.
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < least:
        shown = text if len(text) <= 2 * _DIGITS else f"{text[:_DIGITS]}…"
        range_ = f"from {least}, of at most {_DIGITS} digits"
        raise BadInputError(f"--chaos {name}={shown!r}: use a whole number {range_}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise BadInputError(f"--chaos mtbf={text!r}: use seconds from 0.1 to 86400")
    return seconds


def _kinds(text: str) -> tuple[FaultKind, ...]:
    known = tuple(kind.value for kind in FaultKind)
    names = text.split("+")
    for name in names:
        if name not in known:
            raise BadInputError(f"--chaos faults={text!r}: {_nearest(name, known)}")
    return tuple(kind for kind in FaultKind if kind.value in names)


def schedule(options: Options) -> Iterator[Fault]:
    """Yield the faults in order."""
    luck = random.Random(options.seed)  # noqa: S311 - a schedule, not a secret
    for number in itertools.count(1):
        if number > options.most:
            return
        gap = luck.expovariate(1.0 / options.mtbf_s)
        kind = luck.choice(options.kinds)
        whom = luck.random()
        low, high = LASTING.get(kind, (0.0, 0.0))
        yield Fault(number, gap, kind, whom, luck.uniform(low, high))
