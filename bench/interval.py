"""Goodput of the automatic checkpoint interval beside fixed ones: `python -m bench.interval`.

A job on paper: steps, saves that stop it, failures at random from a seed. No process is started and
no time is measured, so the figures say how good the choice is, not how fast anything is. Prints the
table of docs/benchmarks/interval.md; the tests assert what it shows.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

from holdfast_master.policies.failure_rate import Observed, Rates, learn
from holdfast_master.policies.interval import Cost, Costs, Every, decide
from holdfast_wire.messages import Tier


def pair(memory: int, storage: int) -> Every:
    """Return steps between saves to each tier."""
    return {Tier.MEMORY: memory, Tier.STORAGE: storage}


def measured(*, step: float, memory: float, storage: float, durable: float) -> Costs:
    """Return costs of saving, s."""
    tiers = {Tier.MEMORY: Cost(stop=memory), Tier.STORAGE: Cost(stop=storage, durable=durable)}
    return Costs(step=step, tiers=tiers)


NO_WISH = pair(0, 0)
BEFORE = pair(1, 100)
"""The ranks' act before any measurement."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
MEANS = (10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY)
"""s: mean time between failures of the job."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job on paper."""

    name: str
    costs: Costs
    restart: float
    """From a failure until steps are trained again, s."""
    losses: float
    """Part of the failures that take a node."""
    nodes: int

    @property
    def memory_cost(self) -> float:
        """That a save to memory costs, s; known here."""
        return self.costs.tiers[Tier.MEMORY].stop or 0.0

    @property
    def storage_cost(self) -> float:
        """That a save to storage costs, s; known here."""
        return self.costs.tiers[Tier.STORAGE].stop or self.memory_cost


JOBS = (
    Job(
        name="small",
        costs=measured(step=0.25, memory=0.02, storage=0.4, durable=2.0),
        restart=5.0,
        losses=0.2,
        nodes=2,
    ),
    Job(
        name="middle",
        costs=measured(step=2.0, memory=0.3, storage=4.0, durable=25.0),
        restart=20.0,
        losses=0.5,
        nodes=32,
    ),
    Job(
        name="large",
        costs=measured(step=12.0, memory=1.5, storage=10.0, durable=60.0),
        restart=60.0,
        losses=0.8,
        nodes=1000,
    ),
)


def failures(seed: int, number: int, losses: float) -> list[tuple[float, bool]]:
    """Return (time since the one before, in means; a node was lost) of each failure."""
    luck = random.Random(seed)
    return [(luck.expovariate(1.0), luck.random() < losses) for _ in range(number)]


def goodput(job: Job, every: Every, mean: float, story: Sequence[tuple[float, bool]]) -> float:
    """Return the part of all time that was spent on steps that counted.

    Storage's interval is a multiple of the memory tier's. A restart is followed by training at
    once; a write to storage that is under way when a process fails goes on, one whose node is lost
    does not.
    """
    return _played(job, mean, story, lambda _: every)


def learning(job: Job, mean: float, seed: int, number: int, first: int = 5) -> tuple[float, float]:
    """Return the goodput of a job that learns from its failures, and that of the best fixed pair.

    Both from failure `first` on, for `number` more of them: after each one the master looks anew.
    """
    story = failures(seed, first + number, job.losses)
    now = [BEFORE]

    def look(at: int) -> Every:
        rates = _seen(job, mean, story[: first + at])
        now.append(decide(job.costs, rates, now[-1], fixed=NO_WISH).every)
        return now[-1]

    rest = story[first:]
    return _played(job, mean, rest, look), best_fixed(job, mean, rest)[1]


def _played(
    job: Job,
    mean: float,
    story: Sequence[tuple[float, bool]],
    every: Callable[[int], Every],
) -> float:
    """Return the goodput where `every` says the interval before each failure."""
    work, whole = 0.0, 0.0
    since = 0.0  # steps in memory since the newest that are on storage, s of work
    for at, (span, lost) in enumerate(story):
        alive = max(0.0, span * mean)
        done, stored = _until(job, every(at), since, alive)
        kept = stored if lost else max(done, stored)
        work += kept - since
        since = 0.0 if lost else kept - stored
        whole += alive + job.restart
    return work / whole


def _until(job: Job, every: Every, since: float, alive: float) -> tuple[float, float]:
    """Return the work that is in memory and on storage after `alive` seconds, s.

    Counted from the newest save on storage; `since` of it was in memory at the beginning.
    """
    step, k = job.costs.step, every[Tier.STORAGE] // every[Tier.MEMORY]
    part = every[Tier.MEMORY] * step
    turn, begun = part + job.memory_cost, round(since / part)
    whole_turn = k * turn - job.memory_cost + job.storage_cost
    at = begun * turn + alive  # as if the cycle had begun without a failure
    cycles, rest = divmod(at, whole_turn)
    saved = min(int(rest / turn), k - 1)
    durable = int(max(0.0, at - job.costs.tiers[Tier.STORAGE].durable) / whole_turn)
    return (cycles * k + saved) * part, durable * k * part


