"""History of the hosts of a job: what spoke against each, in this job and in others.

Belongs here: the failures that are strikes, the standing that follows from strikes, the nodes that
are checked again for them. Does not belong here: their weights and decay (`holdfast_wire.strikes`),
who is excluded (`nodes.rule_actions`; the operator keeps the number), a clock.

One strike never makes a host suspect: a crash of the script looks like one of the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.messages import NodeStruck
from holdfast_wire.strikes import (
    NODE_SOURCE,
    SOURCE_MOST,
    SUSPECT_FROM,
    WEIGHTS,
    StrikeCause,
    points_left,
)

KEPT: Final = 512
"""Newest strikes that a job keeps."""
_NAMED_JOBS: Final = 3
"""Other jobs that a reason names."""
_OF_NODE: Final = frozenset({StrikeCause.STRAGGLER, StrikeCause.HANG})
"""Causes that say something of one node, not of its script."""
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
class HostStanding:
    """The points against a host now."""

    points: float
    suspect: bool
    reason: str


def is_strike(kind: EvidenceKind) -> bool:
    """Return True if a failure of this kind speaks against its host."""
    return kind in _HARDWARE


def judge(strikes: Iterable[NodeStruck], now: float) -> dict[str, HostStanding]:
    """Return the standing of each host with strikes; their order does not matter.

    Args:
        strikes: All that are kept; causes of a newer release do not count.
        now: Unix time, s. A strike from a clock that was ahead counts as new.
    """
    by_host = dict[str, list[NodeStruck]]()
    known = (one for one in strikes if one.cause in WEIGHTS)
    for one in sorted(known, key=lambda one: (one.host, one.unix_time, one.cause, one.job)):
        by_host.setdefault(one.host, []).append(one)
    return {host: _standing(own, now) for host, own in by_host.items()}


def _standing(own: list[NodeStruck], now: float) -> HostStanding:
    by_job: dict[str, float] = {}
    for one in own:
        by_job[one.job] = by_job.get(one.job, 0.0) + points_left(one.cause, one.unix_time, now)
    points = sum(left if not job else min(left, SOURCE_MOST) for job, left in by_job.items())
    counts = {cause: sum(one.cause == cause for one in own) for cause in StrikeCause}
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


def why_again(
    rank: int, judged_at: float, strikes: Iterable[NodeStruck], standing: HostStanding | None
) -> str:
    """Return why a checked node is to be checked again before the next world; empty: it is not.

    A straggler or a hang that was laid to the node itself is enough: a check costs seconds, and
    shows whether the hardware is slow. A crash is not, as scripts crash, unless it makes the host
    suspect.

    Args:
        rank: The node's rank.
        judged_at: Unix time of its last verdict, s; what came before is in that.
        strikes: Against its host, in any order.
        standing: Of its host; None: nothing counts against it.
    """
    later = [one for one in strikes if one.unix_time > judged_at]
    own = [one for one in later if one.node_rank == rank and one.cause in _OF_NODE]
    if own:
        newest = max(own, key=lambda one: (one.unix_time, one.cause))
        return f"{newest.cause.lower()} since its last check"
    if later and standing is not None and standing.suspect:
        return f"its host is suspect ({standing.reason})"
    return ""
