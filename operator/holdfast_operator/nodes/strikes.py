"""Strikes against Kubernetes nodes, of all jobs, and the nodes that new pods avoid for them. Pure.

Does not belong here: requests (`history`), a cause's weight (`holdfast_wire.strikes`), the standing
of a host in a job, and nodes that one job excludes by itself (the master's).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_wire.messages import NodeStruck
from holdfast_wire.strikes import (
    HALF_LIFE_SECONDS,
    NODE_SOURCE,
    SOURCE_MOST,
    SUSPECT_FROM,
    WEIGHTS,
    StrikeCause,
    points_left,
)

KEPT: Final = 500
"""Newest strikes that are kept."""
GONE_BELOW: Final = 0.02
"""Points from which on a strike is forgotten: a strike of one point after a day and a half."""
AHEAD_SECONDS: Final = HALF_LIFE_SECONDS
"""A strike from farther in the future is not believed: it would outlive all others."""
MOST_BYTES: Final = 256 * 1024
"""Size of the text in the ConfigMap: a quarter of what Kubernetes takes. 500 strikes with the usual
names and texts have 151 KiB."""
FORMAT: Final = "1"
_LONGEST_TEXT: Final = 160
"""Characters of a strike's text that are kept; its job's own journal has more."""
_FORMAT_KEY: Final = "format"
_STRIKES_KEY: Final = "strikes"
_OF_SCRIPTS: Final = frozenset({StrikeCause.HANG, StrikeCause.FAILURE})
"""Causes that are a script's own fault more often than its node's."""
_NAMED: Final = 3
"""Sources that a reason names."""


class DamagedHistoryError(ValueError):
    """A ConfigMap does not hold a history that this release can read; the text has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeStrike(NodeStruck):
    """One thing that spoke against a Kubernetes node, with the uid of the job that saw it."""

    job_uid: str
    """The next job of the name is another one; NODE_SOURCE: the node itself shows it."""

    @property
    def identity(self) -> tuple[str, float, str, str, str]:
        """The part that is equal when it is reported again."""
        return (self.host, self.unix_time, self.cause, self.job_uid, self.text)

    def as_message(self) -> NodeStruck:
        """Return it for the master of another job."""
        names = (field.name for field in dataclasses.fields(NodeStruck))
        return NodeStruck(**{name: getattr(self, name) for name in names})


def of_node(host: str, cause: StrikeCause, at: float, text: str) -> NodeStrike:
    """Return a strike that the Kubernetes node itself shows; `at`: Unix time, s."""
    return NodeStrike(
        host=host,
        cause=cause.value,
        unix_time=round(at, 3),
        job=NODE_SOURCE,
        job_uid=NODE_SOURCE,
        text=text,
    )


def of_job(reported: Iterable[NodeStruck], job: str, uid: str) -> Iterator[NodeStrike]:
    """Yield the strikes that a job's master reports; causes of a newer release are left out.

    `job`: its namespace and name.
    """
    for one in reported:
        if one.cause in WEIGHTS and one.host:
            yield NodeStrike(
                host=one.host,
                node_rank=one.node_rank,
                cause=one.cause,
                text=one.text[:_LONGEST_TEXT],
                unix_time=round(one.unix_time, 3),
                job=job,
                withdrawn=one.withdrawn,
                job_uid=uid,
            )


def merge(
    known: Iterable[NodeStrike], new: Iterable[NodeStrike], now: float
) -> tuple[NodeStrike, ...]:
    """Return both, each strike once, without those that do not count any more; oldest first.

    Neither the order nor repetitions matter. Of a node's condition only the newest time stays: one
    that comes and goes says no more than one that stays, and would crowd out all other nodes. Where
    there are too many, those stay that count most: a hundred nodes that are cordoned at once say
    less than one that was found slow.
    """
    there = [*new, *known]
    back = {one.identity for one in there if one.withdrawn}
    counted = (one for one in there if one.identity not in back and _counts(one, now))
    by_identity: dict[object, NodeStrike] = {}
    for one in sorted(counted, key=lambda one: (one.unix_time, one.identity)):
        shown = one.job == NODE_SOURCE and one.cause == StrikeCause.CONDITION
        by_identity[(one.host, one.text) if shown else one.identity] = one
    most = sorted(
        by_identity.values(),
        key=lambda one: (-points_left(one.cause, one.unix_time, now), -one.unix_time, one.identity),
    )[:KEPT]
    return tuple(sorted(most, key=lambda one: (one.unix_time, one.identity)))


def _counts(one: NodeStrike, now: float) -> bool:
    return (
        one.unix_time <= now + AHEAD_SECONDS
        and points_left(one.cause, one.unix_time, now) >= GONE_BELOW
    )


