"""How often a job fails, by the tier of checkpoints that it then goes back to.

Belongs here: what is assumed before anything is known, and what is learned. Does not belong here:
what counts as a failure (`failure`), what follows for checkpoints (`interval`).
"""

from __future__ import annotations

import dataclasses
import math

from holdfast_master.decide.durations import in_words
from holdfast_master.decide.failure import PLANNED, EvidenceKind

NODE_SECONDS = 6_000 * 3600.0
"""s: of one node between failures, assumed before any is known. Meta's report on Llama 3 (2024) has
419 unexpected interruptions in 54 days of 2,048 nodes: one in 6,300 hours of a node."""
LONGEST_ASSUMED = 12 * 3600.0
"""s: a job is not assumed to fail more rarely, however small it is. To save too often costs little
where failures are rare: half a day and a save of 1 s are 0.7 % of the time."""
_WEIGHT = 0.25
"""Of the assumption, in failures seen: after one failure it counts a fifth, after five a twentieth.
Both are compared on a logarithmic scale: the assumption may be wrong by a factor of 100."""

BACK_TO_MEMORY = frozenset(
    {
        EvidenceKind.WORKER_CRASHED,
        EvidenceKind.WORKER_RAISED,
        EvidenceKind.WORKER_EXITED,
        EvidenceKind.WORKERS_MISSING,
        EvidenceKind.LEASE_EXPIRED,
    }
)
"""Failures that leave every agent, and so the memory of every node. Of the others a node or its
agent is gone, and what only its memory had with it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the job has been through."""

    memory: int = 0
    """Failures that went back to memory."""
    storage: int = 0
    """Failures that went back to storage."""
    seconds: float = 0.0
    """Of training, in which they came."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Failures in a second of training, both above 0."""

    memory: float
    """That go back to memory."""
    storage: float
    """That go back to storage."""
    reason: str
    """How they are known, to follow them in a sentence."""


def counts(cause: str) -> str:
    """Return "memory" or "storage" for what an incident of this cause goes back to, or ""."""
    kind = EvidenceKind(cause) if cause in _CAUSES else None
    if kind is None or kind in PLANNED:
        return ""
    return "memory" if kind in BACK_TO_MEMORY else "storage"


_CAUSES = frozenset(str(kind.value) for kind in EvidenceKind)


def learn(observed: Observed, *, nodes: int, given: float = 0.0) -> Rates:
    """Return the rates after what was observed.

    given: mean time between failures of the job, s, where somebody knows it; 0: nobody does. What
    part of the failures takes a node is learned either way.
    """
    number = observed.memory + observed.storage
    share = (observed.storage + 1) / (number + 2)
    mean, reason = _mean(observed, number, nodes, given)
    return Rates(memory=(1 - share) / mean, storage=share / mean, reason=f"({reason})")


def _mean(observed: Observed, number: int, nodes: int, given: float) -> tuple[float, str]:
    if given > 0:
        return given, "as given"
    assumed = min(NODE_SECONDS / max(1, nodes), LONGEST_ASSUMED)
    trained = f"in {in_words(observed.seconds)} of training"
    if not number:
        return assumed + observed.seconds, f"assumed; none was seen {trained}"
    seen = max(observed.seconds, 1.0) / number
    mean = math.exp((_WEIGHT * math.log(assumed) + number * math.log(seen)) / (_WEIGHT + number))
    plural = "" if number == 1 else "s"
    return mean, f"learned from {number} failure{plural} {trained}"
