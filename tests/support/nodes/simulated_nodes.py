"""Nodes of a pretended cluster: healthy ones that differ by noise, and bad ones.

They answer the rounds of a real check with figures drawn from a seed. Belongs here: the figures.
Not: what is expected of the check.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Mapping, Sequence

from holdfast_master.policies.preflight.figures import (
    CheckStanding,
    Figure,
    FigureReport,
    Participant,
    RoundId,
)
from holdfast_master.policies.preflight.references import NONE, References
from holdfast_master.policies.preflight.rounds import (
    Check,
    CheckOutcome,
    begin,
    conclude,
    judge,
)
from holdfast_wire.resources import PAIR_RESOURCES, TRAITS, Resource

HEALTHY: Mapping[Resource, float] = {
    Resource.CPU_MATMUL: 0.2,
    Resource.MEMORY_BANDWIDTH: 20.0,
    Resource.DISK_ROOM: 100.0,
    Resource.DISK_WRITE: 0.4,
    Resource.DISK_READ: 1.5,
    Resource.SHM_ROOM: 8.0,
    Resource.SHM_WRITE: 3.0,
    Resource.CLOCK_OFFSET: 0.01,
    Resource.LINK_BANDWIDTH: 9.4,
    Resource.LINK_LATENCY: 60.0,
    Resource.ALLREDUCE: 0.8,
}
"""What a healthy node has, in the resource's unit."""
NOISE: Mapping[Resource, float] = {
    Resource.CPU_MATMUL: 0.04,
    Resource.MEMORY_BANDWIDTH: 0.05,
    Resource.DISK_WRITE: 0.15,
    Resource.DISK_READ: 0.15,
    Resource.SHM_WRITE: 0.08,
    Resource.LINK_BANDWIDTH: 0.08,
    Resource.LINK_LATENCY: 0.2,
    Resource.ALLREDUCE: 0.1,
}
"""Standard deviation of the figure's logarithm, from node to node and from test to test."""
NETWORK = frozenset(PAIR_RESOURCES)
NOBODY_THERE = [Figure(resource=one, error="no connection in 5 s") for one in PAIR_RESOURCES]
"""What a node has to tell whose partner is not there."""
COMPUTE = frozenset({Resource.CPU_MATMUL})
DISK = frozenset({Resource.DISK_WRITE, Resource.DISK_READ})


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a node."""

    resources: frozenset[Resource] = frozenset()
    factor: float = 1.0
    """Share of the healthy speed that is left."""
    dead_from: int | None = None
    """Number of the round from which it does not answer."""
    refuses_from: int | None = None
    """Number of the round from which it measures nothing, and says so."""
    hangs: Resource | None = None
    """A measurement that never ends."""


DEAD = Fault(dead_from=0)


class Cluster:
    """Nodes that answer rounds."""

    def __init__(
        self,
        size: int,
        faults: Mapping[str, Fault],
        seed: int = 0,
        *,
        slow_links: Mapping[frozenset[str], float] | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        """Draw the nodes; `slow_links` have this share of the speed between healthy nodes."""
        self.nodes = tuple(f"n{at}" for at in range(size))
        self.faults = faults
        self.slow_links = slow_links or {}
        self.kinds = kinds or {}
        self.random = random.Random(seed)
        self.rounds: list[RoundId] = []
        self.pairs: list[frozenset[str]] = []

    def check(
        self,
        participants: Iterable[Participant] | None = None,
        references: References = NONE,
        number: int = 1,
        *,
        network: bool = True,
    ) -> Check:
        """Return a whole check of these nodes, over."""
        if participants is None:
            participants = [Participant(node=node) for node in self.nodes]
        check = begin(number, participants, references, network=network)
        while check.current is not None:
            self.rounds.append(check.current.id)
            self.pairs += [frozenset(pair) for pair in check.current.pairs]
            check = conclude(check, self.answers(check))
        return check

    def outcome(self, **arguments: object) -> CheckOutcome:
        """Return what a check of these nodes finds."""
        return judge(self.check(**arguments))  # type: ignore[arg-type]

    def answers(self, check: Check) -> list[FigureReport]:
        """Return the reports of the open round."""
        current = check.current
        assert current is not None
        alone = [self._alone(current.id, node) for node in current.nodes]
        paired = [
            self.report(current.id, node, pair.other(node), figures)
            for pair in current.pairs
            for figures in [self._pair(current.id.number, pair)]
            for node in pair
        ]
        answers = [
            one for one in (*alone, *paired) if not self._is_dead(one.node, one.round.number)
        ]
        return [
            dataclasses.replace(one, figures=(), refused="ranks run here")
            if self._refuses(one.node, one.round.number)
            else one
            for one in answers
        ]

    def _refuses(self, node: str, number: int) -> bool:
        fault = self.faults.get(node)
        return fault is not None and fault.refuses_from is not None and number >= fault.refuses_from

    def _is_dead(self, node: str, number: int) -> bool:
        fault = self.faults.get(node)
        return fault is not None and fault.dead_from is not None and number >= fault.dead_from

    def report(
        self, number: RoundId, node: str, partner: str, figures: Sequence[Figure]
    ) -> FigureReport:
        """Return a node's report of a round."""
        kind = self.kinds.get(node, "cpu")
        return FigureReport(
            round=number, node=node, partner=partner, kind=kind, figures=tuple(figures)
        )

    def _alone(self, number: RoundId, node: str) -> FigureReport:
        figures = [
            self._figure(resource, self.kinds.get(node, "cpu"), [node])
            for resource in HEALTHY
            if resource not in NETWORK
        ]
        return self.report(number, node, "", figures)

    def _pair(self, number: int, pair: Sequence[str]) -> list[Figure]:
        if any(self._is_dead(node, number) or self._refuses(node, number) for node in pair):
            return NOBODY_THERE
        return [self._figure(resource, "cpu", pair) for resource in PAIR_RESOURCES]

    def _figure(self, resource: Resource, kind: str, nodes: Sequence[str]) -> Figure:
        faults = [self.faults[node] for node in nodes if node in self.faults]
        if any(fault.hangs is resource for fault in faults):
            return Figure(resource=resource, error="no result in 10 s: it hangs")
        factors = [fault.factor for fault in faults if resource in fault.resources]
        if resource in NETWORK:
            factors.append(self.slow_links.get(frozenset(nodes), 1.0))
        factor = min(factors, default=1.0)
        value = HEALTHY[resource] * math.exp(self.random.gauss(0, NOISE.get(resource, 0.0)))
        value *= 3.0 if kind == "fast" else 1.0
        better = TRAITS[resource].higher_is_better
        return Figure(resource=resource, value=value * factor if better else value / factor)


def trusted(*nodes: str) -> list[Participant]:
    """Return nodes that were found healthy before and are idle."""
    return [Participant(node=node, standing=CheckStanding.TRUSTED) for node in nodes]
