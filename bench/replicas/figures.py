"""Figures from the ranks' logs. Pure: events in, milliseconds and counts out.

A step is whole once all ranks of its round have made it: `world` processes, each with a line of the
same step and round. A round is what a way calls it: an epoch of replicas, a restart, a quorum.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.recovery.measure import Completed
from bench.recovery.steplog import Event
from bench.replicas import results as r


def whole_steps(events: Iterable[Event]) -> list[Completed]:
    """Return the steps that all ranks of their round have made, by time."""
    made: dict[tuple[int, int, int], dict[int, float]] = defaultdict(dict)
    for one in events:
        if one.event == "step" and None not in (one.round, one.step, one.world):
            made[one.round or 0, one.step or 0, one.world or 0][one.pid] = one.t
    return sorted(
        Completed(t=max(times.values()), round=round_id, step=step, world=world)
        for (round_id, step, world), times in made.items()
        if len(times) == world
    )


def settled(steps: Sequence[Completed], ranks: int, since: float, count: int) -> bool:
    """Tell if the newest round has all ranks, and has made so many steps after a moment."""
    if not steps or steps[-1].world != ranks:
        return False
    newest = [one for one in steps if one.round == steps[-1].round and one.t > since]
    return sum(one.world == ranks for one in newest) >= count


def pace(steps: Sequence[Completed], world: int) -> float:
    """Return the median seconds from one whole step to the next in rounds of so many ranks.

    0 where there are none.
    """
    gaps = [
        other.t - one.t
        for one, other in itertools.pairwise(steps)
        if one.round == other.round and one.world == other.world == world
    ]
    return statistics.median(gaps) if gaps else 0.0


def next_whole(steps: Sequence[Completed], moment: float) -> Completed | None:
    """Return the first whole step of a round that had no whole step before the moment."""
    return next(iter(_of_later_rounds(steps, moment)), None)


def _of_later_rounds(steps: Sequence[Completed], moment: float) -> list[Completed]:
    """Leave out the step that the killed rank had made, and whose others come after the moment."""
    old = {one.round for one in steps if one.t <= moment}
    return [one for one in steps if one.t > moment and one.round not in old]


def loss(
    events: Sequence[Event], moment: float, victims: int, ranks: int, replicas: int
) -> dict[str, float] | None:
    """Return what one kill has cost; None while no whole step has followed.

    Args:
        events: Up to now.
        moment: Of the kill.
        victims: Ranks that must end with the killed one: those of its replica.
        ranks: Of the whole job.
        replicas: That share a step.
    """
    steps = whole_steps(events)
    reached = next_whole(steps, moment)
    if reached is None:
        return None
    usual = pace([one for one in steps if one.t <= moment], ranks)
    total, most = reached.t - moment, max(one.step for one in steps if one.t <= moment)
    between = [one for one in events if moment < one.t <= reached.t]
    living = {one.pid for one in events if one.t <= moment and one.event == "step"}
    after = {one.pid for one in events if one.t > moment and one.event == "step"}
    ended = len(_last_alive(events, moment, living, ranks) - after)
    return {
        r.TOTAL: 1000 * total,
        r.ORDINARY: 1000 * usual,
        r.BEYOND: 1000 * (total - usual * (1 + 1 / (replicas - 1))),
        r.BEGUN_AGAIN: float(max(0, ended - victims)),
        r.REDONE: float(max(0, most + 1 - reached.step)),
        r.DISCARDED: float(len({one.step for one in between if one.event == "discarded"})),
    }


def _last_alive(events: Sequence[Event], moment: float, living: set[int], ranks: int) -> set[int]:
    """Return the ranks of the newest round before the moment: the last that wrote a step."""
    newest = {one.pid: one.t for one in events if one.pid in living and one.t <= moment}
    return set(sorted(newest, key=lambda pid: -newest[pid])[:ranks])


def join(events: Sequence[Event], moment: float, ranks: int) -> dict[str, float] | None:
    """Return what the return to the whole world has cost the others; None: it is not there yet.

    The pause is the time from the last step of the round before to the second one of the whole
    world, beyond as many ordinary steps.
    """
    steps = _of_later_rounds(whole_steps(events), moment)
    at = next((i for i, one in enumerate(steps) if one.world == ranks), None)
    if at is None or at + 1 >= len(steps) or _changes_again(steps, at):
        return None
    before = max((i for i in range(at) if steps[i].round != steps[at].round), default=None)
    if before is None:  # the world came back as a whole: nobody joined others
        return {r.AWAY: 1000 * (steps[at].t - moment)}
    fewer = steps[before].world
    whole = pace(whole_steps(events), ranks)
    usual = pace(steps[:at], fewer) or whole
    pause = steps[at + 1].t - steps[before].t - (at - before) * usual - whole
    given = [one.seconds for one in events if one.event == "given" and one.t > moment]
    found = {r.AWAY: 1000 * (steps[at].t - moment), r.PAUSE: 1000 * pause}
    if given and (transfer := given[-1]) is not None:
        left = pause - max(0.0, transfer - usual)
        found |= {r.GIVEN: 1000 * transfer, r.UNCOVERED: 1000 * left}
    return found


def _changes_again(steps: Sequence[Completed], at: int) -> bool:
    """Tell if the step behind is of another round: one more change came at once."""
    return steps[at + 1].round != steps[at].round


def goodput(
    events: Sequence[Event], begin: float, end: float, ranks: int, *, shares: bool
) -> Mapping[str, float]:
    """Return the share of a window's time that is in steps that remain.

    Args:
        events: All.
        begin: Of the window.
        end: Of the window.
        ranks: Of the whole job.
        shares: A step of fewer ranks has fewer micro-batches. Else all steps have the same.
    """
    steps = whole_steps(events)
    first: dict[int, Completed] = {}
    for one in steps:
        first.setdefault(one.step, one)
    gained = sum(
        one.world / ranks if shares else 1.0 for one in first.values() if begin < one.t <= end
    )
    made = [one for one in steps if begin < one.t <= end]
    usual = pace(steps, ranks)
    thrown = {one.step for one in events if one.event == "discarded" and begin < one.t <= end}
    return {
        r.SHARE: gained * usual / (end - begin),
        "seconds": end - begin,
        r.ORDINARY: 1000 * usual,
        r.REDONE: float(len(made) - len({one.step for one in made})),
        r.DISCARDED: float(len(thrown)),
        "whole steps a second": gained / (end - begin),
    }
