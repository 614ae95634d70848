"""Agreement of replicas that meet: the step, the gradients that are given, who computes what.

Belongs here: the plan that brings survivors and joiners into one step. Does not belong here: how
they meet, and the transfers (`replicated`).

Replicas meet when their members change. Three facts bear the plan:

1. A reduction is whole only where all members have given theirs. So all had applied the step
   before, and two replicas are one step apart at most. A replica that has a step's result keeps it
   until a bucket of the next one is whole, which proves that nobody is behind any more.
2. Who is one step behind is given the reduced gradient, and applies it as all others have.
3. Where nobody has the result, survivors keep the local sums that they had given. What none of
   them holds was with a lost replica: it is dealt out anew. No micro-batch is in two sums: where
   two hold one, as one that was out and comes back may, the later gives up its whole sum.

A replica that is more than one step behind was out of the roster meanwhile. It takes the others'
state, as a new one does. So does one that was in another group for a while, since two masters or a
stale roster let two groups go on: steps alone do not tell them apart, and the lineage does.

All make the plan from the same standings, and so the same plan.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.replicas.errors import MeetingError

LINEAGE_BITS: Final = 52
"""Of a lineage: as many as a float64 carries exactly."""


class OnLoss(enum.StrEnum):
    """The rest of a step in which a replica is lost."""

    RECOMPUTE = "recompute"
    """The others compute what it had not delivered: each step has all its micro-batches."""
    FEWER = "fewer"
    """The step is taken with those that are there; the mean is over them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One replica when members meet."""

    replica: int
    is_new: bool
    """It has no state that the others know: it has been in no meeting yet."""
    step: int
    """Steps that it has applied: the number of the step that it is in; -1: its state is not whole,
    since one that gave it was lost."""
    lineage: int = 0
    """Stands for the epochs in which those steps were made (`lineage_of`)."""
    lineage_before: int = 0
    """Its lineage before the newest of them."""
    keeps: bool = False
    """It has the reduced gradient of the newest step that it has applied."""
    held: frozenset[int] = frozenset()
    """Micro-batches of its step whose gradients are in its local sum."""

    def numbers(self) -> list[float]:
        """Return `NUMBERS` numbers for `of`: all but its own number, and how many it holds."""
        own = self.is_new, self.step, self.keeps, self.lineage, self.lineage_before, len(self.held)
        return [float(one) for one in own]

    @classmethod
    def of(cls, replica: int, numbers: Sequence[float], held: Iterable[int]) -> Standing:
        """Return the standing of a replica that told these `numbers`, and what it holds."""
        return cls(
            replica=replica,
            is_new=bool(numbers[0]),
            step=int(numbers[1]),
            keeps=bool(numbers[2]),
            lineage=int(numbers[3]),
            lineage_before=int(numbers[4]),
            held=frozenset(held),
        )


NUMBERS: Final = len(Standing(replica=0, is_new=True, step=0).numbers())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What members do before they go on; replicas are named by their numbers."""

    step: int
    """The step that all are in, once the plan is carried out."""
    lineage: int = 0
    """Of all, then."""
    gradient_from: int | None = None
    """Gives the reduced gradient of the step before to those behind; None: nobody is."""
    behind: tuple[int, ...] = ()
    heals: tuple[tuple[int, int], ...] = ()
    """(joiner, donor of its state); the joiner gives nothing to this step's reduction."""
    heal_first: bool = False
    """Nobody has begun: all take the state before the first step, and all compute in it."""
    drops: frozenset[int] = frozenset()
    """Replicas that give up their local sum."""
    dealt: Mapping[int, tuple[int, ...]]
    """Micro-batches that each replica computes yet."""
    reason: str


class Began(NamedTuple):
    """The begin of replicas that had no others to join."""

    epoch: int
    """Of their roster; 0: they are fixed."""
    steps: int
    """That all had."""


def unlike(
    forms: Mapping[int, tuple[bool, Sequence[float]]], fields: Sequence[str]
) -> dict[int, str]:
    """Return the replicas that no sum can be made with, and the field of each that differs.

    Args:
        forms: By replica: it is new, and the numbers of its form. Those who train already are
            right, or else the first.
        fields: Names of the numbers.
    """
    order = sorted(forms, key=lambda one: (forms[one][0], one))
    right = forms[order[0]][1]
    found = {}
    for replica in order[1:]:
        mine = forms[replica][1]
        wrong = [name for name, one, other in zip(fields, mine, right, strict=True) if one != other]
        if wrong:
            found[replica] = wrong[0]
    return found


def unlike_others(
    me: int, replicas: Sequence[int], rows: Sequence[Sequence[float]], fields: Sequence[str]
) -> str:
    """Return which other replicas are of another form, and in which field; "": none is.

    Args:
        me: This replica.
        replicas: All, in the order of their rows.
        rows: What each told: `Standing.numbers`, then those of its form.
        fields: Names of the numbers of a form.

    Raises:
        MeetingError: this replica is one of them.
    """
    told = zip(replicas, rows, strict=True)
    wrong = unlike({one: (bool(row[0]), row[NUMBERS:]) for one, row in told}, fields)
    if me in wrong:
        raise MeetingError(
            f"replica {me}: its {wrong[me]} is not that of the replicas that train; start it with "
            "their script and settings"
        )
    return f"replicas {sorted(wrong)} have another {next(iter(wrong.values()))}" if wrong else ""


