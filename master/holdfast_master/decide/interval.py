"""How many steps apart checkpoints are, per tier: what saving costs against what a failure costs.

Belongs here: the interval of Young and Daly for two tiers, its bounds, when a change is worth it.
Does not belong here: how often the job fails (`failure_rate`), from which step a schedule holds
(`arming`), who is told.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974): with
a save that costs d and a mean time M between failures, save every sqrt(2 d M). J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006): for M
not much larger than d, sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d.

A failure costs the work since what it goes back to. A process that fails goes back to memory, a
lost node takes its memory with it and goes back to storage: so each tier is weighed against the
failures that it serves. A save to storage passes through memory. With storage at each k-th save to
memory, an average save costs d = m + (s - m) / k, and a failure loses half a memory interval, or k
times that: as one tier with M = 1 / (p + k n), for p failures of processes and n losses of nodes in
a second. The best k is sqrt((s - m) p / (m n)); k = 1 is one tier.
"""

from __future__ import annotations

import dataclasses
import math

from holdfast_master.decide.durations import in_words
from holdfast_master.decide.failure_rate import Rates

_SHORTEST_STOP = 1e-6
"""s: no save stops training for less; a report that says so would make the interval nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was measured of saving, on the slowest rank. All in seconds."""

    step: float
    """A training step."""
    memory: float
    """That a save to memory stops training."""
    storage: float | None
    """That a save to storage stops it, with what the step times grow by while it is written; None:
    none was measured yet."""
    durable: float = 0.0
    """From the save until it is durable; 0: not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an interval, and when a new one is worth a change."""

    longest_seconds: float = 3600.0
    """s: between saves of a tier, however rare failures are: an hour is what people will lose."""
    change: float = 1.25
    """Ratio from which a new interval takes the place of the old one. At 1.25 the cost of saving
    and of failures together is 2.5 % above its least, which is flat."""
    overlap: float = 1.25
    """Times that a write to storage must fit between two saves to it: the next would wait for it.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Steps between saves, by tier; 0: none but those to storage, or none at all."""

    memory: int
    storage: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to hold, and why."""

    every: Every
    changed: bool
    memory_reason: str
    storage_reason: str


def decide(
    costs: Costs, rates: Rates, now: Every, *, fixed: Every, limits: Limits = Limits()
) -> Verdict:
    """The intervals for these costs and failures; those of `now` where the difference is small.

    fixed: numbers that somebody wrote; 0: none did.
    """
    best = _best(costs, rates, now, fixed, limits)
    settled = _is_near(best.memory, now.memory, limits) and _is_near(
        best.storage, now.storage, limits
    )
    forced = any(want not in (0, has) for want, has in _pairs(fixed, now))
    every = now if settled and not forced else best
    kept = f"; {best.memory} and {best.storage} would hardly be better" if every != best else ""
    return Verdict(
        every=every,
        changed=every != now,
        memory_reason=_memory_reason(costs, rates, fixed, limits) + kept,
        storage_reason=_storage_reason(costs, rates, fixed, limits) + kept,
    )


def _pairs(one: Every, other: Every) -> tuple[tuple[int, int], tuple[int, int]]:
    return (one.memory, other.memory), (one.storage, other.storage)


def _is_near(new: int, old: int, limits: Limits) -> bool:
    return min(new, old) * limits.change > max(new, old) or new == old


def _best(costs: Costs, rates: Rates, now: Every, fixed: Every, limits: Limits) -> Every:
    if fixed.memory and fixed.storage:
        return fixed
    if fixed.storage:
        return Every(
            memory=_memory_beside(costs, rates, fixed.storage, limits), storage=fixed.storage
        )
    if costs.storage is None:
        # Its interval stays as it is until one has been measured; an hour at the most.
        storage = min(max(1, now.storage), _most(costs, limits))
        memory = fixed.memory or _memory_beside(costs, rates, storage, limits)
        return Every(memory=memory, storage=storage)
    if fixed.memory:
        return Every(
            memory=fixed.memory, storage=_storage_beside(costs, rates, fixed.memory, limits)
        )
    return _both(costs, rates, limits)


def _both(costs: Costs, rates: Rates, limits: Limits) -> Every:
    memory = max(costs.memory, _SHORTEST_STOP)
    more = max(_storage(costs) - memory, 0.0)
    best = math.sqrt(more * rates.memory / (memory * rates.storage))
    choices = {max(1, math.floor(best)), max(1, math.ceil(best))}

    def mean(k: int) -> tuple[float, float]:
        return memory + more / k, 1 / (rates.memory + k * rates.storage)

    # Of an interval that is best for its k, the cost grows with d / M.
    k = min(sorted(choices), key=lambda one: mean(one)[0] / mean(one)[1])
    every = _steps(daly(*mean(k)), costs, limits)
    if every == 1 or every * k < _least(costs, limits) or every * k > _most(costs, limits):
        return Every(memory=every, storage=_storage_beside(costs, rates, every, limits))
    return Every(memory=every, storage=every * k)


def _memory_beside(costs: Costs, rates: Rates, storage: int, limits: Limits) -> int:
    """The memory tier's interval where storage's is given: a part of it."""
    mean = 1 / rates.memory
    every = min(_steps(daly(max(costs.memory, _SHORTEST_STOP), mean), costs, limits), storage)
    return max(1, round(storage / max(1, round(storage / every))))


def _storage_beside(costs: Costs, rates: Rates, memory: int, limits: Limits) -> int:
    """Storage's interval where the memory tier's is given: a multiple of it."""
    more = max(_storage(costs) - costs.memory, _SHORTEST_STOP)
    every = _steps(daly(more, 1 / rates.storage), costs, limits)
    every = max(every, _least(costs, limits))
    return memory * max(1, round(every / memory), math.ceil(_least(costs, limits) / memory))


def _storage(costs: Costs) -> float:
    return costs.memory if costs.storage is None else costs.storage


def _steps(seconds: float, costs: Costs, limits: Limits) -> int:
    return min(max(1, round(seconds / costs.step)), _most(costs, limits))


def _most(costs: Costs, limits: Limits) -> int:
    return max(1, int(limits.longest_seconds / costs.step))


def _least(costs: Costs, limits: Limits) -> int:
    """Steps between which one write to storage fits."""
    return max(1, math.ceil(limits.overlap * costs.durable / costs.step))


def daly(cost: float, mean: float) -> float:
    """Seconds of work between saves that cost `cost`, with failures `mean` apart; Daly's (37)."""
    if cost >= 2 * mean:
        return mean
    root = math.sqrt(cost / (2 * mean))
    return math.sqrt(2 * cost * mean) * (1 + root / 3 + root * root / 9) - cost


