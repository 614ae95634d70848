"""EDiT on plain Python floats, all replicas in one process: what the engine is compared with.

It shares no code with the product. Replica i minimises ½‖θ - tᵢ‖² by gradient descent; a unit is a
list of floats.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Vector = list[float]


@dataclass
class Detector:
    """Mean and deviation of a replica's norms, by exponential averages."""

    alpha: float
    threshold: float
    warmup: int
    mean: float = 0.0
    variance: float = 0.0
    count: int = 0

    def flags(self, norm: float) -> bool:
        """Tell if a norm stands out; learn it if it does not."""
        if not math.isfinite(norm):
            return True
        if norm == 0:
            return False
        if self.count >= self.warmup:
            score = (norm - self.mean) / math.sqrt(self.variance)
            if score > self.threshold:
                return True
        step = norm - self.mean
        self.mean += self.alpha * step
        self.variance = (1 - self.alpha) * (self.variance + self.alpha * step * (norm - self.mean))
        self.count += 1
        return False


def start(sizes: list[int]) -> list[Vector]:
    """Return the first weights of all units."""
    draw = random.Random(7)
    return [[draw.uniform(-1, 1) for _ in range(size)] for size in sizes]


def targets(replica: int, sizes: list[int]) -> list[Vector]:
    """Return what a replica's weights are drawn to."""
    draw = random.Random(100 + replica)
    return [[draw.uniform(-1, 1) for _ in range(size)] for size in sizes]


class ScalarEdit:
    """The units of all replicas."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        """Take the settings of a world of `replica_world`."""
        self.world = world
        sizes = world["sizes"]
        self.replicas = range(world["replicas"])
        self.weights = [start(sizes) for _ in self.replicas]
        self.anchors, self.momentum = start(sizes), [[0.0] * size for size in sizes]
        self.excluded: list[list[tuple[int, int]]] = []
        """By round: (replica, unit) that were anomalous."""
        given = (world["alpha"], world["threshold"], world["warmup"])
        self.detectors = [[Detector(*given) for _ in sizes] for _ in self.replicas]

    def run(self) -> ScalarEdit:
        """Make all rounds; return itself."""
        for number in range(self.world["rounds"]):
            for replica in self.replicas:
                self._train(replica, number)
            self.excluded.append([])
            means = [self._agreed(unit) for unit in range(len(self.anchors))]
            for unit, mean in enumerate(means):
                if mean is not None:
                    factor = self._factor(mean, means)
                    self._step(self.anchors[unit], self.momentum[unit], [factor * x for x in mean])
                for replica in self.replicas:
                    self.weights[replica][unit] = list(self.anchors[unit])
        return self

    def _train(self, replica: int, number: int) -> None:
        rate, fault = self.world["lr"], self.world.get("fault", {})
        drawn = targets(replica, self.world["sizes"])
        for _ in range(self.world["steps"]):
            for unit, weights in enumerate(self.weights[replica]):
                for at, weight in enumerate(weights):
                    weights[at] = weight - rate * (weight - drawn[unit][at])
        if (fault.get("replica"), fault.get("round")) == (replica, number):
            struck = self.weights[replica][fault["unit"]]
            struck[0] = struck[0] + 50.0 if fault["kind"] == "spike" else float(fault["kind"])

    def _agreed(self, unit: int) -> Vector | None:
        """Return the mean delta of a unit; None: all replicas are anomalous."""
        deltas = [
            [a - w for a, w in zip(self.anchors[unit], self.weights[one][unit], strict=True)]
            for one in self.replicas
        ]
        norms = [_norm(delta) for delta in deltas]
        flagged = [self.detectors[one][unit].flags(norms[one]) for one in self.replicas]
        self.excluded[-1] += [(one, unit) for one in self.replicas if flagged[one]]
        return None if all(flagged) else self._mean(deltas, self._shares(norms, flagged))

    def _factor(self, mean: Vector, means: list[Vector | None]) -> float:
        """Return the clipping's factor, by the norm of a unit or of all."""
        if not self.world["clip"]:
            return 1.0
        size = _norm(mean)
        if self.world.get("clip_scope") == "batch":
            size = _norm([value for one in means if one is not None for value in one])
        return float(min(1.0, self.world["clip"] / (size + 1e-6)))

    def _shares(self, norms: Vector, flagged: list[bool]) -> Vector:
        if self.world["temperature"] is None:
            raw = [0.0 if bad else 1.0 for bad in flagged]
        else:
            least = min(norm for norm, bad in zip(norms, flagged, strict=True) if not bad)
            raw = [
                0.0 if bad else math.exp((least - norm) / self.world["temperature"])
                for norm, bad in zip(norms, flagged, strict=True)
            ]
        return [one / sum(raw) for one in raw]

    def _mean(self, deltas: list[Vector], shares: Vector) -> Vector:
        taken = [one for one in self.replicas if shares[one] > 0]
        return [sum(shares[one] * deltas[one][at] for one in taken) for at in range(len(deltas[0]))]

    def _step(self, anchor: Vector, momentum: Vector, mean: Vector) -> None:
        outer = self.world["outer"]
        if outer is None:
            outer = {"lr": 1.0, "momentum": 0.0}
        for at, delta in enumerate(mean):
            momentum[at] = outer["momentum"] * momentum[at] + delta
            forward = delta + outer["momentum"] * momentum[at]
            along = forward if outer.get("nesterov") else momentum[at]
            anchor[at] -= outer["lr"] * along


def gta(deltas: list[Vector], weights: Vector, consensus: str | None, *, normalize: bool) -> Vector:
    """Return GTA's merged vector by the formula, element by element."""
    merged = []
    for values in zip(*deltas, strict=True):
        terms = [weight * value for weight, value in zip(weights, values, strict=True)]
        votes = terms if consensus == "sum" else [_sign(term) for term in terms]
        elected = 1 if sum(votes) >= 0 else -1
        agrees = [consensus is None or _sign(term) == elected for term in terms]
        total = sum(term for term, yes in zip(terms, agrees, strict=True) if yes)
        divisor = sum(weight for weight, yes in zip(weights, agrees, strict=True) if yes)
        merged.append(total / (divisor if divisor >= 1e-8 else 1.0) if normalize else total)
    return merged


def _norm(values: Vector) -> float:
    return math.sqrt(sum(value * value for value in values))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
