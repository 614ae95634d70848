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


SCENES: Mapping[Scene, tuple[int, float]] = {
    Scene.QUIET: (5, 1.0),
    Scene.RESTART: (6, 0.8),
    Scene.WORKER: (5, 0.8),
    Scene.SCALE: (4, 3.0),
    Scene.DRAIN: (1, 2.0),
    Scene.TWICE: (3, 1.5),
}
"""How often each is drawn, and the longest time from its beginning to the kill, s: half of the
kills fall in its first eighth, where messages cross, the rest anywhere."""


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
    scenes, weights = list(SCENES), [weight for weight, _ in SCENES.values()]
    for number in range(most):
        scene = luck.choices(scenes, weights)[0]
        span = SCENES[scene][1] * (0.125 if luck.random() < 0.5 else 1.0)
        yield Instant(number, scene, number % 2 == 0, luck.uniform(0.0, span), luck.random())
