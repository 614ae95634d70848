"""Weights of the replicas in one round of one unit, from what the replicas report.

Belongs here: weights by norm, by steps, and both; the rollback; the factor of the clipping. Does
not belong here: the verdict of a replica on itself (`anomaly`), the sum of the deltas.

EDiT (arXiv 2412.07210): wᵢ = exp(-Gᵢ/T) / Σⱼ exp(-Gⱼ/T) over the replicas that take part. A-EDiT
may add the share of the steps: wᵢ = (1 - r)·wᵢ + r·stepsᵢ / Σⱼ stepsⱼ, of this round, not of the
whole training. Weights add up to 1, or are all 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.local_sgd.config import LocalSGDConfig

_EPSILON: Final = 1e-6
"""Keeps the factor of the clipping finite; ATorch has the same."""


@dataclass(frozen=True, slots=True)
class Report:
    """One replica's report of a unit before a round."""

    norm: float
    """G = ‖Δ‖ over its whole shard group; infinite if it is not finite."""
    anomalous: bool = False
    """Its detector's verdict on itself."""
    steps: float = 1.0
    """Its work since its last round, in steps or tokens; 0: it only takes the result. A
    delta that missed rounds counts discounted."""


@dataclass(frozen=True, slots=True)
class ReplicaWeights:
    """Weights of the replicas, in the order of the reports."""

    weights: tuple[float, ...]
    """They add up to 1, or are all 0."""
    rollback: bool
    """True: θ := A, and neither anchor nor outer optimizer changes."""
    reason: str
    """In words."""


def weigh(reports: Sequence[Report], settings: LocalSGDConfig) -> ReplicaWeights:
    """Return the weights of all replicas.

    A replica has the same weight in whatever order the replicas report, to the last bit.

    Raises:
        ValueError: a report has steps that are negative or not finite.
    """
    for at, report in enumerate(reports):
        if not (report.steps >= 0 and math.isfinite(report.steps)):
            raise ValueError(
                f"reports[{at}].steps={report.steps}: expected a finite number, at least 0; count "
                "the steps since the last round"
            )
    fit = [_is_fit(report) for report in reports]
    taking_part = [one and report.steps > 0 for one, report in zip(fit, reports, strict=True)]
    if not any(taking_part):
        return ReplicaWeights((0.0,) * len(reports), rollback=True, reason=_why_none(fit))
    weights = _weights(reports, taking_part, settings)
    return ReplicaWeights(weights, rollback=False, reason=_reason(fit, taking_part, settings))


def clip_factor(norm: float, threshold: float) -> float:
    """Return the factor, at most 1, that brings a vector of this norm to the threshold φ.

    Raises:
        ValueError: the norm is not finite; an anomaly got past its detector.
    """
    if not math.isfinite(norm):
        raise ValueError(
            f"norm={norm} of a merged delta: no factor makes it finite; leave out what is not "
            "finite before it is merged"
        )
    return min(1.0, threshold / (norm + _EPSILON))


def _is_fit(report: Report) -> bool:
    return not report.anomalous and math.isfinite(report.norm)


def _weights(
    reports: Sequence[Report], taking_part: Sequence[bool], settings: LocalSGDConfig
) -> tuple[float, ...]:
    norms = [one.norm if part else math.inf for one, part in zip(reports, taking_part, strict=True)]
    steps = [one.steps if part else 0.0 for one, part in zip(reports, taking_part, strict=True)]
    if settings.temperature is None:
        return _shares(steps if settings.use_step_weight else [float(one) for one in taking_part])
    by_norm = softmax_of_norms(norms, settings.temperature)
    if not settings.use_step_weight:
        return by_norm
    ratio = settings.step_weight_ratio
    return tuple(
        (1 - ratio) * norm + ratio * share
        for norm, share in zip(by_norm, _shares(steps), strict=True)
    )


def softmax_of_norms(norms: Sequence[float], temperature: float) -> tuple[float, ...]:
    """Return softmax(-norm / T); an infinite norm weighs nothing, one at least is finite.

    The least norm is subtracted before the division: so norms of any size neither overflow nor
    vanish together.
    """
    least = min(norms)
    return _shares([math.exp(-(norm - least) / temperature) for norm in norms])


def _shares(values: Sequence[float]) -> tuple[float, ...]:
    """Return each value's share of the sum, which is exact and so knows no order."""
    greatest = max(values)
    scaled = [value / greatest for value in values]  # a sum of huge values would overflow
    total = math.fsum(scaled)
    return tuple(value / total for value in scaled)


def _why_none(fit: Sequence[bool]) -> str:
    if not fit:
        return "no replica has reported"
    if not any(fit):
        return f"all {len(fit)} replicas are anomalous: back to the anchors"
    return "no replica that is not anomalous has made a step"


def _reason(fit: Sequence[bool], taking_part: Sequence[bool], settings: LocalSGDConfig) -> str:
    by = [
        *(["norms"] if settings.pseudo_gradnorm_reduce else []),
        *(["steps"] if settings.use_step_weight else []),
    ]
    rule = f"weights by {' and '.join(by)}" if by else "equal weights"
    left_out = len(fit) - sum(taking_part)
    if not left_out:
        return f"all {len(fit)} replicas, {rule}"
    anomalous = [at for at, one in enumerate(fit) if not one]
    idle = [at for at, one in enumerate(fit) if one and not taking_part[at]]
    said = [
        *([f"anomalous: {_named(anomalous)}"] if anomalous else []),
        *([f"without a step: {_named(idle)}"] if idle else []),
    ]
    return f"{sum(taking_part)} of {len(fit)} replicas, {rule}; {', '.join(said)}"


def _named(replicas: Sequence[int]) -> str:
    shown = ", ".join(str(one) for one in replicas[:8])
    return f"{shown} and {len(replicas) - 8} more" if len(replicas) > 8 else shown
