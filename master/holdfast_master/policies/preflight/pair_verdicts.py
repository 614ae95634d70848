"""Verdicts from pairs: a pair has one figure, and one node of it may be bad.

Belongs here: who is named where pairs are slow, who is in doubt, which link is slow between two
healthy nodes. Does not belong here: who is paired next (`rounds`).

A node that was fast with anybody is healthy. A node that was slow with everybody is named when
three of those partners are known to be healthy, or it was very slow with two, one of them healthy:
else the link to that one, or noise, may be the cause.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from holdfast_master.policies.preflight.figures import PairTest
from holdfast_master.policies.preflight.references import LINK, References, group_margin
from holdfast_master.policies.preflight.verdicts import (
    LinkFinding,
    NodeFinding,
    NodeVerdict,
    compared_text,
)
from holdfast_wire.resources import PAIR_RESOURCES, Resource, label, margin

_HEALTHY_PARTNERS = 3
"""Healthy partners with which a node is slow, before it is named; fewer where there are no more."""
_PARTS = 8
"""An eighth of the nodes shows the level, at least one pair: a healthy one needs a healthy partner
to reach it, so where half of the nodes are bad, not half of them reach it."""
_CLEAR = 1.5
"""Times the margin: so slow a pair is no noise."""
_CLEAR_PARTNERS = 2
"""Partners with which a node is so slow, one of them healthy, before it is named."""


@dataclasses.dataclass(frozen=True)
class Network:
    """One resource of pairs, as all rounds so far show it."""

    resource: Resource
    tests: Sequence[PairTest]
    tested: Sequence[str]
    """Nodes that are judged and answered in each round."""
    trusted: frozenset[str]
    """Their partners that were found healthy before."""
    references: References
    unsure: frozenset[str] = frozenset()
    """Nodes that another resource of pairs shows slow: they prove nothing about their partners."""

    @functools.cached_property
    def by_node(self) -> dict[str, dict[str, float]]:
        """Best goodness by node and partner."""
        found = dict[str, dict[str, float]]()
        for test in self.tests:
            if self.resource not in test.good:
                continue
            good = test.good[self.resource]
            for node in test.pair:
                with_whom, other = found.setdefault(node, {}), test.pair.other(node)
                with_whom[other] = max(good, with_whom.get(other, -math.inf))
        return found

    @functools.cached_property
    def best(self) -> dict[str, float]:
        """Best goodness of each node."""
        return {node: max(partners.values()) for node, partners in self.by_node.items()}

    @functools.cached_property
    def reference(self) -> float | None:
        """Goodness of healthy pairs in earlier checks."""
        level = self.references.by_kind.get((LINK, self.resource))
        return None if level is None else level.good

    @functools.cached_property
    def level(self) -> float | None:
        """Goodness that a healthy node has with a healthy partner; None: nothing tells."""
        if self.reference is not None:
            return self.reference
        pairs = {frozenset(test.pair) for test in self.tests if self.resource in test.good}
        if len(pairs) < 2:
            return None
        ordered = sorted(self.best.values(), reverse=True)
        level = ordered[-(-len(ordered) // _PARTS)]
        return level if math.isfinite(level) else None

    @functools.cached_property
    def width(self) -> float:
        """Distance below the level from which a pair is slow."""
        return group_margin(self.resource, self.best.values())

    def is_slow(self, good: float) -> bool:
        """Return True if a pair with this goodness is slow, as far as there is a level."""
        return self.level is not None and good < self.level - self.width

    @functools.cached_property
    def healthy(self) -> frozenset[str]:
        """Nodes that were fast with somebody."""
        if self.level is None:
            return frozenset()
        return frozenset(node for node, good in self.best.items() if not self.is_slow(good))

    @functools.cached_property
    def proven(self) -> frozenset[str]:
        """Nodes that are not to blame for a slow pair."""
        return (self.healthy - self.unsure) | self.trusted

    @functools.cached_property
    def slow(self) -> frozenset[str]:
        """Nodes that were slow with everybody, whoever is the cause."""
        return frozenset() if self.level is None else frozenset(self.best) - self.healthy

    @functools.cached_property
    def named(self) -> frozenset[str]:
        """Nodes that are to blame, before the question whether most are."""
        return frozenset(node for node in self.tested if self._is_to_blame(node))

    def _is_to_blame(self, node: str) -> bool:
        if node in self.healthy:
            return False
        if self.level is None and math.isfinite(self.best.get(node, 0.0)):
            return False
        partners = self.by_node.get(node, {}).keys()
        healthy = partners & self.proven
        if healthy and len(healthy) >= min(_HEALTHY_PARTNERS, len(self.proven)):
            return True
        clear = self.level is not None and self.best.get(node, 0.0) < self.level - (
            _CLEAR * self.width
        )
        return clear and bool(healthy) and len(partners) >= _CLEAR_PARTNERS

    @functools.cached_property
    def doubtful(self) -> tuple[str, ...]:
        """Nodes on which another pair could decide: slow and not named, or not measured."""
        if not self.best:
            return ()
        return tuple(
            node
            for node in self.tested
            if node not in self.healthy
            and node not in self.named
            and (self.level is not None or not math.isfinite(self.best.get(node, -math.inf)))
        )

    def score(self, node: str) -> float:
        """Return how far a node's best pair is above the level, in margins; unmeasured: least."""
        good = self.best.get(node, -math.inf)
        level = 0.0 if self.level is None else self.level
        return (good - level) / margin(self.resource)

    def findings(self) -> list[NodeFinding]:
        """Return one finding for each tested node, none if no pair measured this resource."""
        if not self.best:
            return []
        most = self.reference is None and 2 * len(self.named) > len(self.best)
        return [self._finding(node, most=most) for node in self.tested]

    def _finding(self, node: str, *, most: bool) -> NodeFinding:
        if node not in self.best:
            text = f"{label(self.resource)}: no pair measured it"
            return self._say(node, NodeVerdict.UNDECIDED, text)
        if node in self.healthy:
            return self._say(node, NodeVerdict.HEALTHY, self._text(node))
        if node in self.named and most:
            text = f"{self._text(node)}; so are most nodes, the cause is probably shared"
            return self._say(node, NodeVerdict.UNDECIDED, text)
        if node in self.named:
            failed = not math.isfinite(self.best[node])
            verdict = NodeVerdict.FAULTY if failed else NodeVerdict.SLOW
            return self._say(node, verdict, self._blame(node))
        if self.level is None and math.isfinite(self.best[node]):
            text = f"{label(self.resource)}: too few pairs and no reference figure"
            return self._say(node, NodeVerdict.UNDECIDED, text, compared=False)
        nodes = " and ".join(sorted({node, *self.by_node[node]}))
        text = f"{self._text(node)}; the figures do not tell which of {nodes} is the cause"
        return self._say(node, NodeVerdict.UNDECIDED, text)

    def _blame(self, node: str) -> str:
        partners = self.by_node[node].keys()
        sure = ", ".join(sorted(partners & self.proven))
        return f"{self._text(node)}, with each of {len(partners)} partners; of them healthy: {sure}"

    def _text(self, node: str) -> str:
        what = "other pairs" if self.reference is None else "reference"
        good, level = self.best[node], self.level
        if not math.isfinite(good) or level is None:
            return f"{label(self.resource)} failed{self._error(node)}"
        return compared_text(self.resource, good, what, level)

    def _error(self, node: str) -> str:
        errors = [
            test.errors[self.resource]
            for test in self.tests
            if node in test.pair and self.resource in test.errors
        ]
        return f" ({errors[-1]})" if errors else ""

    def _say(
        self, node: str, verdict: NodeVerdict, reason: str, *, compared: bool = True
    ) -> NodeFinding:
        return NodeFinding(
            node=node,
            resource=self.resource,
            verdict=verdict,
            reason=reason,
            good=self.best.get(node),
            compared=compared,
        )

    def links(self) -> list[LinkFinding]:
        """Return the pairs that are slow between two healthy nodes."""
        slow = (
            (test.pair, test.good[self.resource])
            for test in self.tests
            if self.is_slow(test.good.get(self.resource, math.inf))
            and self.healthy.issuperset(test.pair)
        )
        text = functools.partial(compared_text, self.resource)
        return [
            LinkFinding(pair, self.resource, text(good, "nodes with others", self.level or 0.0))
            for pair, good in slow
        ]


def networks(
    tests: Sequence[PairTest], tested: Sequence[str], trusted: Iterable[str], references: References
) -> Mapping[Resource, Network]:
    """Return the view of each resource of pairs."""
    partners = frozenset(trusted)
    views = [Network(one, tests, tested, partners, references) for one in PAIR_RESOURCES]
    unsure = frozenset(node for view in views for node in view.slow)
    return {view.resource: dataclasses.replace(view, unsure=unsure) for view in views}
