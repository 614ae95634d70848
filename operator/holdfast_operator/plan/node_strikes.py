"""Strikes against Kubernetes nodes, of all jobs of an operator. Pure.

Belongs here: merging, decay, bounds, and the text in which a ConfigMap keeps them. Does not belong
here: requests (`node_history`), a cause's weight (`holdfast_wire.strikes`), the standing of a host
in a job (the master's).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast_wire.messages import NodeStruck
from holdfast_wire.strikes import HALF_LIFE_SECONDS, NODE_SOURCE, StrikeCause, points_left

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


class DamagedHistoryError(ValueError):
    """A ConfigMap does not hold a history that this release can read; the text has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeStrike:
    """One thing that spoke against a Kubernetes node."""

    host: str
    cause: StrikeCause
    at: float
    """Unix time, s."""
    job: str
    """Namespace and name of the job that it comes from; NODE_SOURCE: the node itself shows it."""
    job_uid: str
    """Uid of that job: the next one of its name is another one."""
    node_rank: int
    text: str
    withdrawn: bool = False
    """Its job takes it back."""

    @property
    def identity(self) -> tuple[str, float, str, str, str]:
        """What is equal when it is told again."""
        return (self.host, self.at, self.cause.value, self.job_uid, self.text)

    def told(self) -> NodeStruck:
        """Return it for the master of another job."""
        return NodeStruck(
            host=self.host,
            node_rank=self.node_rank,
            cause=self.cause.value,
            text=self.text,
            unix_time=self.at,
            job=self.job,
        )


def of_job(told: Iterable[NodeStruck], job: str, uid: str) -> Iterator[NodeStrike]:
    """Yield the strikes that a job's master reports; causes of a newer release are left out.

    Args:
        told: The report.
        job: Namespace and name of the job.
        uid: Its uid.
    """
    for one in told:
        cause = _cause(one.cause)
        if cause is not None and one.host:
            yield NodeStrike(
                host=one.host,
                cause=cause,
                at=round(one.unix_time, 3),
                job=job,
                job_uid=uid,
                node_rank=one.node_rank,
                text=one.text[:_LONGEST_TEXT],
                withdrawn=one.withdrawn,
            )


def merge(
    known: Iterable[NodeStrike], new: Iterable[NodeStrike], now: float
) -> tuple[NodeStrike, ...]:
    """Return both, each strike once, without those that do not count any more; oldest first.

    Neither the order nor repetitions matter. Of a node's condition only the newest time stays: one
    that comes and goes says no more than one that stays, and would crowd out all other nodes. Where
    there are too many, those stay that count most: a hundred nodes that are cordoned at once say
    less than one that was found slow.

    Args:
        known: What was kept before.
        new: What comes to it.
        now: Unix time, s.
    """
    there = [*new, *known]
    back = {one.identity for one in there if one.withdrawn}
    counted = (one for one in there if one.identity not in back and _counts(one, now))
    by_identity: dict[object, NodeStrike] = {}
    for one in sorted(counted, key=lambda one: (one.at, one.identity)):
        shown = one.job == NODE_SOURCE and one.cause is StrikeCause.CONDITION
        by_identity[(one.host, one.text) if shown else one.identity] = one
    most = sorted(
        by_identity.values(),
        key=lambda one: (-points_left(one.cause, one.at, now), -one.at, one.identity),
    )[:KEPT]
    return tuple(sorted(most, key=lambda one: (one.at, one.identity)))


def _counts(one: NodeStrike, now: float) -> bool:
    return one.at <= now + AHEAD_SECONDS and points_left(one.cause, one.at, now) >= GONE_BELOW


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
        "cause": one.cause.value,
        "at": one.at,
        "job": one.job,
        "uid": one.job_uid,
        "rank": one.node_rank,
        "text": one.text,
    }


def _read(entry: Mapping[str, Any]) -> Iterator[NodeStrike]:
    cause = _cause(str(entry["cause"]))
    if cause is not None:  # else of a newer release
        yield NodeStrike(
            host=str(entry["node"]),
            cause=cause,
            at=float(entry["at"]),
            job=str(entry["job"]),
            job_uid=str(entry["uid"]),
            node_rank=int(entry["rank"]),
            text=str(entry["text"]),
        )


def _cause(text: str) -> StrikeCause | None:
    try:
        return StrikeCause(text)
    except ValueError:
        return None
