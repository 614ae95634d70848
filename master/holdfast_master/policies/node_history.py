"""History of the hosts of a job: what spoke against each, in this job and in others.

Belongs here: the failures that are strikes, the standing that follows from strikes. Does not belong
here: their weights and decay (`holdfast_wire.strikes`), who is excluded (`nodes.rule_actions`; the
operator keeps the number), a clock.

One strike never makes a host suspect: a crash of the script looks like one of the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.strikes import NODE_SOURCE, StrikeCause, points_left

SUSPECT_FROM: Final = 1.5
"""Points from which a host is suspect."""
OTHER_MOST: Final = 1.0
"""Points that the strikes of one other job count at the most: its script may crash anywhere."""
KEPT: Final = 512
"""Newest strikes that a job keeps."""
_NAMED_JOBS: Final = 3
"""Other jobs that a reason names."""


_HARDWARE: Final = frozenset(
    {
        EvidenceKind.WORKER_CRASHED,
        EvidenceKind.AGENT_SILENT,
        EvidenceKind.AGENT_FAILED,
        EvidenceKind.LEASE_EXPIRED,
    }
)
"""Failures that hardware can cause."""


@dataclasses.dataclass(frozen=True, slots=True)
class Strike:
    """One thing that spoke against a host."""

    host: str
    cause: StrikeCause
    at: float
    """Unix time, s."""
    job: str = ""
    """The other job that it comes from; empty: this one."""
    node_rank: int = -1
    """Rank in this job of the node that it came from; -1: of none, or not of interest."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostStanding:
    """What counts against a host now."""

    points: float
    suspect: bool
    reason: str


def is_strike(kind: EvidenceKind) -> bool:
    """Tell whether a failure of this kind speaks against its host."""
    return kind in _HARDWARE


def judge(strikes: Iterable[Strike], now: float) -> dict[str, HostStanding]:
    """Return the standing of each host with strikes; their order does not matter.

    Args:
        strikes: All that are kept.
        now: Unix time, s. A strike from a clock that was ahead counts as new.
    """
    by_host = dict[str, list[Strike]]()
    for one in sorted(strikes, key=lambda one: (one.host, one.at, one.cause, one.job)):
        by_host.setdefault(one.host, []).append(one)
    return {host: _standing(own, now) for host, own in by_host.items()}


def _standing(own: list[Strike], now: float) -> HostStanding:
    by_job: dict[str, float] = {}
    for one in own:
        by_job[one.job] = by_job.get(one.job, 0.0) + points_left(one.cause, one.at, now)
    points = sum(left if not job else min(left, OTHER_MOST) for job, left in by_job.items())
    counts = {cause: sum(one.cause is cause for one in own) for cause in StrikeCause}
    named = ", ".join(f"{cause.value} {count}" for cause, count in counts.items() if count)
    jobs = sorted({_source(one.job) for one in own if one.job})
    others = f" ({sum(bool(one.job) for one in own)} of {_listed(jobs)})" if jobs else ""
    suspect = len(own) > 1 and points >= SUSPECT_FROM
    return HostStanding(
        points, suspect, f"{points:.2f} points of {SUSPECT_FROM:g}: {named}{others}"
    )


def _source(job: str) -> str:
    return "the node itself" if job == NODE_SOURCE else job


def _listed(jobs: list[str]) -> str:
    more = len(jobs) - _NAMED_JOBS
    return ", ".join(jobs[:_NAMED_JOBS]) + (f" and {more} more" if more > 0 else "")