def to_data(strikes: Iterable[NodeStrike]) -> dict[str, str]:
    """Return the data of a ConfigMap; where they would be too large the oldest strikes stay out."""
    lines: list[str] = []
    size = 0
    for one in reversed(tuple(strikes)):
        line = json.dumps(_entry(one), ensure_ascii=False, separators=(",", ":"))
        size += len(line.encode()) + 2
        if size > MOST_BYTES:
            break
        lines.append(line)
    text = ",\n".join(reversed(lines))
    return {_FORMAT_KEY: FORMAT, _STRIKES_KEY: f"[{text}]"}


def from_data(data: Mapping[str, Any]) -> tuple[NodeStrike, ...]:
    """Return the strikes in the data of a ConfigMap.

    Raises:
        DamagedHistoryError: It was not written by an operator that this release knows.
    """
    if data.get(_FORMAT_KEY) != FORMAT:
        found = data.get(_FORMAT_KEY)
        raise DamagedHistoryError(f"data.{_FORMAT_KEY} is {found!r} and not {FORMAT!r}")
    try:
        entries = json.loads(data[_STRIKES_KEY])
        return tuple(one for entry in entries for one in _read(entry))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedHistoryError(f"data.{_STRIKES_KEY} cannot be read: {error!r}") from error


def _entry(one: NodeStrike) -> dict[str, Any]:
    return {
        "node": one.host,
        "cause": one.cause,
        "at": one.unix_time,
        "job": one.job,
        "uid": one.job_uid,
        "rank": one.node_rank,
        "text": one.text,
    }


def _read(entry: Mapping[str, Any]) -> Iterator[NodeStrike]:
    cause = str(entry["cause"])
    if cause in WEIGHTS:  # else of a newer release
        yield NodeStrike(
            host=str(entry["node"]),
            cause=cause,
            unix_time=float(entry["at"]),
            job=str(entry["job"]),
            job_uid=str(entry["uid"]),
            node_rank=int(entry["rank"]),
            text=str(entry["text"]),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ExcludedNode:
    """A node that new pods avoid."""

    host: str
    points: float
    reason: str
    """The strikes there; they do not change while points decay."""


def exclude(
    strikes: Iterable[NodeStrike], nodes: Collection[str], percent: float, now: float
) -> tuple[ExcludedNode, ...]:
    """Return the nodes to exclude, the worst first.

    Args:
        strikes: Those that are kept.
        nodes: Names of the cluster's nodes; others are not excluded.
        percent: Share of the nodes that may be excluded at a time, at least one node of several;
            0: none is.
        now: Unix time, s.
    """
    by_host: dict[str, list[NodeStrike]] = {}
    for one in strikes:
        if one.host in nodes:
            by_host.setdefault(one.host, []).append(one)
    judged = (ExcludedNode(host, points(own, now), _reason(own)) for host, own in by_host.items())
    bad = sorted(
        (one for one in judged if one.points >= SUSPECT_FROM),
        key=lambda one: (-one.points, one.host),
    )
    return tuple(bad[: _most(len(nodes), percent)])


def points(strikes: Iterable[NodeStrike], now: float) -> float:
    """Return the points against a node; `strikes`: those against it.

    The strikes of one job count one point at the most: a script that crashes wherever it runs would
    otherwise exclude every node that it was on. Jobs of a namespace that only crashed or hung on a
    node count one point together: the same script may have been submitted again.
    """
    by_job: dict[str, list[NodeStrike]] = {}
    for one in strikes:
        by_job.setdefault(one.job_uid, []).append(one)
    by_source: dict[tuple[bool, str], list[float]] = {}
    for uid, own in by_job.items():
        alone = any(one.cause not in _OF_SCRIPTS for one in own)
        source = (alone, uid if alone else own[0].job.partition("/")[0])
        left = math.fsum(points_left(one.cause, one.unix_time, now) for one in own)
        by_source.setdefault(source, []).append(min(SOURCE_MOST, left))
    # fsum: the same in any order, also at the threshold.
    return math.fsum(min(SOURCE_MOST, math.fsum(left)) for left in by_source.values())


def with_room(
    excluded: Sequence[ExcludedNode], nodes: int, workers: int
) -> tuple[ExcludedNode, ...]:
    """Return those of the cluster's nodes that a job of so many workers can do without.

    In a small cluster it would wait for a node until the points have decayed.
    """
    return tuple(excluded[: max(0, nodes - workers)])


def _most(nodes: int, percent: float) -> int:
    if percent <= 0:
        return 0
    return min(nodes - 1, max(1, int(nodes * percent / 100)))


def _reason(strikes: Iterable[NodeStrike]) -> str:
    by_job: dict[str, Counter[str]] = {}
    for one in strikes:
        by_job.setdefault(one.job, Counter())[one.cause] += 1
    named = [
        f"{', '.join(f'{cause} {count}' for cause, count in sorted(counts.items()))} "
        + ("of the node itself" if job == NODE_SOURCE else f"in {job}")
        for job, counts in sorted(by_job.items())
    ]
    more = len(named) - _NAMED
    return "; ".join(named[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