# --------------------------------------------------------------------------------------- in words


_FORMULA = "sqrt(2 × cost × time between failures), as by Young and Daly"
"""What `_both` comes to where a save costs much less than that time; the docstring has the rest."""


def _memory_reason(costs: Costs, rates: Rates, fixed: Every, limits: Limits) -> str:
    if fixed.memory:
        return "the job's spec says so"
    stop = f"a save stops training for {in_words(costs.memory)}"
    text = f"{stop}, a step takes {in_words(costs.step)}, {_failures(rates.memory)} {rates.reason}"
    return f"{_FORMULA}: {text}; {in_words(limits.longest_seconds)} at the most"


def _storage_reason(costs: Costs, rates: Rates, fixed: Every, limits: Limits) -> str:
    if fixed.storage:
        return "the job's spec says so"
    if costs.storage is None:
        return "as before: no save to storage has been measured yet"
    stop = f"a save costs {in_words(costs.storage)} of training"
    text = f"{stop}, a step takes {in_words(costs.step)}, {_losses(rates.storage)} {rates.reason}"
    if costs.durable:
        text += f"; a write of {in_words(costs.durable)} has to fit"
    return f"{_FORMULA}: {text}; {in_words(limits.longest_seconds)} at the most"


def _failures(rate: float) -> str:
    return f"a process fails every {in_words(1 / rate)}"


def _losses(rate: float) -> str:
    return f"a node is lost every {in_words(1 / rate)}"
