"""Failure rate of a job, by the tier of checkpoints that it then restores from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from holdfast_master.policies.failure import PLANNED, EvidenceKind
from holdfast_master.policies.quantities import counted, in_words
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import TIERS

NODE_SECONDS = 6_000 * 3600.0
"""s: of one node between failures, assumed before any is known. Meta's report on Llama 3 (2024) has
419 unexpected interruptions in 54 days of 2,048 nodes: one in 6,300 hours of a node."""
LONGEST_ASSUMED = 12 * 3600.0
"""s: a job is not assumed to fail more rarely, however small it is. To save too often costs little
where failures are rare: half a day and a save of 1 s are 0.7 % of the time."""
_WEIGHT = 0.25
"""Of the assumption, in failures seen: after one failure it counts a fifth, after five a twentieth.
Both are compared on a logarithmic scale: the assumption may be wrong by a factor of 100."""

_LEAVE_AGENTS = frozenset(
    {
        EvidenceKind.WORKER_CRASHED,
        EvidenceKind.OUT_OF_MEMORY,
        EvidenceKind.WORKER_RAISED,
        EvidenceKind.WORKER_EXITED,
        EvidenceKind.WORKERS_MISSING,
        EvidenceKind.LEASE_EXPIRED,
        EvidenceKind.STORE_LOST,
        EvidenceKind.HUNG,
    }
)
"""Failures that leave every agent, and so the memory of every node. Of the others a node or its
agent is gone, and what only its memory had with it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierFailureRates:
    """The effect of failures on a tier."""

    survives: frozenset[EvidenceKind]
    """Failures that leave what the tier has."""
    failure: str
    """Name of a failure that no nearer tier survives, to follow in a sentence."""


BY_TIER: Mapping[Tier, TierFailureRates] = {
    Tier.MEMORY: TierFailureRates(survives=_LEAVE_AGENTS, failure="a process fails"),
    Tier.STORAGE: TierFailureRates(survives=frozenset(EvidenceKind), failure="a node is lost"),
}
"""The effect of failures on each tier. The farthest survives all: its versions are durable."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The failures of a job in its training time so far."""

    failures: Mapping[Tier, int] = dataclasses.field(default_factory=dict)
    """By the tier that they went back to; one that is not named: none."""
    seconds: float = 0.0
    """Of training, in which they came."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Failures in a second of training."""

    by_tier: Mapping[Tier, float]
    """By the tier that they go back to, each above 0."""
    reason: str
    """How they are known, to follow them in a sentence."""


def counts(cause: str) -> Tier | None:
    """The tier that an incident of this cause goes back to; None: it is no failure."""
    kind = EvidenceKind(cause) if cause in _CAUSES else None
    if kind is None or kind in PLANNED:
        return None
    return next(tier for tier in TIERS if kind in BY_TIER[tier].survives)


_CAUSES = frozenset(str(kind.value) for kind in EvidenceKind)


def learn(observed: Observed, *, nodes: int, given: float = 0.0) -> Rates:
    """The failure rates that follow from the observed failures.

    given: the job's mean time between failures, s, where somebody knows it; 0: nobody does. The
    share of the failures that go back to each tier is learned either way.
    """
    number = sum(observed.failures.values())
    nearest, *others = TIERS
    shares = {tier: (observed.failures.get(tier, 0) + 1) / (number + len(TIERS)) for tier in others}
    shares[nearest] = 1 - sum(shares.values())
    mean, reason = _mean(observed, number, nodes, given)
    by_tier = {tier: share / mean for tier, share in shares.items()}
    return Rates(by_tier=by_tier, reason=f"({reason})")


def _mean(observed: Observed, number: int, nodes: int, given: float) -> tuple[float, str]:
    if given > 0:
        return given, "as given"
    assumed = min(NODE_SECONDS / max(1, nodes), LONGEST_ASSUMED)
    trained = f"in {in_words(observed.seconds)} of training"
    if not number:
        return assumed + observed.seconds, f"assumed; none has been charged yet {trained}"
    seen = max(observed.seconds, 1.0) / number
    mean = math.exp((_WEIGHT * math.log(assumed) + number * math.log(seen)) / (_WEIGHT + number))
    return mean, f"learned from {counted(number, 'failure')} {trained}"
