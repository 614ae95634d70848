"""Draws from a seed the moment of a job at which a master is killed. Pure.

Belongs here: the scenes, the draw. Does not belong here: how a scene is played.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Iterator, Mapping


class Scene(enum.Enum):
    """The activity of the job during which the master is killed."""

    QUIET = "training"
    """Nothing but training."""
    RESTART = "restart"
    """A restart of all ranks was asked for: its answer, its round, its first steps."""
    WORKER = "worker killed"
    """A rank was killed: the report, the decision, the round that is formed."""
    SCALE = "scale"
    """A change of size was asked for: the barrier, the save, the new world."""
    DRAIN = "drain"
    """A node was asked to leave at a barrier; it is fetched back afterwards."""
    TWICE = "successor killed"
    """The successor is killed too, while agents come back to it."""


WEIGHTS: Mapping[Scene, int] = {
    Scene.QUIET: 5,
    Scene.RESTART: 6,
    Scene.WORKER: 5,
    Scene.SCALE: 4,
    Scene.DRAIN: 1,
    Scene.TWICE: 3,
}
SPANS: Mapping[Scene, float] = {
    Scene.QUIET: 1.0,
    Scene.RESTART: 0.8,
    Scene.WORKER: 0.8,
    Scene.SCALE: 3.0,
    Scene.DRAIN: 2.0,
    Scene.TWICE: 1.5,
}
"""The kill falls at most this long after the scene's beginning, s: half of them in its first
eighth, where messages cross, the rest anywhere."""


@dataclasses.dataclass(frozen=True, slots=True)
class Instant:
    """One kill."""

    number: int
    """Counts from 0."""
    scene: Scene
    journal: bool
    """False: the journal is removed before the successor starts."""
    delay_s: float
    """From the scene's beginning to the kill, s."""
    whom: float
    """From 0 to below 1: which rank or node."""


def draw(seed: int, most: int) -> Iterator[Instant]:
    """Yield `most` instants; every second instant keeps the journal, the others remove it."""
    luck = random.Random(seed)
    scenes, weights = list(WEIGHTS), list(WEIGHTS.values())
    for number in range(most):
        scene = luck.choices(scenes, weights)[0]
        span = SPANS[scene] * (0.125 if luck.random() < 0.5 else 1.0)
        yield Instant(number, scene, number % 2 == 0, luck.uniform(0.0, span), luck.random())
