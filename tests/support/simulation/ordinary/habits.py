"""An ordinary job, drawn from a seed: what its script does between steps, and a fault of its own.

Belongs here: the values and their drawing. Does not belong here: what they do to a run
(`training`).

A script saves, evaluates, begins epochs with a slow batch, waits for storage that all share, and
gives rank 0 more to do. None of that is a fault, and no node is to leave for it.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Iterator
from typing import NamedTuple

from holdfast_master.policies.hang_response import HangKind

EVERYBODY = -1
"""In place of a group rank."""


class Pause(enum.Enum):
    """Work of a script between two steps."""

    SAVE = "save"
    """Bytes are written all the time."""
    EVALUATION = "evaluation"
    BATCH = "batch"
    """The data loader's first batch of an epoch."""
    STORAGE = "storage"
    """All read, and the storage that they share is slow."""


class Work(NamedTuple):
    """One pause of one rank, or of all."""

    who: int
    """Group rank of the node whose first rank it is, or `EVERYBODY`."""
    what: Pause
    seconds: float


class Every(NamedTuple):
    """A habit: after each so many steps, for so long."""

    steps: int
    """0: never."""
    seconds: float
    who: int = EVERYBODY


class Trouble(enum.Enum):
    """A real fault, from a time on."""

    NONE = "none"
    HANG = "hang of a rank"
    SLOW = "slow node"
    STORAGE = "dead storage of a node"


NEVER = Every(0, 0.0)
HANGS = (
    HangKind.ABSENT,
    HangKind.LOCK,
    HangKind.NATIVE_GIL,
    HangKind.STOPPED,
    HangKind.PYTHON_LOOP,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """A job and its script."""

    seed: int
    nodes: int
    least: int
    standbys: int
    local: int
    """Ranks of a node."""
    sdk: bool
    """It reports steps, and stops at one when it is asked to."""
    sections: bool
    """It says when it evaluates and saves."""
    saves_at_stop: bool
    checkpointer: bool
    """It saves by the SDK's Checkpointer."""
    restores: bool
    """It goes on from its newest save; else it begins anew."""
    step: float
    """s."""
    steps: int
    """Of the whole job."""
    start: float
    """From the start of the processes to their first batch, s."""
    spread: float
    """Share by which ranks differ by design."""
    noise: float
    save: Every
    evaluation: Every
    epoch: Every
    loader_works: bool
    """The data loader's workers decode; else they wait for what nobody sees."""
    stall: Every
    """Of the storage that all share."""
    duty: float
    """Share of a step that rank 0 does alone."""
    duty_from: int
    """First step with it."""
    trouble: Trouble = Trouble.NONE
    trouble_at: float = 0.0
    """s after the start."""
    victim: int = 0
    """Node rank."""
    slow: float = 0.0
    """Share of a step that a slow node needs more."""
    hang: HangKind = HangKind.LOCK

    def pauses(self, step: int) -> Iterator[Work]:
        """Yield what is done before a step, in order."""
        done = step - 1
        for what, habit in (
            (Pause.SAVE, self.save),
            (Pause.EVALUATION, self.evaluation),
            (Pause.BATCH, self.epoch),
            (Pause.STORAGE, self.stall),
        ):
            if habit.steps and done and done % habit.steps == 0:
                yield Work(habit.who, what, habit.seconds * self._about(step, what.value))

    def _about(self, step: int, what: str) -> float:
        return random.Random(f"{self.seed}/{step}/{what}").uniform(0.7, 1.4)


def draw(seed: int, *, troubled: bool = False) -> Habits:
    """Return the job of a seed: without a fault, or with one."""
    luck = random.Random(f"{seed}/habits")
    nodes = luck.choice((2, 3, 3, 4, 6))
    sdk = luck.random() < 0.5
    saver = luck.choice((0, 0, EVERYBODY))
    restores = luck.random() < 0.7
    step = luck.choice((1.0, 1.0, 2.0))
    steps = round(luck.uniform(700.0, 1500.0) / step)
    found = Habits(
        seed=seed,
        nodes=nodes,
        least=max(1, nodes - luck.choice((0, 1, 1, 2))),
        standbys=luck.choice((0, 0, 1)),
        local=luck.choice((1, 1, 1, 2)),
        sdk=sdk,
        sections=sdk and luck.random() < 0.6,
        saves_at_stop=sdk and restores and luck.random() < 0.8,
        checkpointer=False,
        restores=restores,
        step=step,
        steps=steps,
        start=luck.choice((2.0, 10.0, 30.0)),
        spread=luck.choice((0.0, 0.03, 0.15)),
        noise=luck.choice((0.01, 0.03, 0.05)),
        save=_habit(luck, steps, (5.0, 30.0, 90.0, 240.0), who=saver) if restores else NEVER,
        evaluation=_habit(luck, steps, (20.0, 90.0, 300.0), who=luck.choice((0, EVERYBODY))),
        epoch=_habit(luck, steps, (3.0, 30.0, 120.0)),
        loader_works=luck.random() < 0.5,
        stall=_habit(luck, steps, (20.0, 60.0, 180.0)),
        duty=luck.choice((0.0, 0.1, 0.3, 0.6)),
        duty_from=round(steps * luck.choice((0.0, 0.3, 0.5))),
    )
    found = dataclasses.replace(found, checkpointer=found.saves_at_stop and luck.random() < 0.6)
    return _troubled(found, luck) if troubled else found


def _habit(
    luck: random.Random, steps: int, seconds: tuple[float, ...], who: int = EVERYBODY
) -> Every:
    """Return a habit that a third of the scripts do not have."""
    if luck.random() < 1 / 3:
        return NEVER
    return Every(round(steps * luck.uniform(0.08, 0.3)), luck.choice(seconds), who)


def _troubled(found: Habits, luck: random.Random) -> Habits:
    return dataclasses.replace(
        found,
        trouble=luck.choice((Trouble.HANG, Trouble.SLOW, Trouble.STORAGE)),
        trouble_at=luck.uniform(0.2, 0.7) * found.steps * found.step,
        victim=luck.randrange(found.nodes),
        slow=luck.uniform(0.3, 2.0),
        hang=luck.choice(HANGS),
    )
