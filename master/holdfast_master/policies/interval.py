"""Checkpoint interval per tier: the cost of saving against the cost of a failure.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974): with
a save that costs d and a mean time M between failures, save every sqrt(2 d M). J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006): for M
not much larger than d, sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d.

A failure costs the work since what it goes back to. A process that fails goes back to memory, a
lost node takes its memory with it and goes back to storage: so each tier is weighed against the
failures that it serves. A save to a tier passes through the nearer ones. With storage at each k-th
save to memory, an average save costs d = m + (s - m) / k, and a failure loses half a memory
interval, or k times that: as one tier with M = 1 / (p + k n), for p failures of processes and n
losses of nodes in a second. The best k is sqrt((s - m) p / (m n)); k = 1 is one tier. With more
tiers the same holds of each and the one before it, as d is a sum over all and so is 1 / M.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Mapping, Sequence

from holdfast_master.policies.failure_rate import BY_TIER, Rates
from holdfast_master.policies.quantities import in_words
from holdfast_wire.messages import MasterSpec, Tier
from holdfast_wire.tiers import by_tier, word

_SHORTEST_STOP = 1e-6
"""s: no save stops training for less; a report that says so would make the interval nothing."""
_LONGEST_SECONDS = 3600.0
"""s: between saves of a tier, however rare failures are: an hour is what people will lose."""
_CHANGE = 1.25
"""Ratio from which a new interval takes the place of the old one. At 1.25 the cost of saving and of
failures together is 2.5 % above its least, which is flat."""
_OVERLAP = 1.25
"""Times that a write must fit between two saves to its tier: the next would wait for it."""

Every = Mapping[Tier, int]
"""Steps between saves, by tier; 0: none of its own, or nobody's number."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The measured cost of saves to one tier, on the slowest rank, s."""

    stop: float | None
    """That a save stops training, with what the step times grow by while it is written; None: none
    was measured yet."""
    durable: float = 0.0
    """From the save until it is durable; 0: at once, or not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The measured costs of saving."""

    step: float
    """A training step, s."""
    tiers: Mapping[Tier, Cost]
    """Of the nearest one a save was measured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IntervalVerdict:
    """The intervals that are to hold, with the reasons."""

    every: Every
    changed: bool
    reasons: Mapping[Tier, str]


def wished(spec: MasterSpec) -> Every:
    """The numbers that a job's file has; 0: it leaves them to the master."""
    return by_tier(spec.checkpoint.intervals if spec.checkpoint is not None else ())


def decide(costs: Costs, rates: Rates, now: Every, *, fixed: Every) -> IntervalVerdict:
    """The intervals for these costs and rates, or `now` where the difference is small.

    fixed: numbers that somebody wrote; 0: none did.
    """
    choice = _Choice(costs, rates)
    best, bound = choice.best(now, fixed), choice.bound(fixed)
    settled = all(_is_near(best[tier], now[tier]) for tier in best)
    forced = any(fixed[tier] not in {0, now[tier]} for tier in best)
    every = now if settled and not forced else best
    numbers = " and ".join(str(best[tier]) for tier in sorted(best))
    kept = f"; {numbers} would hardly be better" if every != best else ""
    return IntervalVerdict(
        every=every,
        changed=every != now,
        reasons={
            tier: _reason(tier, costs, rates, fixed) + bound.get(tier, "") + kept for tier in best
        },
    )