def agree(standings: Sequence[Standing], micro_batches: int) -> Agreement:
    """Return the plan of one meeting.

    Args:
        standings: Of all members, in any order.
        micro_batches: Of a step, in the whole job.

    Raises:
        MeetingError: no replica is named, or one twice; one holds what no step has; or none that
            is left has a whole state.
    """
    members = sorted(standings, key=lambda one: one.replica)
    _check(members, micro_batches)
    old = [one for one in members if not one.is_new]
    if not old:
        return _first(members, micro_batches)
    donors = _furthest(old)
    top, keeper = donors[0].step, next((one for one in donors if one.keeps), None)
    behind = tuple(one.replica for one in old if keeper is not None and _follows(keeper, one))
    stay = {one.replica for one in donors} | set(behind)
    joiners = [one.replica for one in members if one.replica not in stay]
    held, drops = _sums(donors)
    heals = tuple((one, donors[at % len(donors)].replica) for at, one in enumerate(joiners))
    dealt = deal(micro_batches, sorted(stay), held)
    return Agreement(
        step=top,
        lineage=donors[0].lineage,
        gradient_from=keeper.replica if keeper is not None and behind else None,
        behind=behind,
        heals=heals,
        drops=drops,
        dealt={**dict.fromkeys(joiners, ()), **dealt},
        reason=_reason(top, donors, behind, joiners, held),
    )


def deal(
    micro_batches: int, replicas: Sequence[int], held: Mapping[int, frozenset[int]] | None = None
) -> dict[int, tuple[int, ...]]:
    """Deal out the micro-batches that nobody holds, so that totals are as equal as they can be.

    Args:
        micro_batches: Of a step.
        replicas: Those that compute.
        held: Micro-batches in the local sums of some of them.
    """
    held = held or {}
    taken = frozenset().union(*held.values())
    totals = [(len(held.get(one, ())), at) for at, one in enumerate(replicas)]
    heapq.heapify(totals)
    dealt: list[list[int]] = [[] for _ in replicas]
    for number in range(micro_batches):
        if number not in taken:
            total, at = totals[0]
            heapq.heapreplace(totals, (total + 1, at))
            dealt[at].append(number)
    return {one: tuple(some) for one, some in zip(replicas, dealt, strict=True)}


def lineage_of(lineage: int, epoch: int) -> int:
    """Return the lineage of replicas that had one, and have made steps together in this epoch."""
    word = (lineage ^ epoch * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return word >> 64 - LINEAGE_BITS


def _furthest(old: Sequence[Standing]) -> list[Standing]:
    """Return the replicas that are furthest, of the lineage that most of them have."""
    top = max(one.step for one in old)
    there = [one for one in old if one.step == top]
    [(lineage, _)] = Counter(one.lineage for one in there).most_common(1)
    return [one for one in there if one.lineage == lineage]


def _follows(keeper: Standing, one: Standing) -> bool:
    """Return True if a replica lacks the keeper's newest step, and nothing else."""
    return (one.step, one.lineage) == (keeper.step - 1, keeper.lineage_before)


def _first(members: Sequence[Standing], micro_batches: int) -> Agreement:
    """Return the plan of a job's begin: all take the state of the one that is furthest."""
    source = max(members, key=lambda one: one.step)  # the first of them
    if source.step < 0:
        raise MeetingError(
            "no replica has a whole state, since those that gave theirs were lost: restart the "
            "replicas from their newest checkpoint"
        )
    others = [one.replica for one in members if one is not source]
    return Agreement(
        step=source.step,
        heals=tuple((one, source.replica) for one in others),
        heal_first=True,
        dealt=deal(micro_batches, [one.replica for one in members]),
        reason=f"{len(members)} replicas begin at step {source.step}",
    )


def _sums(donors: Sequence[Standing]) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Return the local sums that count, and who gives up one that has another's micro-batch."""
    kept: dict[int, frozenset[int]] = {}
    taken: set[int] = set()
    drops = set()
    for one in donors:
        if taken & one.held:
            drops.add(one.replica)
            continue
        taken |= one.held
        kept[one.replica] = one.held
    return kept, frozenset(drops)


def _check(members: Sequence[Standing], micro_batches: int) -> None:
    names = [one.replica for one in members]
    if not names or len(set(names)) < len(names):
        raise MeetingError(f"replicas {names}: one or more must meet, each once")
    for one in members:
        if wrong := sorted(number for number in one.held if not 0 <= number < micro_batches):
            raise MeetingError(
                f"replica {one.replica} holds micro-batches {wrong}, and a step has "
                f"{micro_batches}: pass the same micro_batches on all replicas"
            )


def _reason(
    step: int,
    donors: Sequence[Standing],
    behind: Sequence[int],
    joiners: Sequence[int],
    held: Mapping[int, frozenset[int]],
) -> str:
    said = [f"{len(donors) + len(behind)} replicas go on in step {step}"]
    if any(held.values()):
        said.append(f"{sum(len(one) for one in held.values())} micro-batches are held")
    if behind:
        said.append(f"replicas {list(behind)} are given the gradient of step {step - 1}")
    if joiners:
        said.append(f"replicas {list(joiners)} are given the state")
    return "; ".join(said)
