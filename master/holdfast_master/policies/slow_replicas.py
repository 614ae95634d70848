"""Replicas in step that make each step longer: found by their work on a micro-batch.

Belongs here: the comparison of replicas, vote by vote. Does not belong here: where the figures come
from (`job.health.slow_replicas`), and stragglers within one world (`straggler`).

Replicas that train in step wait for the slowest in each step. Their collectives are made anew with
each change of members, so they cannot be aligned as those of one world are. A rank's own work can
be compared: the time from its first micro-batch of a step until it waits for the others, over their
number. That hangs on the number of replicas, and says nothing of its speed.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Final

LOOKS: Final = 10
"""Looks at a replica that make one figure: their middle is no single step's."""


@dataclasses.dataclass(slots=True, eq=False)
class ReplicaWork:
    """What is known of one replica's work."""

    newest: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=LOOKS))
    """Seconds for a micro-batch of its slowest rank, a figure for each look that saw a new step."""
    step: int = 0
    """The newest step that was looked at."""
    votes: list[bool] = dataclasses.field(default_factory=list)
    """It was slow, oldest first."""
    slow_since: int = 0
    """Step of the first of the votes that now hold; 0: they do not."""
    seconds: float = 0.0
    """Its middle at the newest vote."""
    percent: float = 0.0
    """How much longer that is than the others'."""

    def look(self, step: int, seconds: float) -> None:
        """Take the work of a step, once."""
        if step > self.step and seconds > 0:
            self.step = step
            self.newest.append(seconds)


def vote(works: Mapping[int, ReplicaWork], percent: float, needed: int, out_of: int) -> bool:
    """Vote on all replicas, once each has enough looks; False: one has not yet.

    Args:
        works: By replica.
        percent: How much longer than the others' middle is slow.
        needed: Votes that make a verdict.
        out_of: Newest votes that count.
    """
    if len(works) < 2 or any(len(one.newest) < LOOKS for one in works.values()):
        return False
    for one in works.values():
        one.seconds = median(one.newest)
    order = sorted(one.seconds for one in works.values())
    for one in works.values():
        one.percent = 100 * (one.seconds / _median_without(order, one.seconds) - 1)
        one.votes = [*one.votes, one.percent >= percent][-out_of:]
        one.newest.clear()
        if sum(one.votes) < needed:
            one.slow_since = 0
        elif not one.slow_since:
            one.slow_since = one.step
    return True


def _median_without(order: Sequence[float], value: float) -> float:
    """Return the median of sorted values without this one of them."""
    at, left = bisect.bisect_left(order, value), len(order) - 1

    def rest(place: int) -> float:
        return order[place + (place >= at)]

    return (rest((left - 1) // 2) + rest(left // 2)) / 2


def reason(number: int, nodes: Collection[int], work: ReplicaWork, out_of: int) -> str:
    """Say why a replica is slow."""
    where = f"node {next(iter(nodes))}" if len(nodes) == 1 else f"nodes {sorted(nodes)}"
    return (
        f"replica {number} ({where}) works {work.seconds:.3g} s on a micro-batch, "
        f"{work.percent:.0f} % longer than the other replicas, in {sum(work.votes)} of the last "
        f"{min(out_of, len(work.votes))} looks: each step of all is as long"
    )