def _is_near(new: int, old: int) -> bool:
    return min(new, old) * _CHANGE > max(new, old) or new == old


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """The best intervals for these costs and rates."""

    costs: Costs
    rates: Rates

    @property
    def tiers(self) -> Sequence[Tier]:
        """The tiers, nearest first."""
        return sorted(self.costs.tiers)

    def best(self, now: Every, fixed: Every) -> Every:
        """The best intervals, where some are given."""
        given = {tier: fixed[tier] for tier in self.tiers if fixed[tier]}
        for tier, cost in self.costs.tiers.items():
            if cost.stop is None and tier not in given:
                # Its interval stays as it is until one has been measured; an hour at the most.
                given[tier] = min(max(1, now[tier]), self._most())
        return self._with_given(given) if given else self._together()

    def bound(self, fixed: Every) -> dict[Tier, str]:
        """The words for each tier that a farther one's given interval keeps nearer."""
        found = dict[Tier, str]()
        for tier, cost in self.costs.tiers.items():
            farther = next((one for one in self.tiers if one > tier and fixed[one]), None)
            if fixed[tier] or cost.stop is None or farther is None:
                continue
            if self._alone(tier) > fixed[farther]:
                found[tier] = (
                    f"; at most as far apart as saves to {word(farther)} ({fixed[farther]})"
                )
        return found

    def _alone(self, tier: Tier) -> int:
        """A tier's interval where no farther one bounds it."""
        cost = max(self._added(tier), _SHORTEST_STOP)
        return self._steps(daly(cost, 1 / self.rates.by_tier[tier]))

    def _with_given(self, given: Every) -> Every:
        """The intervals where those of some tiers are given."""
        found = dict[Tier, int]()
        for tier in self.tiers:
            farther = [given[one] for one in self.tiers if one > tier and one in given]
            if tier in given:
                found[tier] = given[tier]
            elif farther:
                found[tier] = self._part_of(tier, farther[0])
            else:
                found[tier] = self._multiple_of(tier, found[max(found)])
        return found

    def _together(self) -> Every:
        """The intervals where none is given: those whose sum of costs is least."""
        first = self.tiers[0]
        stops = {tier: self._stop(tier) for tier in self.tiers}
        stops[first] = max(stops[first], _SHORTEST_STOP)
        pairs = list(itertools.pairwise(self.tiers))
        added = {first: stops[first]}
        added |= {tier: max(stops[tier] - stops[before], 0.0) for before, tier in pairs}

        def mean(ks: Sequence[int]) -> tuple[float, float]:
            """An average save's cost, and the time between failures that it stands for."""
            multiples = itertools.accumulate((1, *ks), operator.mul)
            times = dict(zip(self.tiers, multiples, strict=True))
            cost = sum(added[tier] / times[tier] for tier in self.tiers)
            return cost, 1 / sum(times[tier] * self.rates.by_tier[tier] for tier in self.tiers)

        def waste(ks: Sequence[int]) -> float:
            """Of an interval that is best for these, the cost grows with d / M."""
            cost, time = mean(ks)
            return cost / time

        ks = min(itertools.product(*self._factors(added)), key=waste)
        found = {first: self._steps(daly(*mean(ks)))}
        for (before, tier), k in zip(pairs, ks, strict=True):
            every = found[before] * k
            fits = found[before] > 1 and self._least(tier) <= every <= self._most()
            found[tier] = every if fits else self._multiple_of(tier, found[before])
        return found

    def _factors(self, added: Mapping[Tier, float]) -> list[list[int]]:
        """Return, for each tier but the nearest, the numbers about its best multiple."""
        found = []
        for before, tier in itertools.pairwise(self.tiers):
            rates = self.rates.by_tier
            dear = max(added[before], _SHORTEST_STOP) * rates[tier]
            best = math.sqrt(added[tier] * rates[before] / dear)
            found.append(sorted({max(1, math.floor(best)), max(1, math.ceil(best))}))
        return found

    def _part_of(self, tier: Tier, farther: int) -> int:
        """A tier's interval where a farther one's is given: a part of that."""
        every = min(self._alone(tier), farther)
        return max(1, round(farther / max(1, round(farther / every))))

    def _multiple_of(self, tier: Tier, nearer: int) -> int:
        """A tier's interval where the one before has this: a multiple of that."""
        cost, least = max(self._added(tier), _SHORTEST_STOP), self._least(tier)
        every = max(self._steps(daly(cost, 1 / self.rates.by_tier[tier])), least)
        return nearer * max(1, round(every / nearer), math.ceil(least / nearer))

    def _stop(self, tier: Tier) -> float:
        """Return the cost of a save to a tier; where none was measured, as to the one before."""
        nearer = [one for one in self.tiers if one <= tier]
        known = [cost for one in nearer if (cost := self.costs.tiers[one].stop) is not None]
        return known[-1] if known else 0.0

    def _added(self, tier: Tier) -> float:
        """Return the extra cost of a save to a tier over one to the tier before."""
        nearer = [one for one in self.tiers if one < tier]
        return self._stop(tier) - (self._stop(nearer[-1]) if nearer else 0.0)

    def _steps(self, seconds: float) -> int:
        return min(max(1, round(seconds / self.costs.step)), self._most())

    def _most(self) -> int:
        return max(1, int(_LONGEST_SECONDS / self.costs.step))

    def _least(self, tier: Tier) -> int:
        """The least steps between two saves in which one write to the tier fits."""
        durable = self.costs.tiers[tier].durable
        return max(1, math.ceil(_OVERLAP * durable / self.costs.step))


def daly(cost: float, mean: float) -> float:
    """The seconds of work between saves of `cost`, failures `mean` apart; Daly's (37)."""
    if cost >= 2 * mean:
        return mean
    root = math.sqrt(cost / (2 * mean))
    return math.sqrt(2 * cost * mean) * (1 + root / 3 + root * root / 9) - cost


# --------------------------------------------------------------------------------------- in words


_FORMULA = "sqrt(2 × cost × time between failures), as by Young and Daly"
"""What the intervals come to where a save costs much less than that time; the docstring has the
rest."""


def _reason(tier: Tier, costs: Costs, rates: Rates, fixed: Every) -> str:
    cost = costs.tiers[tier]
    if fixed[tier]:
        return "the job's spec says so"
    if cost.stop is None:
        return f"unchanged until a save to {word(tier)} has been measured"
    seconds, step = in_words(cost.stop), in_words(costs.step)
    nearest = tier is min(costs.tiers)
    stop = f"stops training for {seconds}" if nearest else f"costs {seconds} of training"
    often = f"{BY_TIER[tier].failure} every {in_words(1 / rates.by_tier[tier])} {rates.reason}"
    text = f"a save {stop}, a step takes {step}, {often}"
    if cost.durable:
        text += f"; a write of {in_words(cost.durable)} has to fit"
    return f"{_FORMULA}: {text}; {in_words(_LONGEST_SECONDS)} at the most"
