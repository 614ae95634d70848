"""Makes a failing scenario small: as few faults as possible, on as few nodes, as calm as possible.

Delta debugging over the schedule, then over the sizes, again until nothing more goes. A smaller
scenario counts only if the same invariant is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from simulation.run import Outcome, run
from simulation.scenario import Fault, Scenario

MOST_RUNS = 400
"""Runs that one shrink may take: a few seconds."""
MOST_INPUTS = 300_000
"""Inputs of masters that they may take together: a crowd is not shrunk for minutes."""

Run = Callable[[Scenario], Outcome]


class Shrinker:
    """One search, with a bound on its runs."""

    def __init__(self, invariant: str, runner: Run = run, most: int = MOST_RUNS) -> None:
        """`invariant` must stay the one that is broken."""
        self.invariant = invariant
        self.runs = self.inputs = 0
        self._run = runner
        self._most = most

    def fails(self, scenario: Scenario) -> bool:
        """Return whether the scenario breaks the same invariant; False once no runs are left."""
        if self.runs >= self._most or self.inputs >= MOST_INPUTS:
            return False
        self.runs += 1
        outcome = self._run(scenario)
        self.inputs += outcome.inputs
        return outcome.invariant == self.invariant

    def shrink(self, scenario: Scenario) -> Scenario:
        """The smallest scenario found."""
        before = None
        while before != scenario:
            before = scenario
            scenario = self._fewer_faults(scenario)
            for smaller in (_sizes, _habits, _spans):
                scenario = self._each(scenario, smaller)
        return scenario

    def _fewer_faults(self, scenario: Scenario) -> Scenario:
        """Delta debugging: leave out ever smaller parts of the schedule."""
        part = max(1, len(scenario.faults) // 2)
        while scenario.faults:
            at = 0
            while at < len(scenario.faults):
                left = scenario.faults[:at] + scenario.faults[at + part :]
                smaller = dataclasses.replace(scenario, faults=left)
                if self.fails(smaller):
                    scenario = smaller
                else:
                    at += part
            if part == 1:
                break
            part //= 2
        return scenario

    def _each(
        self, scenario: Scenario, smaller: Callable[[Scenario], Iterator[Scenario]]
    ) -> Scenario:
        """Take the first smaller one that fails, and go on from there."""
        found = True
        while found:
            found = False
            for candidate in smaller(scenario):
                if self.fails(candidate):
                    scenario, found = candidate, True
                    break
        return scenario


def _sizes(scenario: Scenario) -> Iterator[Scenario]:
    unit = scenario.unit
    for replicas in sorted({unit, scenario.replicas // 2, scenario.replicas - unit}):
        if unit <= replicas < scenario.replicas:
            minimum = min(scenario.minimum, replicas // unit * unit)
            maximum = max(minimum, min(scenario.maximum, replicas))
            yield dataclasses.replace(scenario, replicas=replicas, minimum=minimum, maximum=maximum)
    for name, least in (("standbys", 0), ("local", 1)):
        value = getattr(scenario, name)
        if value > least:
            yield dataclasses.replace(scenario, **{name: value - 1})
    if scenario.minimum > unit:
        yield dataclasses.replace(scenario, minimum=unit)


def _habits(scenario: Scenario) -> Iterator[Scenario]:
    calm = Scenario(seed=scenario.seed)
    names = ("sdk", "join_window", "store_failures", "masterless", "budget", "policy", "skew")
    for name in (*names, "raises", "replace_delay", "heartbeat", "commits"):
        if getattr(scenario, name) != getattr(calm, name):
            yield dataclasses.replace(scenario, **{name: getattr(calm, name)})


def _spans(scenario: Scenario) -> Iterator[Scenario]:
    for place, fault in enumerate(scenario.faults):
        smaller = (
            dataclasses.replace(fault, who=0),
            dataclasses.replace(fault, at=float(round(fault.at))),
            dataclasses.replace(fault, span=float(round(fault.span))),
        )
        for changed in smaller:
            if changed != fault and (changed.span > 0 or fault.span == 0):
                faults = (*scenario.faults[:place], changed, *scenario.faults[place + 1 :])
                yield dataclasses.replace(scenario, faults=_sorted(faults))


def _sorted(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))


def report(outcome: Outcome) -> str:
    """Return the report for people: seed, invariant, minimal scenario as code and its tale."""
    shrinker = Shrinker(outcome.invariant)
    small = shrinker.shrink(outcome.scenario)
    last = run(small)
    return (
        f"seed {outcome.scenario.seed} breaks {outcome.text}\n"
        f"it has {len(outcome.scenario.faults)} faults; {len(small.faults)} are enough "
        f"({shrinker.runs} runs):\n\n{small.code()}\n\n{last.text}\n"
        f"the newest events of its master:\n{last.tale}"
    )