def best_fixed(job: Job, mean: float, story: Sequence[tuple[float, bool]]) -> tuple[Every, float]:
    """Return the best of all pairs of intervals on a fine grid."""
    grid = [
        pair(memory, memory * k)
        for memory in _series(800)
        for k in _series(2000)
        if memory * k * job.costs.step <= 2 * HOUR
    ]
    found = [(goodput(job, one, mean, story), one) for one in grid]
    value, every = max(found, key=lambda one: one[0])
    return every, value


def _series(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 11, ...: each about 1.4 times the one before."""
    numbers = [1]
    while numbers[-1] < most:
        numbers.append(max(numbers[-1] + 1, round(numbers[-1] * 1.4)))
    return numbers


def rates_of(memory: float, storage: float) -> Rates:
    """Return failures in a second that go back to each tier."""
    return Rates(by_tier={Tier.MEMORY: memory, Tier.STORAGE: storage}, reason="(known)")


def known(job: Job, mean: float) -> Rates:
    """Return the rates as they are."""
    return rates_of((1 - job.losses) / mean, job.losses / mean)


def learned(job: Job, mean: float, seed: int, number: int = 5) -> Rates:
    """Return the rates as they seem after some failures."""
    return _seen(job, mean, failures(seed, number, job.losses))


def _seen(job: Job, mean: float, story: Sequence[tuple[float, bool]]) -> Rates:
    storage = sum(lost for _, lost in story)
    by_tier = {Tier.MEMORY: len(story) - storage, Tier.STORAGE: storage}
    seconds = sum(span for span, _ in story) * mean
    return learn(Observed(failures=by_tier, seconds=seconds), nodes=job.nodes)


def automatic(job: Job, rates: Rates) -> Every:
    """Return the intervals that a master sets."""
    return decide(job.costs, rates, BEFORE, fixed=NO_WISH).every


Choose = Callable[[Job, Rates], Every]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoodputRow:
    """One job at one rate of failures; goodput from 0 to 1."""

    job: str
    mean: float
    best: Every
    best_goodput: float
    every: Every
    known_goodput: float
    learned_goodput: tuple[float, ...]
    """With what was learned from five failures and kept for ever, by seed."""
    learning: tuple[float, ...] = ()
    """From the fifth failure on, learning on, for `LEARNING` more: in parts of the best fixed pair
    of the same failures, by seed."""


LEARNING = 100


def measure(
    job: Job, mean: float, *, number: int, seeds: int, choose: Choose = automatic
) -> GoodputRow:
    """Play one job: `number` failures, the same for each choice; `learning` is not measured."""
    story = failures(1, number, job.losses)
    best, value = best_fixed(job, mean, story)
    every = choose(job, known(job, mean))
    guesses = [choose(job, learned(job, mean, 100 + seed)) for seed in range(seeds)]
    return GoodputRow(
        job=job.name,
        mean=mean,
        best=best,
        best_goodput=value,
        every=every,
        known_goodput=goodput(job, every, mean, story),
        learned_goodput=tuple(goodput(job, one, mean, story) for one in guesses),
    )


def table(rows: Sequence[GoodputRow]) -> str:
    """Return the rows as Markdown."""
    heads = ["job", "a failure every", "best fixed: memory, storage", "goodput"]
    heads += ["automatic", "goodput", "learning: worst"]
    heads += ["five for ever: median", "nine in ten", "worst"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        guesses = sorted(row.learned_goodput)
        lines.append(
            f"| {row.job} | {_hours(row.mean)} | {_pair_text(row.best)} "
            f"| {row.best_goodput:.2%} | {_pair_text(row.every)} "
            f"| {row.known_goodput:.2%} | {min(row.learning) - 1:.2%} "
            f"| {guesses[len(guesses) // 2]:.2%} | {guesses[len(guesses) // 10]:.2%} "
            f"| {guesses[0]:.2%} |"
        )
    return "\n".join(lines)


def _pair_text(every: Every) -> str:
    return ", ".join(str(every[tier]) for tier in sorted(every))


def _hours(seconds: float) -> str:
    for (unit, size), (_, next_size) in pairwise((("min", MINUTE), ("h", HOUR), ("d", DAY))):
        if seconds < next_size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / DAY:.0f} d"


def main() -> int:
    """Print the table."""
    rows = []
    for job in JOBS:
        for mean in MEANS:
            played = [learning(job, mean, 500 + seed, LEARNING) for seed in range(50)]
            row = measure(job, mean, number=4000, seeds=50)
            parts = tuple(value / best for value, best in played)
            rows.append(dataclasses.replace(row, learning=parts))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
