"""Detector of anomalous pseudo-gradients: a norm far above the norms that came before it.

Belongs here: the moving mean and variance of one replica's norms of one unit, and the verdict on
the next norm. Does not belong here: what becomes of an anomalous replica (`weights`).

EDiT (arXiv 2412.07210): z = (G - μ) / σ, and z > δ is an anomaly. It is one-sided: a small norm is
none. A norm that is an anomaly, or not finite, or exactly 0, is not learned. The norm is 0 before a
replica has left its anchor, and in a unit whose weights are frozen.

Without correction of the bias, d = x - μ; μ ← μ + αd; s ← (1 - α)(s + αd(x - μ)), with the new μ;
σ = √s; both start at 0. With it α of norm n is α / (1 - (1 - α)ⁿ), which makes μ the weighted mean
of the norms so far, and σ² is divided by 1 - Σw², the correction for few of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

from holdfast.local_sgd.config import LocalSGDConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Ewma:
    """Norms of one replica and unit so far; a new one has learned nothing and is in warm-up."""

    mean: float = 0.0
    """μ."""
    variance: float = 0.0
    """s, without the correction for few norms."""
    count: int = 0
    """Norms that were learned."""
    z_mean: float = 0.0
    """Moving mean of the z-scores after the warm-up."""
    z_variance: float = 0.0
    """Moving variance of them."""
    z_count: int = 0
    """Number of them."""
    streak: int = 0
    """Anomalies in a row, up to now."""

    def state(self) -> list[float]:
        """Return the fields as numbers, for a checkpoint or another rank."""
        return [float(value) for value in dataclasses.astuple(self)]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the detector of a `state`; a shorter list of older fields is taken too."""
        mean, variance, count, *rest = (*values, *(0.0,) * (7 - len(values)))
        z_mean, z_variance, z_count, streak = rest
        return cls(mean, variance, int(count), z_mean, z_variance, int(z_count), int(streak))


def judge(ewma: Ewma, norm: float, settings: LocalSGDConfig) -> tuple[bool, Ewma]:
    """Return True if a norm is an anomaly, and the detector for the next one.

    Args:
        ewma: The detector before this norm.
        norm: ‖Δ‖ of the unit over the whole shard group.
        settings: α, warm-up, δ and the rest.

    Raises:
        ValueError: the norm is negative.
    """
    if norm < 0:
        raise ValueError(f"norm={norm}: a norm is not negative; give ‖Δ‖, not a sum of deltas")
    if not math.isfinite(norm):
        return True, ewma
    if norm == 0:
        return False, ewma
    if ewma.count < settings.ewma_warmup_steps:
        return False, _learned(ewma, norm, settings)
    score = z_score(ewma, norm, settings)
    if score <= threshold(ewma, settings):
        return False, _scored(_learned(ewma, norm, settings), score, settings)
    if 0 < settings.ewma_restart_after <= ewma.streak + 1:
        return True, _learned(Ewma(), norm, settings)
    return True, dataclasses.replace(ewma, streak=ewma.streak + 1)


def z_score(ewma: Ewma, norm: float, settings: LocalSGDConfig) -> float:
    """Return by how many standard deviations a norm is above the mean."""
    sigma = max(deviation(ewma, settings), settings.ewma_floor * ewma.mean)
    difference = norm - ewma.mean
    if sigma == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / sigma


def deviation(ewma: Ewma, settings: LocalSGDConfig) -> float:
    """Return σ."""
    if not settings.ewma_bias_correction:
        return math.sqrt(ewma.variance)
    if ewma.count < 2:
        return 0.0
    alpha, kept = settings.ewma_alpha, (1 - settings.ewma_alpha) ** ewma.count
    # The weights α(1 - α)ᵏ / (1 - (1 - α)ⁿ), squared and added up.
    squares = alpha / (2 - alpha) * (1 + kept) / (1 - kept)
    return math.sqrt(ewma.variance / (1 - squares))


def threshold(ewma: Ewma, settings: LocalSGDConfig) -> float:
    """Return δ·f: f is the standard deviation of past z-scores, at least 1."""
    if not settings.ewma_spread_factor or ewma.z_count < 2:
        return settings.ewma_threshold
    return settings.ewma_threshold * max(1.0, math.sqrt(ewma.z_variance))


def _learned(ewma: Ewma, norm: float, settings: LocalSGDConfig) -> Ewma:
    """Return the detector that has seen one more norm."""
    count = ewma.count + 1
    alpha = settings.ewma_alpha
    if settings.ewma_bias_correction:
        weight = alpha / (1 - (1 - alpha) ** count)
        mean, variance = _moved(ewma.mean, ewma.variance, norm, weight)
    else:
        difference = norm - ewma.mean
        mean = ewma.mean + alpha * difference
        variance = (1 - alpha) * (ewma.variance + alpha * difference * (norm - mean))
    return dataclasses.replace(ewma, mean=mean, variance=variance, count=count, streak=0)


def _scored(ewma: Ewma, score: float, settings: LocalSGDConfig) -> Ewma:
    """Return the detector that has seen one more z-score, of a window of about the warm-up."""
    count = ewma.z_count + 1
    # Of a plain mean while it is shorter than the window, then of a moving one.
    weight = max(1 / count, 2 / (settings.ewma_warmup_steps + 1))
    mean, variance = _moved(ewma.z_mean, ewma.z_variance, score, weight)
    return dataclasses.replace(ewma, z_mean=mean, z_variance=variance, z_count=count)


def _moved(mean: float, variance: float, value: float, weight: float) -> tuple[float, float]:
    """Return mean and variance after a value of this weight; with weight 1 it is the only one."""
    difference = value - mean
    return mean + weight * difference, (1 - weight) * (variance + weight * difference * difference)
